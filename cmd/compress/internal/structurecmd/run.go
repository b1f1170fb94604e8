// Package structurecmd runs the part of the verb prune that takes whole layers out of a model.
package structurecmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/structure"
)

// Options are the settings of a run, as the command line has them. What it shares with pruning of single weights is
// given by the caller.
type Options struct {
	// "24" stay, or "25%" go; empty: all stay
	Layers, FFN, Heads, KVHeads, Hidden, Experts string

	DropLayers, KeepLayers string // "3,5,20-22" go, or stay; empty: they are chosen

	LayerScore  string // how layers are chosen
	WidthScore  string // how neurons, heads and channels are
	ExpertScore string // how experts are
	NoRestore   bool
	Generations int
	Offspring   int

	Out       string
	PPL       string // data for a perplexity before and after; empty: none
	Resume    bool
	Overwrite bool
	cli.Calibration
}

// Shares are the flags that say how much stays, or the share that goes.
var Shares = []string{"layers", "ffn", "heads", "kv-heads", "hidden", "experts"}

// Names are the flags that Add defines.
var Names = slices.Concat(Shares, []string{
	"drop-layers", "keep-layers",
	"layer-score", "width-score", "expert-score", "no-restore", "generations", "offspring",
})

// Add defines the flags.
func (o *Options) Add(f *pflag.FlagSet) {
	f.StringVar(&o.Layers, "layers", "",
		"`N` leave out whole decoder layers: 24 stay, or 25% go; the result is an ordinary smaller model")
	f.StringVar(&o.DropLayers, "drop-layers", "",
		"`LIST` leave out these decoder layers, counted from 0, such as 3,5,20-22, instead of choosing; "+
			"needs no --calib")
	f.StringVar(&o.KeepLayers, "keep-layers", "", "`LIST` leave out all decoder layers but these")
	f.StringVar(&o.FFN, "ffn", "", "`N` neurons of every MLP and expert that stay, or 25% to leave out a quarter")
	f.StringVar(&o.Heads, "heads", "", "`N` attention heads of every layer that stay, or 25% to leave out a quarter")
	f.StringVar(&o.KVHeads, "kv-heads", "",
		"`N` key/value heads that stay with all heads that share them, or 25% to leave out a quarter")
	f.StringVar(&o.Hidden, "hidden", "", "`N` channels of the hidden state that stay, or 25% to leave out a quarter")
	f.StringVar(&o.Experts, "experts", "",
		"`N` experts of every mixture that stay, or 25% to leave out a quarter; tokens go to as many as before")
	f.StringVar(&o.ExpertScore, "expert-score", "",
		"`NAME` which experts go: "+strings.Join(structure.ExpertScores(), ", ")+" (default: "+structure.REAP+")")
	f.StringVar(&o.WidthScore, "width-score", "",
		"`NAME` which neurons, heads and channels go: "+strings.Join(structure.WidthScores(), ", ")+", any method of "+
			"--method, summed over what goes together, or a formula of whole neurons or heads, as expr: or as the "+
			"tree:FILE that search --structure writes (default: "+structure.WandaSP+")")
	f.BoolVar(&o.NoRestore, "no-restore", false,
		"leave the matrices behind neurons and heads as they are, instead of fitting what stays to what they gave")
	f.StringVar(&o.LayerScore, "layer-score", "",
		"`NAME` which layers go: "+strings.Join(structure.Ways(), ", ")+", or a formula of whole layers as expr: or "+
			"tree:FILE (default: "+structure.Greedy+")")
	f.IntVar(&o.Generations, "generations", 0,
		"`N` --layer-score search and --allocation search: generations (default: 20 of layers, 30 of sparsities)")
	f.IntVar(&o.Offspring, "offspring", 0,
		"`N` --layer-score search and --allocation search: candidates in a generation (default: 16 and 8)")
}

// Any reports whether something is to be taken out as a whole.
func (o *Options) Any() bool {
	return o.Layers != "" || o.DropLayers != "" || o.KeepLayers != "" ||
		o.FFN != "" || o.Heads != "" || o.KVHeads != "" || o.Hidden != "" || o.Experts != ""
}

