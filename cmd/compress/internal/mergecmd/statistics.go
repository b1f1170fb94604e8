package mergecmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/safetensors"
)

// StatisticsOptions are the flags of the verb statistics.
type StatisticsOptions struct {
	Kind, Out, Memory string
	Data              []string // one, or one for each model of regmean++
	Samples, SeqLen   int
	Alpha             float64
	Overwrite         bool
}

// kindMerged is the kind that is collected from several models together.
const kindMerged = "regmean++"

// StatisticsKinds are those that the verb collects.
func StatisticsKinds() []string { return []string{"fisher", "gram", "both", kindMerged} }

// StatisticsResult says what was collected.
type StatisticsResult struct {
	Kind    string `json:"kind"`
	Out     string `json:"out"`
	Bytes   int64  `json:"bytes"`
	Windows int    `json:"windows"`
	SeqLen  int    `json:"seqlen"`
	Data    string `json:"data_hash"`
}

// Statistics collects the statistics of a model, or those of several that are merged meanwhile.
func Statistics(j *cli.Job, paths []string, o StatisticsOptions) (any, error) {
	if o.Kind == kindMerged {
		return mergedStatistics(j, paths, o)
	}
	if len(paths) != 1 || len(o.Data) != 1 {
		return nil, cli.Usagef("--kind %s takes one model and one --data, not %d and %d", o.Kind, len(paths),
			len(o.Data))
	}
	path := paths[0]
	collect := map[string]func(context.Context, *lm.Model, corpus.Windows, string, merge.StatisticsOptions) error{
		"fisher": merge.Fisher, "gram": merge.Gram, "both": merge.FisherAndGram,
	}[o.Kind]
	if collect == nil {
		return nil, cli.Usagef("--kind %q; known: %s", o.Kind, strings.Join(StatisticsKinds(), ", "))
	}

	memory, err := cli.Bytes("memory", o.Memory)
	if err != nil {
		return nil, err
	}

	place := cli.Place{
		Flag: "out", Path: o.Out, What: "statistics",
		Own: func(path string) bool { return strings.HasSuffix(path, ".safetensors") }, Inputs: j.Inputs, Seeks: true,
	}
	to, err := place.Target()
	if err != nil {
		return nil, err
	}

	m, err := j.Load(path, lm.Options{Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	w, err := j.Sample(m, o.Data[0], corpus.SampleOptions{Samples: o.Samples, SeqLen: o.SeqLen, Join: true})
	if err != nil {
		return nil, err
	}

	bar := j.Bars()
	err = collect(j.Ctx, m, w, to, merge.StatisticsOptions{
		Memory: memory, Overwrite: o.Overwrite, Progress: func(done, total int64) { bar.Show(o.Kind, done, total) },
	})

	bar.End()
	if err != nil {
		return nil, err
	}

	r := StatisticsResult{Kind: o.Kind, Out: o.Out, Windows: len(w.IDs), SeqLen: w.SeqLen, Data: w.Hash}
	if st, err := os.Stat(o.Out); err == nil {
		r.Bytes = st.Size()
	}

	j.Printf("%s of %d windows of %d tokens: %s in %s\n", r.Kind, r.Windows, r.SeqLen, cli.Size(r.Bytes), r.Out)
	return r, nil
}

// MergedStatistics says what was collected from several models.
type MergedStatistics struct {
	Kind  string             `json:"kind"`
	Alpha float64            `json:"alpha"`
	Files []StatisticsResult `json:"files"`
}

// mergedStatistics collects the Gram matrices of RegMean++.
func mergedStatistics(j *cli.Job, paths []string, o StatisticsOptions) (any, error) {
	if len(paths) < 2 || len(o.Data) != len(paths) {
		return nil, cli.Usagef("--kind %s takes two models or more and a --data for each, not %d and %d", kindMerged,
			len(paths), len(o.Data))
	}

	r := &MergedStatistics{Kind: kindMerged, Alpha: o.Alpha}
	var places []cli.Place
	for i, path := range paths {
		file := filepath.Join(o.Out, fmt.Sprintf("%d-%s.safetensors", i, filepath.Base(filepath.Clean(path))))
		place := cli.Place{
			Flag: "out", Path: file, What: "statistics",
			Own:    func(path string) bool { return strings.HasSuffix(path, ".safetensors") },
			Inputs: j.Inputs, Seeks: true,
		}
		if !o.Overwrite {
			if _, err := os.Lstat(file); err == nil {
				return nil, fmt.Errorf("%s: %w", file, safetensors.ErrExists)
			}
		}
		places, r.Files = append(places, place), append(r.Files, StatisticsResult{Kind: kindMerged, Out: file})
	}

	var models []*lm.Model
	var texts []corpus.Windows
	for i, path := range append(paths[:len(paths):len(paths)], paths[0]) { // the first once more, to be merged into
		m, err := j.Load(path, lm.Options{Decode: true})
		if err != nil {
			return nil, err
		}
		defer m.Close()
		models = append(models, m)
		if i == len(paths) {
			break
		}

		w, err := j.Sample(m, o.Data[i], corpus.SampleOptions{Samples: o.Samples, SeqLen: o.SeqLen, Join: true})
		if err != nil {
			return nil, err
		}
		texts = append(texts, w)
		r.Files[i].Windows, r.Files[i].SeqLen, r.Files[i].Data = len(w.IDs), w.SeqLen, w.Hash
	}

	// The folder is made last, so that nothing is left of a run that cannot begin.
	takeBack, err := placeFor(o.Out)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, p := range places {
		to, err := p.Target()
		if err != nil {
			takeBack()
			return nil, err
		}
		files = append(files, to)
	}

	bar := j.Bars()
	last := len(models) - 1
	err = merge.MergedGrams(j.Ctx, models[:last], models[last], texts, files, o.Alpha,
		merge.StatisticsOptions{
			Overwrite: o.Overwrite, Progress: func(done, total int64) { bar.Show(o.Kind, done, total) },
		})
	bar.End()
	if err != nil {
		takeBack()
		return nil, err
	}

	for i := range r.Files {
		if st, err := os.Stat(r.Files[i].Out); err == nil {
			r.Files[i].Bytes = st.Size()
		}
		j.Printf("%s of %d windows of %d tokens: %s in %s\n", kindMerged, r.Files[i].Windows, r.Files[i].SeqLen,
			cli.Size(r.Files[i].Bytes), r.Files[i].Out)
	}
	j.Note("a recipe by regmean with alpha %g takes them as its models' gram", o.Alpha)
	return r, nil
}

// placeFor makes a folder for files, and gives what takes it away again where it was not there and is empty.
func placeFor(dir string) (undo func(), err error) {
	_, err = os.Lstat(dir)
	fresh := err != nil
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	return func() {
		if fresh {
			_ = os.Remove(dir) // which leaves a folder that holds something
		}
	}, nil
}
