package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/contest"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

type compareFlags struct {
	pruneFlags
	methods, patterns string
	keep              bool
}

func (a *app) pruneCompareCmd() *cobra.Command {
	var o compareFlags
	cmd := a.newVerb("compare MODEL --out DIR", "Prune a model in several ways and compare what it costs",
		"Runs every method with every sparsity or pattern on the same calibration ids and measures the perplexity on the same windows, with its "+
			"standard error and a paired test against the best. A method is one of prune's, with @ALLOCATION or +UPDATE or both: "+
			"pruner-zero@owl+sparsegpt. Writes report.json and report.html to --out; a run that is finished is noted in journal.jsonl "+
			"there and not run again with --resume, to which methods and patterns may be added.",
		"compress prune compare testdata/nano/base --methods magnitude,wanda,sparsegpt --patterns 0.5,0.6,2:4 \\\n"+
			"    --calib testdata/nano/text/calib.txt --samples 32 --seqlen 256 --ppl testdata/nano/text/test.txt --out compared",
		cobra.ExactArgs(1), func(j *job, args []string) (any, error) { return compare(j, args[0], o) })
	f := cmd.Flags()
	f.StringVar(&o.methods, "methods", "magnitude,wanda", "methods, separated by commas")
	f.StringVar(&o.patterns, "patterns", "0.5", "sparsities and N:M patterns, separated by commas")
	f.StringVar(&o.out, "out", "", "folder for the reports")
	f.StringVar(&o.calib, "calib", "", "calibration data: text, JSONL or token ids")
	f.StringVar(&o.ppl, "ppl", "", "data to measure the perplexity on")
	f.IntVar(&o.samples, "samples", 128, "calibration windows to draw")
	f.IntVar(&o.seqlen, "seqlen", 0, "tokens of a window, also for --ppl; 0 is 2048, or the model's positions if they are fewer")
	f.BoolVar(&o.join, "join", false, "take the records of a JSONL file as one text")
	o.AddShared(f)
	f.BoolVar(&o.keep, "keep", false, "keep the pruned models, in --out/models")
	f.BoolVar(&o.resume, "resume", false, "continue an interrupted comparison, or add to a finished one")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace the comparison at --out")
	require(cmd, "ppl")
	require(cmd, "out")
	return cmd
}

// plannedRun is one run of a comparison.
type plannedRun struct {
	method contest.Method
	target contest.Target
	flags  pruneFlags
	opts   prune.Options
}