// options turns flags into the library's options.
func (o *Options) options() (structure.Options, error) {
	s := structure.Options{
		By: o.LayerScore, Score: o.WidthScore, ExpertScore: o.ExpertScore, NoRestore: o.NoRestore,
		Generations: o.Generations, Offspring: o.Offspring,
	}
	shares := []struct {
		flag, text string
		into       *structure.Share
	}{
		{"layers", o.Layers, &s.Layers},
		{"ffn", o.FFN, &s.FFN},
		{"heads", o.Heads, &s.Heads},
		{"kv-heads", o.KVHeads, &s.KVHeads},
		{"hidden", o.Hidden, &s.Hidden},
		{"experts", o.Experts, &s.Experts},
	}
	for _, x := range shares {
		if x.text == "" {
			continue
		}
		share, err := structure.ParseShare(x.text)
		if err != nil {
			return s, fmt.Errorf("--%s: %w", x.flag, err)
		}
		*x.into = share
	}

	lists := []struct {
		flag, text string
		into       *[]int
	}{
		{"drop-layers", o.DropLayers, &s.DropLayers},
		{"keep-layers", o.KeepLayers, &s.KeepLayers},
	}
	for _, x := range lists {
		if x.text == "" {
			continue
		}
		list, err := structure.ParseLayers(x.text)
		if err != nil {
			return s, fmt.Errorf("--%s: %w", x.flag, err)
		}
		*x.into = list
	}

	if err := o.CheckCalibration(); err != nil {
		return s, err
	}
	switch {
	case o.Calib == "" && s.NeedsCalibration():
		return s, cli.Usagef("no calibration data, by which it is decided what goes (HINT: give --calib FILE)")
	case o.Calib != "" && !s.NeedsCalibration():
		return s, cli.Usagef("--calib has no effect where the layers are named and nothing else goes")
	}
	return s, s.Validate()
}

// Check finds what is wrong with flags by themselves.
func Check(o Options) error {
	_, err := o.options()
	return err
}

// Report is what the library chose with what the command line adds.
type Report struct {
	*structure.Plan
	Model      prune.ModelInfo         `json:"model"`       // before
	Data       *corpus.Windows         `json:"calibration"` // nil: nothing was measured
	Out        string                  `json:"out"`
	Before     Extent                  `json:"before"`
	After      Extent                  `json:"after"`
	Perplexity *perplexity.BeforeAfter `json:"perplexity,omitempty"`
	// Less is the perplexity of the whole model when a token goes to an expert less: what taking experts out has to
	// beat.
	Less    *perplexity.Report `json:"perplexity_with_an_expert_less,omitempty"`
	Notes   []string           `json:"notes"`
	Seconds float64            `json:"seconds"` // of the choice
}

// Extent is how large a model is.
type Extent struct {
	Layers     int   `json:"layers"`
	Parameters int64 `json:"parameters"`
	Bytes      int64 `json:"bytes"` // of its weights
}

func extent(m *lm.Model) Extent { return Extent{m.Blocks(), m.NumParameters(), m.DataSize()} }

// Names of the display.
const (
	stageBefore = "perplexity before"
	stageLess   = "perplexity with an expert less"
	stageAfter  = "perplexity after"
)

// Model makes a smaller model of one and prints what became of it.
func Model(j *cli.Job, path string, o Options) (*Report, error) {
	r, err := into(j, path, o)
	if err != nil {
		return nil, err
	}
	if err := j.WriteCard(o.Out, path, r.card(path)); err != nil {
		return nil, err
	}
	r.print(j)
	return r, nil
}

// card is what the README.md of the smaller model says.
func (r *Report) card(base string) card.Card {
	c := card.Card{
		Base: []string{base}, Library: card.Transformers, Tags: []string{"compress", "pruned"}, Title: "Smaller model",
		Text: fmt.Sprintf("A language model of which whole parts were taken out, made with compress.\n\n`%s` "+
			"says which.",
			prune.ManifestFile),
		Figures: []card.Row{
			{Name: "decoder layers", Values: []string{fmt.Sprint(r.Before.Layers), fmt.Sprint(r.After.Layers)}},
			{Name: "parameters", Values: []string{
				cli.Thousands(r.Before.Parameters), cli.Thousands(r.After.Parameters),
			}},
		},
		Before: true,
	}
	if r.Data != nil {
		c.Data = append(c.Data, perplexity.DataRow(r.Data))
	}
	r.Perplexity.Tell(&c)
	return c
}

// work is one run.
type work struct {
	Options
	job   *cli.Job
	model *lm.Model
	calib corpus.Windows
	opts  structure.Options
	done  *cli.Journal[float64]
	made  bool // the output is that of an earlier run
}

func into(j *cli.Job, path string, o Options) (*Report, error) {
	opts, err := o.options()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(cli.Apart([2]string{"out", o.Out}, [2]string{"report", j.ReportTo()}),
		stage.Apart(path, o.Out)); err != nil {
		return nil, err
	}
	if err := openmodel.OnlyWeights(path); err != nil {
		return nil, err
	}

	// Layers that run again and again are better in memory.
	again := !opts.Layers.Zero() && opts.By != structure.Influence && opts.By != structure.Angular
	m, err := j.Load(path, lm.Options{Stream: !again})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	opts.Seed = j.Seed
	w := &work{Options: o, job: j, model: m, opts: opts}
	if opts.NeedsCalibration() {
		if w.calib, err = o.Windows(j, m); err != nil {
			return nil, err
		}
	}
	if err := structure.Check(m, w.calib, opts); err != nil {
		return nil, err
	}

	return w.run()
}

