package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/tuning"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// pruneReport is the library's report with what the command line adds.
type pruneReport struct {
	*prune.Report
	Out        string                `json:"out"`
	Perplexity *beforeAfter          `json:"perplexity,omitempty"`
	Packed     *checkpoint.Rewritten `json:"packed,omitempty"`
	NonFinite  []checkpoint.Place    `json:"non_finite,omitempty"` // in tensors that are not pruned
}

// beforeAfter is a perplexity on the same data before and after.
type beforeAfter struct {
	Before *pplReport `json:"before"`
	After  *pplReport `json:"after"`
}

// pruneModel prunes one model into a folder.
func pruneModel(j *job, path string, o pruneFlags) (any, error) {
	j.keeps = true
	opts, err := o.options()
	if err != nil {
		return nil, err
	}
	r, err := pruneInto(j, path, o, opts)
	if err != nil {
		return nil, err
	}
	if !j.quiet {
		r.print(j)
	}
	return r, nil
}

func pruneInto(j *job, path string, o pruneFlags, opts prune.Options) (*pruneReport, error) {
	if err := o.checkPlaces(j, path); err != nil {
		return nil, err
	}
	m, err := j.load(path, lm.Options{Stream: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	calib, err := calibration(j, m, o, opts)
	if err != nil {
		return nil, err
	}
	if err := fits(m, calib); err != nil {
		return nil, err
	}
	p := &pruning{job: j, flags: o, opts: opts, model: m, calib: calib, dense: o.out}
	if err := p.begin(); err != nil {
		return nil, err
	}
	r, err := p.run()
	if err != nil {
		return nil, errors.Join(err, p.stop(err))
	}
	return r, nil
}

// calibration draws the windows that a run needs.
func calibration(j *job, m *lm.Model, o pruneFlags, opts prune.Options) (corpus.Windows, error) {
	if !tuning.NeedsData(opts) {
		return corpus.Windows{}, nil
	}
	tok, err := tokenizerOf(m)
	if err != nil {
		return corpus.Windows{}, err
	}
	if o.seqlen == 0 {
		o.seqlen = defaultLength(m)
	}
	return corpus.Sample(j.ctx, o.calib, textOf(tok), corpus.SampleOptions{
		Samples: o.samples, SeqLen: o.seqlen, Seed: j.seed, Join: o.join, VocabSize: m.Config().Vocab,
	})
}

// pruning is one run of the verb.
type pruning struct {
	job   *job
	flags pruneFlags
	opts  prune.Options
	model *lm.Model
	calib corpus.Windows
	dense string // folder of the pruned model; a hidden one where it is packed afterwards
}

// begin opens the outputs, so that what is in the way is found before any work.
func (p *pruning) begin() error {
	fingerprint, err := prune.Fingerprint(p.job.ctx, p.model, p.calib, p.opts)
	if err != nil {
		return err
	}
	overwrite := p.flags.overwrite
	if p.flags.save == "bitmask" {
		if err := checkpoint.Vacant(p.flags.out, p.allow()); err != nil {
			return err
		}
		p.dense, overwrite = filepath.Join(filepath.Dir(p.flags.out), "."+filepath.Base(p.flags.out)+".dense"), true
	}
	journal := filepath.Join(filepath.Dir(p.dense), "."+filepath.Base(p.dense)+".partial", "journal.jsonl")
	if _, err := os.Stat(journal); err == nil && !p.flags.resume {
		p.job.note("%s: the unfinished output of an interrupted run is discarded; --resume would have continued it", p.flags.out)
	}
	p.opts.Out, err = p.model.NewSaver(p.dense, lm.SaveOptions{Overwrite: overwrite, Resume: p.flags.resume, Fingerprint: fingerprint})
	if err != nil || p.flags.masks == "" {
		return err
	}
	p.opts.Masks, err = prune.NewMasks(p.flags.masks, p.model, prune.MaskOptions{Overwrite: p.flags.overwrite, Resume: p.flags.resume})
	if err != nil && p.flags.resume {
		return errors.Join(err, p.opts.Out.Suspend())
	}
	if err != nil {
		return errors.Join(err, p.opts.Out.Abort())
	}
	return nil
}

func (p *pruning) run() (*pruneReport, error) {
	var before *pplReport
	cut := corpus.CutOptions{SeqLen: p.flags.seqlen}
	if p.flags.ppl != "" {
		w, err := cutFor(p.job, p.model, p.flags.ppl, cut)
		if err != nil {
			return nil, err
		}
		if before, err = measure(p.job, p.model, w); err != nil {
			return nil, err
		}
	}
	r, err := p.prune()
	if err != nil {
		return nil, err
	}
	if before != nil {
		after, err := measureFolder(p.job, p.dense, p.flags.ppl, cut)
		if err != nil {
			return nil, err
		}
		r.Perplexity = &beforeAfter{before, after}
	}
	if p.flags.save == "bitmask" {
		if r.Packed, err = p.pack(); err != nil {
			return nil, err
		}
	}
	return r, err
}

// prune does the work between the outputs' beginning and their end.
func (p *pruning) prune() (*pruneReport, error) {
	bar := p.job.bars()
	defer bar.end()
	p.opts.Events.Step = p.steps(bar)
	done, err := prune.Model(p.job.ctx, p.model, p.calib, p.opts)
	bar.end()
	if err != nil {
		return nil, err
	}
	done.Version = compress.Version()
	r := &pruneReport{Report: done, Out: p.flags.out}
	return r, p.remarks(r)
}

func measureFolder(j *job, path, data string, o corpus.CutOptions) (*pplReport, error) {
	m, err := j.load(path, lm.Options{Stream: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	w, err := cutFor(j, m, data, o)
	if err != nil {
		return nil, err
	}
	return measure(j, m, w)
}