// plan turns the lists into runs, of which all are checked before the first one.
func (o *compareFlags) plan() ([]plannedRun, error) {
	methods, err := contest.ParseMethods(o.methods)
	if err != nil {
		return nil, misread(err)
	}
	targets, err := contest.ParseTargets(o.patterns)
	if err != nil {
		return nil, misread(err)
	}
	var runs []plannedRun
	for _, t := range targets {
		for _, m := range methods {
			r := plannedRun{method: m, target: t, flags: o.pruneFlags}
			r.flags.method, r.flags.pattern, r.flags.sparsity, r.flags.save = m.Metric, t.Pattern, t.Sparsity, "dense"
			r.flags.Allocation, r.flags.Update = m.Allocation, m.Update
			metric, err := metricOf(m.Metric)
			if err != nil {
				return nil, err
			}
			if metric.Needs&prune.Gradients == 0 {
				r.flags.WithoutGradients()
			}
			if r.opts, err = r.flags.options(); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", t.Label, m.Label, err)
			}
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// comparison is what the runs of the verb share.
type comparison struct {
	*job
	path           string
	resume         bool
	calib, windows corpus.Windows
}

func compare(j *job, path string, o compareFlags) (any, error) {
	j.keeps = true
	runs, err := o.plan()
	if err != nil {
		return nil, err
	}
	if err := contest.Check(o.out, path, o.resume, o.overwrite); err != nil {
		return nil, err
	}
	m, err := j.load(path, lm.Options{Stream: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	c := &comparison{job: j, path: path, resume: o.resume}
	all, err := c.begin(m, &o, runs)
	if err != nil {
		return nil, err
	}
	r := &contest.Report{
		Command: contest.Command, Model: path, Calibration: c.calib.Hash, Data: c.windows.Hash, Source: c.windows.Source, SeqLen: c.windows.SeqLen,
	}
	if err := all.Run(r); err != nil {
		return nil, err
	}
	printTable(j.out(), r.Table())
	if r.Resumed > 0 {
		j.note("%d of %d runs were taken from the journal", r.Resumed, len(runs))
	}
	return r, c.write(o.out, r)
}

// begin draws the data and makes the work of the runs.
func (c *comparison) begin(m *lm.Model, o *compareFlags, runs []plannedRun) (*contest.Contest, error) {
	var err error
	for i := 0; i < len(runs) && c.calib.IDs == nil && err == nil; i++ {
		c.calib, err = calibration(c.job, m, runs[i].flags, runs[i].opts)
	}
	if err != nil {
		return nil, err
	}
	if err := fits(m, c.calib); err != nil {
		return nil, err
	}
	if c.windows, err = cutFor(c.job, m, o.ppl, corpus.CutOptions{SeqLen: o.seqlen}); err != nil {
		return nil, err
	}
	model, err := m.Fingerprint(c.ctx)
	if err != nil {
		return nil, err
	}
	shared := sha256.Sum256([]byte(model + c.calib.Hash + c.windows.Hash))
	all := &contest.Contest{
		Dir: o.out, Job: hex.EncodeToString(shared[:]), Keep: o.keep, Fresh: o.overwrite && !o.resume, Note: c.note,
		Dense: func() (contest.Measure, error) { return c.measure(m) },
	}
	for _, r := range runs {
		key, err := prune.Fingerprint(c.ctx, m, c.calib, r.opts)
		if err != nil {
			return nil, err
		}
		all.Work = append(all.Work, contest.Work{
			Method: r.method.Label, Target: r.target.Label, Key: key,
			Do: func(folder string, out *contest.Run) error { return c.run(r, folder, out) },
		})
	}
	return all, nil
}

// measure gives a model's perplexity, with the mean losses of the windows.
func (c *comparison) measure(m *lm.Model) (contest.Measure, error) {
	r, s, err := measureWindows(c.job, m, c.windows)
	if err != nil {
		return contest.Measure{}, err
	}
	out := contest.Measure{Perplexity: r.Perplexity, Stderr: r.Stderr, NLL: r.NLL, Tokens: r.Tokens}
	for i := range s.loss {
		out.Windows = append(out.Windows, s.loss[i]/s.count[i])
	}
	return out, nil
}

// run prunes the model in one way, into a folder, and measures it.
func (c *comparison) run(r plannedRun, folder string, out *contest.Run) error {
	m, err := c.load(c.path, lm.Options{Stream: true})
	if err != nil {
		return err
	}
	defer m.Close()
	r.flags.out, r.flags.resume, r.flags.overwrite = folder, c.resume, true // of what an earlier run left in the folder of models
	p := &pruning{job: c.job, flags: r.flags, opts: r.opts, model: m, calib: c.calib, dense: folder}
	if err := p.begin(); err != nil {
		return err
	}
	done, err := p.prune()
	if err != nil {
		return errors.Join(err, p.stop(err))
	}
	out.Sparsity, out.Overall, out.Seconds, out.Notes = done.Total.Sparsity, done.Total.Overall, done.Times.Total, done.Notes
	pruned, err := c.load(folder, lm.Options{Stream: true})
	if err != nil {
		return err
	}
	out.Measure, err = c.measure(pruned)
	return errors.Join(err, pruned.Close())
}

// write writes the two reports.
func (c *comparison) write(dir string, r *contest.Report) error {
	data, err := c.record(r)
	if err != nil {
		return err
	}
	var page bytes.Buffer
	if err := r.Page().HTML(&page); err != nil {
		return err
	}
	err = errors.Join(writeWhole(filepath.Join(dir, "report.json"), data), writeWhole(filepath.Join(dir, "report.html"), page.Bytes()))
	if err == nil {
		fmt.Fprintf(c.out(), "report.json and report.html are in %s\n", dir)
	}
	return err
}