// less measures the model with one expert of a token less, which takes a number in its configuration.
func (w *work) less(r *Report, text corpus.Windows) error {
	k := w.model.Config().TopK
	if w.opts.Experts.Zero() || k < 2 {
		return nil
	}

	m, err := w.job.Load(w.model.Path(), lm.Options{Stream: true, TopK: k - 1})
	if err != nil {
		return err
	}
	defer m.Close()
	r.Less, _, err = perplexity.Windows(w.job, stageLess, m, text)
	return err
}

func (w *work) journalPath() string { return w.Out + ".layers.journal" }

// run chooses and writes.
func (w *work) run() (*Report, error) {
	ctx := w.job.Ctx
	job, err := structure.Fingerprint(ctx, w.model, w.calib, w.opts)
	if err != nil {
		return nil, err
	}
	if err := w.vacant(job); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(w.Out)), 0o777); err != nil { // as the output's own writer does
		return nil, err
	}
	if w.done, err = cli.Measurements(w.journalPath(), w.Resume, w.Overwrite, "prune", job); err != nil {
		return nil, err
	}
	defer w.done.Close()

	r := &Report{Out: w.Out, Before: extent(w.model)}
	if w.opts.NeedsCalibration() {
		r.Data = &w.calib
	}
	r.Model = prune.ModelInfo{Path: w.model.Path(), Type: w.model.Config().ModelType, Parameters: r.Before.Parameters}
	if r.Model.Fingerprint, err = w.model.Fingerprint(ctx); err != nil {
		return nil, err
	}

	cut := corpus.CutOptions{SeqLen: w.SeqLen}
	if w.PPL != "" {
		text, err := w.job.Cut(w.model, w.PPL, cut)
		if err != nil {
			return nil, err
		}
		before, _, err := perplexity.Windows(w.job, stageBefore, w.model, text)
		if err != nil {
			return nil, err
		}
		r.Perplexity = &perplexity.BeforeAfter{Before: before}
		if err := w.less(r, text); err != nil {
			return nil, err
		}
	}

	start := w.job.Elapsed()
	if err := w.choose(r, job); err != nil {
		return nil, err
	}
	r.Seconds = (w.job.Elapsed() - start).Seconds()
	if err := w.write(r, job); err != nil {
		return nil, err
	}
	if r.Perplexity != nil {
		if r.Perplexity.After, err = perplexity.Folder(w.job, stageAfter, w.Out, w.PPL, cut); err != nil {
			return nil, err
		}
		if err := r.Perplexity.Keep(filepath.Join(w.Out, prune.ManifestFile)); err != nil {
			return nil, err
		}
	}

	return r, os.Remove(w.journalPath())
}

// vacant finds what is in the way before hours of work: with --resume anything but the complete output of this run.
func (w *work) vacant(job string) error {
	var rule stage.Rule
	switch {
	case w.Overwrite:
		rule = stage.Replaceable(w.model.Path())
	case w.Resume:
		rule = func(dir string) error {
			if stage.Made(dir, job) {
				return nil
			}
			return fmt.Errorf("%w, and the source or the options have changed since it was made", stage.ErrExists)
		}
	}
	return stage.Vacant(w.Out, rule)
}

// choose decides what stays, or takes it from the output of an earlier run.
func (w *work) choose(r *Report, job string) (err error) {
	if w.made = w.Resume && stage.Made(w.Out, job); w.made {
		r.Plan, err = structure.Recall(w.model, w.calib, w.opts, w.Out)
		return err
	}

	bar := w.job.Bars()
	defer bar.End()
	o := w.opts
	o.Known = func(key string) (float64, bool) { v, ok := w.done.Done[key]; return v, ok }
	o.Note = w.done.Add
	o.Progress = bar.Show
	r.Plan, err = structure.Choose(w.job.Ctx, w.model, w.calib, o)
	return err
}

// write makes the smaller model.
func (w *work) write(r *Report, job string) error {
	ctx := w.job.Ctx
	r.Notes = append([]string{}, r.Plan.Notes...)
	out, err := w.model.NewSaver(w.Out, lm.SaveOptions{
		Overwrite: w.Overwrite, Resume: w.Resume, Fingerprint: job, Cut: r.Cut,
	})
	if err != nil {
		return err
	}
	if w.made != out.Complete() { // what was recalled does not say which parts stay
		return errors.Join(fmt.Errorf("%s: it has changed meanwhile", w.Out), out.Suspend())
	}

	if err := w.fill(r, out); err != nil {
		if stage.Resumable(ctx, err) {
			return errors.Join(err, out.Suspend())
		}
		return errors.Join(err, out.Abort())
	}

	small, err := w.job.Load(w.Out, lm.Options{Stream: true})
	if err != nil {
		return err
	}
	defer small.Close()
	r.After = extent(small)
	if text := cli.Beyond(w.model, w.calib.SeqLen); text != "" {
		r.Notes = append(r.Notes, text)
	}
	if left := stage.NotCopied(w.model.Path(), w.Out); len(left) > 0 {
		r.Notes = append(r.Notes,
			fmt.Sprintf("%d files beside the weights were not copied: %s", len(left), strings.Join(left, ", ")))
	}

	return nil
}

