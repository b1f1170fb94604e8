package searchcmd

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/fitness"
)

// maxShare is how much of a set of data another one may contain, in runs of tokens.
const maxShare = 0.05

// Set is a set of windows in a report.
type Set struct {
	Use     string `json:"use"`
	Source  string `json:"source"`
	Windows int    `json:"windows"`
	SeqLen  int    `json:"seqlen"`
	Hash    string `json:"hash"`
}

// Shared is what one set has of another.
type Shared struct {
	A string `json:"set"`
	B string `json:"in"`
	fitness.Sharing
}

// Model is a model of the search in a report.
type Model struct {
	Name        string   `json:"name"`
	Path        string   `json:"path"`
	Fingerprint string   `json:"fingerprint"`
	Parameters  int64    `json:"parameters"`
	Data        []Set    `json:"data"`
	Overlap     []Shared `json:"overlap"`
	quantised   []lm.Quantised
	remarks     []string
}

// subjects opens the models for what their data are.
func subjects(j *cli.Job, paths []string, o *Options, threads int) ([]fitness.Subject, []Model, error) {
	var list []fitness.Subject
	var models []Model
	names := named(paths)
	for i, path := range paths {
		if slices.Contains(names[:i], names[i]) {
			return nil, nil, fmt.Errorf("%w: model %s is there twice", ErrFlags, path)
		}
		if err := cli.ModelFolder(path); err != nil {
			return nil, nil, err
		}

		s, m, err := subject(j, path, i, o)
		if err != nil {
			return nil, nil, err
		}

		s.Name, m.Name = names[i], names[i]
		if s.Open, err = opener(j, path, threads); err != nil {
			return nil, nil, err
		}

		list, models = append(list, s), append(models, m)
	}

	return list, models, nil
}

// named gives models names of as few parts of their paths as tell them apart.
func named(paths []string) []string {
	names := make([]string, len(paths))
	for parts := 1; ; parts++ {
		seen, longest := map[string]bool{}, 0
		for i, p := range paths {
			all := strings.Split(filepath.ToSlash(filepath.Clean(p)), "/")
			names[i] = strings.Join(all[max(0, len(all)-parts):], "/")
			seen[names[i]], longest = true, max(longest, len(all))
		}

		if len(seen) == len(paths) || parts >= longest {
			return names
		}
	}
}

// opener opens a model on a device like the job's, with other threads.
func opener(j *cli.Job, path string, threads int) (func(context.Context) (*lm.Model, error), error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	if dev.Info().Host {
		if dev, err = device.Open(dev.Info().Name, device.Options{Threads: threads}); err != nil {
			return nil, err
		}
	}

	return onDevice(path, dev), nil
}

func onDevice(path string, dev kernels.Device) func(context.Context) (*lm.Model, error) {
	return func(ctx context.Context) (*lm.Model, error) { return lm.Load(ctx, path, dev, lm.Options{Decode: true}) }
}

// subject draws and cuts the data of a model and checks that its sets are apart.
func subject(j *cli.Job, path string, i int, o *Options) (s fitness.Subject, r Model, err error) {
	m, err := j.Load(path, lm.Options{Decode: true})
	if err != nil {
		return s, r, err
	}
	defer m.Close()

	if r.Fingerprint, err = m.Fingerprint(j.Ctx); err != nil {
		return s, r, err
	}

	r.Path, r.Parameters = path, m.NumParameters()
	r.quantised, r.remarks = m.Quantised()
	if have := m.Blocks(); o.Blocks > have {
		j.Note("%s has %d blocks; --blocks %d looks at all of them", path, have, o.Blocks)
	}

	calib, err := j.Sample(m, forModel(o.Calib, i), corpus.SampleOptions{Samples: 3 * o.Samples, SeqLen: o.SeqLen})
	if err != nil {
		return s, r, err
	}

	if n := len(calib.IDs) / 3; n > 0 {
		for k, to := range []*corpus.Windows{&s.Calib, &s.SelectCalib, &s.TestCalib} {
			*to = corpus.New(calib.IDs[k*n:(k+1)*n], calib.Source)
		}
	} else {
		s.Calib = calib
		s.SelectCalib = calib
		s.TestCalib = calib
	}

	if err := o.heldout(j, m, i, &s); err != nil {
		return s, r, err
	}

	for k, use := range []string{
		"calibration for the search", "calibration for the selection",
		"calibration for the test", "search", "selection", "test",
	} {
		w := sets(&s)[k]
		r.Data = append(r.Data, Set{use, w.Source, len(w.IDs), w.SeqLen, w.Hash})
	}

	apart := []struct {
		use string
		w   corpus.Windows
	}{{"calibration", calib}, {"search", s.Search}, {"selection", s.Select}, {"test", s.Test}}

	for k, a := range apart {
		for _, b := range apart[:k] {
			x := Shared{a.use, b.use, fitness.Overlap(a.w, b.w)}
			r.Overlap = append(r.Overlap, x)

			if x.Windows > 0 || x.Share > maxShare {
				return s, r, fmt.Errorf("%s: %w: %.1f %% of the %s data, runs of %d tokens, and %d whole windows "+
					"are in the %s data (%s, %s) (HINT: give files that have nothing in common)",
					path, fitness.ErrOverlap, 100*x.Share, a.use, x.Run, x.Windows, b.use, a.w.Source, b.w.Source)
			}
		}
	}

	return s, r, nil
}

// heldout cuts the search, selection and test data: three files, or one that is divided.
func (o *Options) heldout(j *cli.Job, m *lm.Model, i int, s *fitness.Subject) (err error) {
	if len(o.Select) == 0 {
		all, err := j.Cut(m, forModel(o.Heldout, i), corpus.CutOptions{SeqLen: o.SeqLen})
		if err != nil {
			return err
		}

		sets, err := fitness.Divide(all, o.Windows, o.Choose, o.Report, j.Seed)
		s.Search = sets[0]
		s.Select = sets[1]
		s.Test = sets[2]
		return err
	}

	for _, c := range []struct {
		to   *corpus.Windows
		file string
		n    int
	}{
		{&s.Search, forModel(o.Heldout, i), o.Windows},
		{&s.Select, forModel(o.Select, i), o.Choose},
		{&s.Test, forModel(o.Test, i), o.Report},
	} {
		if *c.to, err = j.Cut(m, c.file, corpus.CutOptions{SeqLen: o.SeqLen, Limit: c.n}); err != nil {
			return err
		}
		if len(c.to.IDs) < c.n {
			return fmt.Errorf("%s: %w: %d windows of %d tokens; want %d", c.file, corpus.ErrShort, len(c.to.IDs),
				c.to.SeqLen, c.n)
		}
	}

	return nil
}
