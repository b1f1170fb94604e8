// Package editcmd binds the verb edit to package edit: it opens the model and the edits, has them written or taken out,
// prints what came of it, and draws causal traces.
package editcmd

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge/mediate"
)

// Options are the flags of the verb.
type Options struct {
	edit.FolderOptions
	Edits       string // file
	Count       int    // edits of the file; 0: all
	Counted     bool   // whether --count was given
	SkipInvalid bool   // records with faults are left out
	HParams     string // file
	Decode      bool   // quantised matrices become floats when they are loaded

	idle []string // keys of HParams that the method does not read
}

// Result is the report of the verb.
type Result struct {
	Edits   string        `json:"edits"`
	Out     string        `json:"out"`
	Skipped []edit.Remark `json:"skipped,omitempty"` // faulty records, by their place in the file
	edit.FolderReport
}

// Finished is the report of a run that is continued though it was complete.
type Finished struct {
	Method   string `json:"method"`
	Edits    string `json:"edits"`
	Out      string `json:"out"`
	Finished bool   `json:"finished_before"`
}

// errMediated refuses a folder whose experts the output would lack.
var errMediated = failure.New("a mediated folder: its experts would be left behind",
	"write the facts into the base and the experts it was merged from, or give editeval a plan with its experts")

// Check finds what is wrong with flags by themselves.
func Check(o Options) error {
	if o.Count < 0 || o.Batch < 0 || o.Texts < 0 || o.StatsTokens < 1 {
		return cli.Usagef("--count, --batch and --texts must not be negative, --stats-tokens not below 1")
	}
	if o.Counted && o.Count == 0 {
		return cli.Usagef("--count 0 writes nothing (HINT: leave --count out to write all edits of the file)")
	}
	return o.Validate()
}

// Run edits a model.
func Run(j *cli.Job, path string, o Options) (any, error) {
	if err := Check(o); err != nil {
		return nil, err
	}
	if err := o.FolderOptions.Check(path); err != nil {
		return nil, err
	}

	set, err := o.read(j)
	if err != nil {
		return nil, err
	}

	m, err := o.open(j, path)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if len(o.idle) > 0 {
		j.Remark("%s: %s does not read %s", o.HParams, o.Method, strings.Join(o.idle, ", "))
	}

	bars := j.Bars()
	defer bars.End()

	o.Seed = j.Seed
	o.Note = func(text string) { j.Note("%s", text) }
	o.Progress = bars.Show
	o.Card = func(r *edit.FolderReport) []byte { return j.Card(path, editCard(path, o.Edits, r)) }
	r, err := edit.ApplyFolder(j.Ctx, m, set, o.FolderOptions)
	if err != nil {
		return nil, err
	}

	bars.End()
	if r.Finished {
		return &Finished{Method: r.Method, Edits: o.Edits, Out: o.Out, Finished: true}, nil
	}

	show(j, r, &o)
	return &Result{Edits: o.Edits, Out: o.Out, Skipped: set.Skipped, FolderReport: *r}, nil
}

// read reads the edits.
func (o *Options) read(j *cli.Job) (*edit.Set, error) {
	set, err := edit.ReadSome(o.Edits, edit.ReadOptions{
		Count: o.Count, Skip: o.SkipInvalid, NoSubject: !edit.NeedsSubject(o.Method),
	})
	if err != nil {
		return nil, err
	}

	if n := len(set.Records); n < o.Count {
		return nil, cli.Usagef("--count %d: %s has %d edits", o.Count, o.Edits, n)
	}
	if n := len(set.Skipped); n > 0 {
		j.Note("%s: %d records skipped, the first: %s", o.Edits, n, set.Skipped[0].What)
	}

	return set, nil
}

// open loads the model and what the options say about it.
func (o *Options) open(j *cli.Job, path string) (*lm.Model, error) {
	m, err := j.Load(path, lm.Options{Decode: o.Decode})
	if err != nil {
		return nil, err
	}

	switch {
	case m.Packed():
		err = fmt.Errorf("%s: %w (HINT: compress convert %s --out DIR unpacks them; --keep-zeros then keeps "+
			"the pattern)", path, lm.ErrSavePacked, path)
	case mediate.IsFolder(path):
		err = fmt.Errorf("%s: %w", path, errMediated)
	default:
		if _, _, err = openmodel.AttachAdapter(j, m, o.Adapter); err == nil {
			err = o.fit(m)
		}
	}
	if err != nil {
		m.Close()
		return nil, err
	}

	return m, nil
}