// fill restores what is left and writes it.
func (w *work) fill(r *Report, out *lm.Saver) error {
	ctx := w.job.Ctx
	if w.made {
		r.Notes = append(r.Notes, "nothing was left to do: the smaller model is that of an earlier run")
		return nil
	}

	bar := w.job.Bars()
	r.Options.Progress = bar.Show
	err := structure.Merge(ctx, w.model, r.Plan, out)
	if err == nil {
		err = structure.Restore(ctx, w.model, w.calib, r.Plan, out)
	}
	bar.End()
	if err != nil {
		return err
	}

	manifest, err := r.Manifest(ctx, w.model, w.calib)
	if err != nil {
		return err
	}
	if err := out.AddFile(prune.ManifestFile, manifest); err != nil {
		return err
	}
	return out.Finish(ctx)
}

// print shows what went and what is left.
func (r *Report) print(j *cli.Job) {
	t := &report.Table{Columns: report.Columns("", "layers", "parameters", "size")}
	t.Add("before", r.Before.Layers, r.Before.Parameters, cli.Size(r.Before.Bytes))
	t.Add("after", r.After.Layers, r.After.Parameters, cli.Size(r.After.Bytes))
	var notes []string
	if r.Depth != nil {
		notes = append(notes, r.depth())
	}
	if x := r.Plan.Experts; x != nil {
		text := fmt.Sprintf("%s: %d of %d experts stay", x.By, x.Keep, x.Of)
		if x.By == structure.Clusters {
			text += ", as means of those that give alike"
		}
		if x.Unreached > 0 {
			text += fmt.Sprintf("; %d were reached by no token of the text", x.Unreached)
		}
		notes = append(notes, text)
	}
	if r.Width != nil {
		notes = append(notes, r.width())
	}
	t.Note = strings.Join(notes, "; ")
	j.Table(t)

	r.Perplexity.Print(j)
	if r.Less != nil {
		j.Printf("for comparison, all experts and %d of a token instead of %d (a number in config.json): %.4f\n",
			r.Plan.Experts.TopK-1, r.Plan.Experts.TopK, r.Less.Perplexity)
	}
	j.Printf("written to %s in %.1f s, %.1f of them choosing\n", r.Out, j.Elapsed().Seconds(), r.Seconds)
	for _, n := range r.Notes {
		j.Note("%s", n)
	}
}

// depth says which layers went.
func (r *Report) depth() string {
	d := r.Depth
	text := fmt.Sprintf("%s: layers %s went", d.By, joined(d.Dropped))
	if n := len(d.Loss); n > 0 {
		text += fmt.Sprintf("; loss on the calibration text without them %.4f nats a token", d.Loss[n-1])
	}
	if len(d.KL) == 2 {
		text += fmt.Sprintf("; the search brought the divergence from the whole model from %.4f to %.4f nats",
			d.KL[0], d.KL[1])
	}
	return text
}

// width says how much of every layer stays.
func (r *Report) width() string {
	w := r.Width
	var parts []string
	kinds := []struct {
		name string
		kept *structure.Kept
	}{
		{"neurons", w.Inner},
		{"neurons of an expert", w.ExpertInner},
		{"shared neurons", w.SharedInner},
		{"heads", w.Heads},
		{"key/value heads", w.KVHeads},
		{"channels", w.Hidden},
	}
	for _, k := range kinds {
		if k.kept != nil && k.kept.Keep != k.kept.Of {
			parts = append(parts, fmt.Sprintf("%d of %d %s stay", k.kept.Keep, k.kept.Of, k.name))
		}
	}

	text := w.By + ": " + strings.Join(parts, ", ")
	before := 0.0
	after := 0.0
	reached := 0
	for _, x := range w.Restored {
		before += x.Cut
		after += x.Updated
		if !x.Unreached {
			reached++
		}
	}
	if n := float64(reached); n > 0 {
		text += fmt.Sprintf("; relative squared error of the outputs behind them %.4f, %.4f restored",
			before/n, after/n)
	}
	if n := len(w.Restored) - reached; n > 0 {
		text += fmt.Sprintf("; %d matrices of experts that no token of the text reached are not restored", n)
	}

	return text
}

func joined(list []int) string {
	words := make([]string, len(list))
	for i, l := range list {
		words[i] = fmt.Sprint(l)
	}
	return strings.Join(words, ", ")
}
