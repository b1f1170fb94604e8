package prunecmd

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/cputime"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// CompareOptions are the settings of a comparison: those of its runs, and which runs there are.
type CompareOptions struct {
	Options
	Methods, Patterns string // separated by commas
	Keep              bool   // keep the pruned models
}

// plannedRun is one run of a comparison.
type plannedRun struct {
	method Method
	target Target
	flags  Options
	opts   prune.Options
}

// plan turns the lists into runs, of which all are checked before the first one.
func (o *CompareOptions) plan() ([]plannedRun, error) {
	methods, err := ParseMethods(o.Methods)
	if err != nil {
		return nil, misread(err)
	}

	targets, err := ParseTargets(o.Patterns)
	if err != nil {
		return nil, misread(err)
	}

	var runs []plannedRun
	memo := &prune.Memo{}
	for _, t := range targets {
		for _, m := range methods {
			r := plannedRun{method: m, target: t, flags: o.Options}
			r.flags.Method = m.Metric
			r.flags.Pattern = t.Pattern
			r.flags.Sparsity = t.Sparsity

			r.flags.Save = "dense"
			r.flags.Allocation, r.flags.Update = cmp.Or(m.Allocation, o.Allocation), cmp.Or(m.Update, o.Update)
			metric, err := metricOf(m.Metric)
			if err != nil {
				return nil, err
			}

			structured := t.Pattern != prune.Unstructured
			if structured {
				r.flags.Group = "" // a pattern has its own
			}

			r.flags.Narrow(metric, structured)
			if r.opts, err = r.flags.options(); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", t.Label, m.Label, err)
			}

			r.opts.Memo = memo

			if r.opts.Needs()&prune.Gradients != 0 && r.opts.Gradients.File == "" {
				r.opts.Gradients.Keep = Scratch(o.Out, "gradients.safetensors")
				r.opts.Gradients.Half = !r.opts.Gradients.Exact // what the metrics get, in half of the space
			}

			runs = append(runs, r)
		}
	}

	return runs, nil
}

// CheckCompare finds what is wrong with flags by themselves.
func CheckCompare(o CompareOptions) error {
	_, err := o.plan()
	return err
}

// comparison is what the runs of the verb share.
type comparison struct {
	*cli.Job
	path           string
	resume         bool
	calib, windows corpus.Windows
}