// fit completes the options for a model.
func (o *Options) fit(m *lm.Model) (err error) {
	if o.Tokenizer, err = cli.Tokenizer(m); err != nil {
		return err
	}

	hp, err := edit.Defaults(o.Method, m.Config())
	if err != nil {
		return err
	}

	if o.HParams != "" {
		text, err := safefile.ReadFile(o.HParams, 1<<20)
		if err != nil {
			return err
		}
		if err := hp.MergeFile(o.HParams, text); err != nil {
			return err
		}
		hp.Source += ", " + filepath.Base(o.HParams)
		o.idle = edit.Idle(o.Method, text)
	}

	o.FolderOptions.HParams = &hp
	return nil
}

// show prints the figures, and what a reader of them must know.
func show(j *cli.Job, r *edit.FolderReport, o *Options) {
	if r.Collapsed() {
		d := r.Drift
		hints := []string{"fewer edits"}
		if r.Statistics != nil && o.Stats == "" {
			hints = append(hints, "--stats with text of the kind that the model was trained on")
		}

		hints = append(hints, "another --method: grace leaves the weights alone, ft-l bounds what it changes")
		j.Remark("the edited model has collapsed: its top-1 predictions stay the same at %.0f %% of %d prompts "+
			"that the edits should not touch, and it drifted by %.2f nats (HINT: %s)",
			100*d.Agreement, d.Prompts, d.KL, strings.Join(hints, "; or "))
	}

	for _, d := range r.Damped {
		j.Note("layer %d: the covariance of keys is not positive definite: %.2g of its mean diagonal was added "+
			"(HINT: --stats with more text)", d.Layer, d.Share)
	}

	j.Table(table(r))
	if x := r.Example; x != nil {
		j.Printf("%q\n  before: %s\n  after:  %s\n", x.Prompt, oneLine(x.Before), oneLine(x.After))
	}
	drift := "drift was not measured: no prompts are there for it"
	if r.Drift.Prompts > 0 {
		drift = fmt.Sprintf("drift %.4f nats, %.0f%% of top-1 predictions kept", r.Drift.KL, 100*r.Drift.Agreement)
	}
	j.Printf("%d edits by %s (%s) in %s: %s\n", r.Count, r.Method, r.HParams.Source, o.Out, drift)
	if slices.Contains([]string{"grace", "wise", "memoir", "ike"}, r.Method) {
		j.Note("the weights are as they were: what was learnt lies in %s, which compress edit reads", edit.JournalName)
	}
}

// oneLine is a text of a model on one line of the terminal.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Undo brings an edited checkpoint back to the state after its first steps.
func Undo(j *cli.Job, dir string, to int) (any, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	r, err := edit.UndoFolder(j.Ctx, dir, dev, to)
	if err != nil {
		return nil, err
	}

	// The card speaks of edits that have gone.
	file := filepath.Join(dir, card.Name)
	if text, err := safefile.ReadFile(file, 2*card.MaxBase); err == nil && card.Own(text) {
		text = card.Amend(text, fmt.Sprintf("Of %d steps of edits the first %d are left: the others were taken "+
			"out again "+
			"(`compress edit undo`).", r.From, to))
		if err := cli.WriteFile(file, text); err != nil {
			return nil, err
		}
	}

	j.Printf("%s: %d of %d steps kept, %d edits taken out\n", dir, to, r.From, len(r.Removed))
	return r, nil
}

// Verify checks that an edited checkpoint is what its journal says, and with a base that this is where it began.
func Verify(j *cli.Job, dir, base string) (any, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	r, err := edit.VerifyFolder(j.Ctx, dir, base, dev)
	if err != nil {
		return nil, err
	}

	j.Printf("%s: %d steps, %d matrices: to the last bit base + deltas as the stored type rounds them, which leaves "+
		"%.2g of the deltas\n", dir, r.Steps, r.Matrices, r.SumError)
	return r, nil
}

// editCard is what the README.md of an edited model says.
func editCard(base, edits string, r *edit.FolderReport) card.Card {
	c := card.Card{
		Base: []string{base}, Library: card.Transformers, Tags: []string{"compress", "edited"}, Title: "Edited model",
		Text: fmt.Sprintf("A language model into which %d facts were written, with compress.\n\n`%s` holds "+
			"every edit, and "+
			"`compress edit undo` takes them out again.", r.Count, edit.JournalName),
		Settings: []card.Row{
			{Name: "method", Values: []string{r.Method}}, {Name: "edits", Values: []string{filepath.Base(edits)}},
		},
		Before: true,
	}
	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		if before, ok := r.Before[name]; ok {
			c.Figures = append(c.Figures, card.Row{Name: name, Values: []string{
				fmt.Sprintf("%.3f", before), fmt.Sprintf("%.3f", r.Metrics[name]),
			}})
		}
	}
	if d := r.Drift; d != nil && d.Prompts > 0 {
		c.Figures = append(c.Figures, card.Row{Name: "drift, nats", Values: []string{"", fmt.Sprintf("%.4f", d.KL)}})
	}
	return c
}
