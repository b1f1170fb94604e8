// Package prunecmd runs the verb prune: one model into a folder, or several ways of pruning side by side.
package prunecmd

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/quantize"
)

// Report is the library's report with what the command line adds.
type Report struct {
	*prune.Report
	Out        string                  `json:"out"`
	Perplexity *perplexity.BeforeAfter `json:"perplexity,omitempty"`
	Packed     *checkpoint.Conversion  `json:"packed,omitempty"`
	LowRank    *LowRankReport          `json:"low_rank,omitempty"`
	Imatrix    string                  `json:"imatrix_out,omitempty"` // importance matrix that was written
	NonFinite  []checkpoint.Place      `json:"non_finite,omitempty"`  // in tensors that are not pruned
}

// Model prunes one model into a folder and prints what became of it.
func Model(j *cli.Job, path string, o Options) (*Report, error) {
	r, err := Into(j, path, o)
	if err != nil {
		return nil, err
	}
	if err := j.WriteCard(o.Out, path, r.card(path)); err != nil {
		return nil, err
	}
	r.print(j)
	return r, nil
}

// Check finds what is wrong with flags by themselves.
func Check(o Options) error {
	_, err := o.options()
	return err
}

// Into prunes one model into a folder.
func Into(j *cli.Job, path string, o Options) (*Report, error) {
	opts, err := o.options()
	if err != nil {
		return nil, err
	}

	if err := o.checkPlaces(j, path); err != nil {
		return nil, err
	}

	opts.Gradients.Keep = o.SaveTo
	if err := openmodel.OnlyWeights(path); err != nil {
		return nil, err
	}

	m, err := j.Load(path, lm.Options{Stream: true, Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	calib, err := calibration(j, m, o, opts)
	if err != nil {
		return nil, err
	}

	done, err := o.openJournal(j, m, calib, &opts)
	if err != nil {
		return nil, err
	}
	if done != nil {
		defer done.Close()
	}

	p := &pruning{job: j, flags: o, opts: opts, model: m, calib: calib, dense: o.Out}
	if err := p.importance(); err != nil {
		return nil, err
	}
	if err := p.begin(); err != nil {
		return nil, err
	}

	r, err := p.run()
	if err != nil {
		return nil, errors.Join(err, p.opts.Stop(err))
	}

	if done != nil {
		err = os.Remove(o.journalPath())
	}
	return r, err
}

// calibration draws the windows that a run needs.
func calibration(j *cli.Job, m *lm.Model, o Options, opts prune.Options) (corpus.Windows, error) {
	if !opts.NeedsCalibration() {
		return corpus.Windows{}, nil
	}
	return o.Windows(j, m)
}

// journalPath is where a search for an allocation notes what it has measured, until the output is complete.
func (o *Options) journalPath() string { return o.Out + ".search.journal" }

// openJournal opens the journal of a search, with --resume that of an interrupted one, and lets the search use it; nil
// without a search.
func (o *Options) openJournal(j *cli.Job, m *lm.Model, calib corpus.Windows, opts *prune.Options) (
	*cli.Journal[float64], error,
) {
	if opts.Allocation.Name != prune.Search {
		return nil, nil
	}

	opts.Allocation.Seed = j.Seed
	job, err := prune.Fingerprint(j.Ctx, m, calib, *opts)
	if err != nil {
		return nil, err
	}
	done, err := cli.Measurements(o.journalPath(), o.Resume, o.Overwrite, "prune", job)
	if err != nil {
		return nil, err
	}
	opts.Known = func(key string) (float64, bool) { v, ok := done.Done[key]; return v, ok }
	opts.Note = done.Add
	return done, nil
}

// noteSearch says what a search for an allocation takes of the disk.
func noteSearch(j *cli.Job, bytes int64) {
	if bytes > 0 {
		j.Note("the search keeps %s in %s while it runs, a byte a weight", cli.Size(bytes), os.TempDir())
	}
}

// pruning is one run of the verb.
type pruning struct {
	job   *cli.Job
	flags Options
	opts  prune.Options
	model *lm.Model
	calib corpus.Windows
	dense string // folder of the pruned model; a hidden one where it is packed afterwards

	inputs  map[string]quantize.Input // what is measured for an importance matrix
	replace bool                      // an adapter that is there may be replaced
}

// begin checks the inputs and opens the outputs, so that what is amiss or in the way is found before any work.
func (p *pruning) begin() error {
	if err := prune.Check(p.job.Ctx, p.model, p.calib, p.opts); err != nil {
		return err
	}

	if err := p.beginFactors(); err != nil {
		return err
	}

	overwrite := p.flags.Overwrite
	if p.flags.Save == "bitmask" {
		if err := stage.Vacant(p.flags.Out, p.allow()); err != nil {
			return err
		}
		p.dense, overwrite = filepath.Join(filepath.Dir(p.flags.Out), "."+filepath.Base(p.flags.Out)+".dense"), true
	}

	journal := filepath.Join(filepath.Dir(p.dense), "."+filepath.Base(p.dense)+".partial", "journal.jsonl")
	if _, err := os.Stat(journal); err == nil && !p.flags.Resume {
		p.job.Note("%s: the unfinished output of an interrupted run is discarded; --resume would have continued it",
			p.flags.Out)
	}

	err := p.opts.Begin(p.job.Ctx, p.model, p.calib, p.dense,
		lm.SaveOptions{Overwrite: overwrite, Resume: p.flags.Resume})
	if err != nil || p.flags.Masks == "" {
		return err
	}

	p.opts.Masks, err = prune.NewMasks(p.flags.Masks, p.model,
		prune.MaskOptions{Overwrite: p.flags.Overwrite, Resume: p.flags.Resume})
	if err != nil && p.flags.Resume {
		return errors.Join(err, p.opts.Out.Suspend())
	}

	if err != nil {
		return errors.Join(err, p.opts.Out.Abort())
	}

	return nil
}

func (p *pruning) run() (*Report, error) {
	var before *perplexity.Report
	var w corpus.Windows
	cut := corpus.CutOptions{SeqLen: p.flags.SeqLen}
	if p.flags.PPL != "" {
		var err error
		if w, err = p.job.Cut(p.model, p.flags.PPL, cut); err != nil {
			return nil, err
		}
	}

	if !p.opts.Out.Complete() {
		noteSearch(p.job, p.opts.SearchDisk(p.model))
	}
	p.job.Announce(stages(p.model, p.opts, p.calib, w)...)
	if !p.flags.Resume { // how much is left of a run that is resumed, the first progress says
		if err := p.forecast(w); err != nil {
			return nil, err
		}
	}

	if p.flags.PPL != "" {
		var err error
		if before, _, err = perplexity.Windows(p.job, stageBefore, p.model, w); err != nil {
			return nil, err
		}
	}

	r, err := p.prune()
	if err != nil {
		return nil, err
	}

	if err := p.writeAdapter(r); err != nil {
		return nil, err
	}

	if before != nil {
		after, err := perplexity.Adapted(p.job, stageAfter, p.dense, p.flags.Adapter, p.flags.PPL, cut)
		if err != nil {
			return nil, err
		}
		r.Perplexity = &perplexity.BeforeAfter{Before: before, After: after}
		if err := r.Perplexity.Keep(filepath.Join(p.dense, prune.ManifestFile)); err != nil {
			return nil, err
		}
	}

	if p.flags.Save == "bitmask" {
		if r.Packed, err = p.pack(); err != nil {
			return nil, err
		}
	}

	return r, err
}

// forecast says what the run will take; w is the text of a perplexity, if one is measured.
func (p *pruning) forecast(w corpus.Windows) error {
	if len(p.calib.IDs) > 0 {
		return p.job.Forecast(p.model, p.calib, memory(p.model, p.opts, p.calib), true)
	}
	return p.job.Forecast(p.model, w, cli.PassMemory(p.model, w.SeqLen, w.SeqLen), false)
}

// prune does the work between the outputs' beginning and their end.
func (p *pruning) prune() (*Report, error) {
	bar := p.job.Bars()
	defer bar.End()

	p.opts.Events.Step = steps(bar, p.model.Blocks(), p.opts)
	done, err := prune.Model(p.job.Ctx, p.model, p.calib, p.opts)
	bar.End()
	if err != nil {
		return nil, err
	}

	done.Version = compress.Version()
	r := &Report{Report: done, Out: p.flags.Out, Imatrix: p.flags.ImatrixOut}
	if err := p.writeImportance(); err != nil {
		return nil, err
	}
	return r, p.remarks(r)
}