// Compare prunes a model in several ways and measures each.
func Compare(j *cli.Job, path string, o CompareOptions) (any, error) {
	runs, err := o.plan()
	if err != nil {
		return nil, err
	}

	if err := CheckContest(o.Out, path, o.Resume, o.Overwrite); err != nil {
		return nil, err
	}

	m, err := j.Load(path, lm.Options{Stream: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	c := &comparison{Job: j, path: path, resume: o.Resume}
	all, err := c.begin(m, &o, runs)
	if err != nil {
		return nil, err
	}

	r := &ContestReport{
		Command: Command, Model: path, Calibration: c.calib.Hash, Data: c.windows.Hash,
		Source: c.windows.Source, SeqLen: c.windows.SeqLen,
	}

	if err := all.Run(j.Ctx, r); err != nil {
		return nil, err
	}

	j.Table(r.Table())
	if r.Resumed > 0 {
		j.Note("%d of %d runs were taken from the journal", r.Resumed, len(runs))
	}

	return r, c.write(o.Out, r)
}

// begin draws the data and makes the work of the runs.
func (c *comparison) begin(m *lm.Model, o *CompareOptions, runs []plannedRun) (*Contest, error) {
	var err error
	for i := 0; i < len(runs) && c.calib.IDs == nil && err == nil; i++ {
		c.calib, err = calibration(c.Job, m, runs[i].flags, runs[i].opts)
	}
	if err != nil {
		return nil, err
	}
	if c.windows, err = c.Cut(m, o.PPL, corpus.CutOptions{SeqLen: o.SeqLen}); err != nil {
		return nil, err
	}

	model, err := m.Fingerprint(c.Ctx)
	if err != nil {
		return nil, err
	}

	all := &Contest{
		Next: func(i int) { c.announce(m, runs, i) },
		Dir:  o.Out, Job: cli.Fingerprint(model, c.calib.Hash, c.windows.Hash), Keep: o.Keep,
		Fresh: o.Overwrite && !o.Resume, Note: c.Note,
		Dense: func() (Measure, error) { return c.measure(stageBefore, m) },
	}

	c.announce(m, runs, -1)

	for _, r := range runs {
		if r.opts.Gradients.File != "" {
			if err := prune.Check(c.Ctx, m, c.calib, r.opts); err != nil {
				return nil, err
			}
		}

		key, err := prune.Fingerprint(c.Ctx, m, c.calib, r.opts)
		if err != nil {
			return nil, err
		}

		all.Work = append(all.Work, Work{
			Method: r.method.Label, Target: r.target.Label, Key: key,
			Do: func(folder string, out *Run) error { return c.run(r, folder, out) },
		})
	}

	return all, nil
}

// announce says what runs from a given one on consist of; -1: and what comes before the first. Those that the
// journal has are passed over when the next one begins.
func (c *comparison) announce(m *lm.Model, runs []plannedRun, from int) {
	var list []cli.Stage
	made := map[string]bool{}
	for k, r := range runs {
		for _, s := range stages(m, r.opts, c.calib, c.windows) {
			if s.Name == stageBefore && (k > 0 || from >= 0) { // the dense model is measured once, before all runs
				continue
			}

			key := s.Name
			if s.Name == stageAllocation {
				key += r.flags.Allocation
			}
			if shared := s.Name == stageGradients || s.Name == stageAllocation; shared && made[key] {
				continue
			}

			made[key] = true
			if k >= from {
				list = append(list, s)
			}
		}
	}

	c.Announce(list...)
}

// measure gives a model's perplexity, with the mean losses of the windows. name is that of the progress.
func (c *comparison) measure(name string, m *lm.Model) (Measure, error) {
	r, s, err := perplexity.Windows(c.Job, name, m, c.windows)
	if err != nil {
		return Measure{}, err
	}
	return Measure{
		Perplexity: r.Perplexity, Stderr: r.Stderr, NLL: r.NLL, Tokens: r.Tokens,
		Windows: s.Means(),
	}, nil
}

// run prunes the model in one way, into a folder, and measures it.
func (c *comparison) run(r plannedRun, folder string, out *Run) error {
	m, err := c.Load(c.path, lm.Options{Stream: true})
	if err != nil {
		return err
	}
	defer m.Close()

	r.flags.Out = folder
	r.flags.Resume = c.resume
	r.flags.Overwrite = true // of what an earlier run left in the folder of models
	p := &pruning{job: c.Job, flags: r.flags, opts: r.opts, model: m, calib: c.calib, dense: folder}
	if err := p.begin(); err != nil {
		return err
	}

	start := cputime.Process()
	done, err := p.prune()
	if err != nil {
		return errors.Join(err, p.stop(err))
	}

	out.CPU = (cputime.Process() - start).Seconds()
	out.Sparsity = done.Total.Sparsity
	out.Overall = done.Total.Overall

	out.Notes = done.Notes
	out.Shared = done.Times.Gradients + done.Times.Allocate
	out.Seconds = done.Times.Total - out.Shared
	pruned, err := c.Load(folder, lm.Options{Stream: true})
	if err != nil {
		return err
	}

	out.Measure, err = c.measure(stageAfter, pruned)
	return errors.Join(err, pruned.Close())
}

// write writes the two reports.
func (c *comparison) write(dir string, r *ContestReport) error {
	data, err := c.Record(r)
	if err != nil {
		return err
	}

	var page bytes.Buffer
	if err := r.Page().HTML(&page); err != nil {
		return err
	}

	err = errors.Join(cli.WriteFile(filepath.Join(dir, "report.json"), data),
		cli.WriteFile(filepath.Join(dir, "report.html"), page.Bytes()))
	if err == nil {
		c.Printf("report.json and report.html are in %s\n", dir)
	}

	return err
}
