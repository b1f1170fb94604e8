package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
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
	f.BoolVar(&o.keep, "keep", false, "keep the pruned models, in --out/"+contest.ModelsFolder)
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
	key    string
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

// comparison is one run of the verb.
type comparison struct {
	*job
	flags   compareFlags
	path    string
	runs    []plannedRun
	calib   corpus.Windows
	windows corpus.Windows
	journal *contest.Journal
	report  contest.Report
}

func compare(j *job, path string, o compareFlags) (any, error) {
	j.keeps = true
	runs, err := o.plan()
	if err != nil {
		return nil, err
	}
	if err := o.checkFolder(path); err != nil {
		return nil, err
	}
	c := &comparison{job: j, flags: o, path: path, runs: runs}
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.journal.Close()
	for i := range c.runs {
		if err := c.step(i); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", c.runs[i].target.Label, c.runs[i].method.Label, err)
		}
	}
	c.report.Judge()
	printTable(j.out(), c.report.Table())
	if c.report.Resumed > 0 {
		j.note("%d of %d runs were taken from the journal", c.report.Resumed, len(c.runs))
	}
	return c.report, c.write()
}

// checkFolder looks at the output's place: nothing, an empty folder, or with --resume or --overwrite an earlier comparison.
func (o *compareFlags) checkFolder(model string) error {
	if err := checkpoint.Apart(model, o.out); err != nil {
		return err
	}
	var allow func(dir string) error
	if o.resume || o.overwrite {
		allow = func(dir string) error {
			if contest.IsContest(dir) {
				return nil
			}
			return fmt.Errorf("%w: it is not that of a comparison alone (HINT: choose another --out)", checkpoint.ErrTarget)
		}
	}
	if err := checkpoint.Vacant(o.out, allow); err != nil {
		return err
	}
	if o.overwrite && !o.resume {
		if err := contest.Clear(o.out); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(o.out, contest.ModelsFolder), 0o777)
}

// begin draws the data, opens the journal and measures the dense model.
func (c *comparison) begin() error {
	m, err := c.load(c.path, lm.Options{Stream: true})
	if err != nil {
		return err
	}
	defer m.Close()
	for i := range c.runs {
		if c.calib.IDs == nil {
			if c.calib, err = calibration(c.job, m, c.runs[i].flags, c.runs[i].opts); err != nil {
				return err
			}
		}
	}
	if err := fits(m, c.calib); err != nil {
		return err
	}
	if c.windows, err = cutFor(c.job, m, c.flags.ppl, corpus.CutOptions{SeqLen: c.flags.seqlen}); err != nil {
		return err
	}
	for i := range c.runs {
		if c.runs[i].key, err = prune.Fingerprint(c.ctx, m, c.calib, c.runs[i].opts); err != nil {
			return err
		}
	}
	model, err := m.Fingerprint(c.ctx)
	if err != nil {
		return err
	}
	job := sha256.Sum256([]byte(model + c.calib.Hash + c.windows.Hash))
	if c.journal, err = contest.OpenJournal(c.flags.out, hex.EncodeToString(job[:])); err != nil {
		return err
	}
	c.report = contest.Report{
		Command: contest.Command, Model: c.path, Calibration: c.calib.Hash, Data: c.windows.Hash, Source: c.windows.Source, SeqLen: c.windows.SeqLen,
	}
	dense, found := c.journal.Find(denseKey)
	if !found {
		if dense.Measure, err = c.measure(m); err != nil {
			return errors.Join(err, c.journal.Close())
		}
		dense.Method, dense.Key = "dense", denseKey
		if err := c.journal.Add(dense); err != nil {
			return errors.Join(err, c.journal.Close())
		}
	}
	c.report.Dense = dense.Measure
	return nil
}

// denseKey is the place of the dense model in the journal.
const denseKey = "dense"

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

// step takes a run from the journal, or runs it.
func (c *comparison) step(i int) error {
	r := &c.runs[i]
	r.flags.out = filepath.Join(c.flags.out, contest.ModelsFolder, contest.Folder(r.target.Label, r.method.Label, r.key))
	if done, ok := c.journal.Find(r.key); ok {
		if _, err := os.Stat(r.flags.out); err == nil || !c.flags.keep {
			done.Method, done.Target = r.method.Label, r.target.Label
			c.report.Runs = append(c.report.Runs, done)
			c.report.Resumed++
			return nil
		}
	}
	c.note("%d of %d: %s, %s", i+1, len(c.runs), r.target.Label, r.method.Label)
	done, err := c.run(r)
	if err != nil {
		return err
	}
	c.report.Runs = append(c.report.Runs, done)
	return c.journal.Add(done)
}

// run prunes the model in one way and measures it.
func (c *comparison) run(r *plannedRun) (contest.Run, error) {
	out := contest.Run{Method: r.method.Label, Target: r.target.Label, Key: r.key}
	m, err := c.load(c.path, lm.Options{Stream: true})
	if err != nil {
		return out, err
	}
	defer m.Close()
	r.flags.overwrite = true // of what an earlier run left in the folder of models
	p := &pruning{job: c.job, flags: r.flags, opts: r.opts, model: m, calib: c.calib, dense: r.flags.out}
	if err := p.begin(); err != nil {
		return out, err
	}
	done, err := p.prune()
	if err != nil {
		return out, errors.Join(err, p.stop(err))
	}
	out.Sparsity, out.Overall, out.Seconds, out.Notes = done.Total.Sparsity, done.Total.Overall, done.Times.Total, done.Notes
	pruned, err := c.load(p.dense, lm.Options{Stream: true})
	if err != nil {
		return out, err
	}
	out.Measure, err = c.measure(pruned)
	if err = errors.Join(err, pruned.Close()); err != nil {
		return out, err
	}
	if c.flags.keep {
		out.Model = p.dense
		return out, nil
	}
	return out, os.RemoveAll(p.dense)
}

// write writes the two reports.
func (c *comparison) write() error {
	os.Remove(filepath.Join(c.flags.out, contest.ModelsFolder)) // if nothing was kept
	data, err := c.record(c.report)
	if err != nil {
		return err
	}
	var page bytes.Buffer
	if err := c.report.Page().HTML(&page); err != nil {
		return err
	}
	err = errors.Join(writeWhole(filepath.Join(c.flags.out, "report.json"), data), writeWhole(filepath.Join(c.flags.out, "report.html"), page.Bytes()))
	if err == nil {
		fmt.Fprintf(c.out(), "report.json and report.html are in %s\n", c.flags.out)
	}
	return err
}
