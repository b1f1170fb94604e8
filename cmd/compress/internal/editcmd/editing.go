// Package editcmd runs the verb edit: it reads edits, writes them into a model, measures what came of it, takes
// edits out again, and draws causal traces.
package editcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge/mediate"
)

// Options are the flags of the verb.
type Options struct {
	Edits       string
	Method      string
	Out         string
	Count       int
	Batch       int
	HParams     string
	Stats       string
	StatsTokens int
	Cache       string
	Texts       int
	Overwrite   bool
	SkipInvalid bool // records with faults are left out
	Resume      bool
	KeepZeros   bool
	Adapter     string
}

// errNone: there is nothing to write.
var errNone = errors.New("no edit was made: the optimisation of every one diverged")

// errMediated refuses a folder whose experts the output would lack.
var errMediated = errors.New("a mediated folder: its experts would be left behind (HINT: write the facts into the " +
	"base and the experts it was merged from, or give editeval a plan with its experts)")

// errTokenizer refuses a model that cannot be asked in words.
var errTokenizer = errors.New("edits are text, and the model has no tokenizer.json")

// validate finds faults that need no model.
func (o *Options) validate() error {
	switch {
	case o.Count < 0 || o.Batch < 0 || o.Texts < 0 || o.StatsTokens < 1:
		return cli.Usagef("--count, --batch and --texts must not be negative, --stats-tokens not below 1")
	case o.Batch > 1 && !edit.Batches(o.Method):
		return cli.Usagef("--batch %d: %s writes one fact at a time", o.Batch, o.Method)
	}

	if _, err := edit.Defaults(o.Method, &lm.Config{Layers: 1}); err != nil {
		return cli.Usage(err)
	}

	return nil
}

// Check finds what is wrong with flags by themselves.
func Check(o Options) error { return o.validate() }

// run is one run of the verb.
type run struct {
	*cli.Job
	o       Options
	m       *lm.Model
	x       *edit.Encoder
	set     *edit.Set
	records []edit.Record
	encoded []edit.Encoded
	hp      edit.HParams
	e       *edit.Editing
	origin  string // fingerprint of the model before the first edit
	log     *edit.Log
	name    string // hash of the run
	r       *Result
}

// Run edits a model.
func Run(j *cli.Job, path string, o Options) (any, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := stage.Apart(path, o.Out); err != nil {
		return nil, err
	}

	before, occupied, err := o.earlier(path)
	if err != nil {
		return nil, err
	}
	if err := o.unfinished(); err != nil {
		return nil, err
	}

	r := &run{Job: j, o: o, r: &Result{Method: o.Method, Edits: o.Edits, Out: o.Out}}
	if r.set, err = edit.ReadSome(o.Edits, edit.ReadOptions{Count: o.Count, Skip: o.SkipInvalid}); err != nil {
		return nil, err
	}
	if r.m, err = j.Load(path, lm.Options{}); err != nil {
		return nil, err
	}
	defer r.m.Close()

	switch {
	case r.m.Packed():
		return nil, fmt.Errorf("%s: %w (HINT: compress convert %s --out DIR unpacks them; --keep-zeros then keeps "+
			"the pattern)", path, lm.ErrSavePacked, path)
	case mediate.IsFolder(path):
		return nil, fmt.Errorf("%s: %w", path, errMediated)
	}

	if _, _, err := openmodel.AttachAdapter(j, r.m, o.Adapter); err != nil {
		return nil, err
	}
	if err := r.prepare(path); err != nil {
		return nil, err
	}
	defer r.e.Close()

	if r.name, err = r.job(); err != nil {
		return nil, err
	}

	if occupied != nil {
		if before != r.name {
			return nil, occupied
		}
		return r.finished(path)
	}

	if err := r.work(); err != nil {
		r.leave()
		return nil, err
	}

	if err := r.save(); err != nil {
		return nil, err
	}
	if err := r.log.Remove(); err != nil {
		return nil, err
	}

	r.print()
	return r.r, nil
}

// earlier looks at what is at the place of the output: occupied is why it cannot be written, unless it is the finished
// run whose name is before.
func (o *Options) earlier(path string) (before string, occupied, err error) {
	var allow func(string) error
	if o.Overwrite {
		allow = replaceable(path)
	}

	occupied = stage.Vacant(o.Out, allow)
	if occupied == nil {
		return "", nil, nil
	}

	if o.Resume {
		if journal, err := readJournal(o.Out); err == nil {
			before = journal.Job
		}
	}
	if before == "" {
		return "", nil, occupied
	}

	return before, occupied, nil
}

// finished is the result of a run that was finished before, if its output is still what it wrote.
func (r *run) finished(path string) (any, error) {
	if err := r.whole(path); err != nil {
		return nil, err
	}

	r.Note("%s: this run was finished before; there is nothing to do", r.o.Out)
	if err := edit.DropLog(edit.LogPath(r.o.Out), r.name); err != nil {
		return nil, err
	}

	return &Finished{Method: r.o.Method, Edits: r.o.Edits, Out: r.o.Out, Finished: true}, nil
}

// leave lets go of the log after work that failed, and removes one that holds nothing to go on with.
func (r *run) leave() {
	switch {
	case r.log == nil:
	case len(r.r.Steps)+len(r.r.Failed) == 0:
		_ = r.log.Remove()
	default:
		_ = r.log.Close() // it may be removed already
	}
}

// whole checks that the output of the finished run is what it wrote: the files beside the weights, and every
// tensor, which is the base's but for the edits of the journal.
func (r *run) whole(base string) error {
	err := func() error {
		journal, err := journalOf(r.o.Out)
		if err != nil {
			return err
		}

		if err := lm.Intact(r.o.Out, journal.Files); err != nil {
			return err
		}

		m, e, err := reopen(r.Job, r.o.Out, journal, true)
		if err != nil {
			return err
		}
		defer m.Close()
		defer e.Close()

		// to what the run began with, which may have been edited before
		if err := e.Undo(len(r.e.Steps())); err != nil {
			return err
		}

		return sameTensors(base, m.Source(), e.Changed())
	}()
	if err != nil {
		return fmt.Errorf("--resume: the run was finished, and its output has been damaged since: %w (HINT: "+
			"--overwrite makes it again)", err)
	}

	return nil
}

// replaceable lets an earlier output of the verb be replaced.
func replaceable(source string) func(dir string) error {
	plain := stage.Replaceable(source)
	return func(dir string) error {
		if f, err := safefile.Open(filepath.Join(dir, edit.JournalName)); err == nil {
			_, err = edit.ReadJournal(f)
			f.Close()
			if err == nil {
				return nil
			}
		}
		return plain(dir)
	}
}

// prepare reads tokens, hyper-parameters, statistics and what was edited before.
func (r *run) prepare(path string) error {
	tok, err := cli.Tokenizer(r.m)
	if err != nil {
		return err
	}

	if tok == nil {
		return fmt.Errorf("%s: %w", path, errTokenizer)
	}
	if err := r.hyper(); err != nil {
		return err
	}

	r.x = &edit.Encoder{Tokenizer: tok, Templates: r.hp.Templates, Positions: r.m.Config().MaxPositions}
	r.records = r.set.Records
	if n := r.o.Count; n > 0 {
		if n > len(r.records) {
			return cli.Usagef("--count %d: %s has %d edits", n, r.o.Edits, len(r.records))
		}
		r.records = r.records[:n]
	}

	if r.r.Skipped = r.set.Skipped; len(r.r.Skipped) > 0 {
		r.Note("%s: %d records skipped, the first: %s", r.o.Edits, len(r.r.Skipped), r.r.Skipped[0].What)
	}

	for _, m := range r.set.Remarks {
		if m.Index < len(r.records) {
			r.r.Remarks = append(r.r.Remarks, m)
			r.Note("%s: record %d: %s", r.o.Edits, m.Index, m.What)
		}
	}

	for i := range r.records {
		e, err := r.x.Record(&r.records[i])
		if err != nil {
			return fmt.Errorf("%s: %w", r.o.Edits, err)
		}
		r.encoded = append(r.encoded, e)
	}

	return r.open(path, tok)
}

// hyper reads the hyper-parameters.
func (r *run) hyper() error {
	var err error
	if r.hp, err = edit.Defaults(r.o.Method, r.m.Config()); err != nil {
		return err
	}

	if r.o.HParams != "" {
		text, err := safefile.ReadFile(r.o.HParams, 1<<20)
		if err != nil {
			return err
		}

		if err := r.hp.MergeFile(r.o.HParams, text); err != nil {
			return cli.Usage(err)
		}

		r.hp.Source += ", " + filepath.Base(r.o.HParams)
	}

	if err := r.hp.Validate(r.m.Blocks()); err != nil {
		return cli.Usage(errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	// What does not fit the model is told before a covariance is collected.
	if _, err := edit.New(r.m, edit.Options{Method: r.o.Method, HParams: &r.hp}); errors.Is(err, edit.ErrOptions) {
		return cli.Usage(err)
	}

	r.r.HParams = r.hp
	return nil
}

// open prepares the editing, where the model was edited before by going on.
func (r *run) open(path string, tok *tokenizer.Tokenizer) error {
	st, err := r.statistics()
	if err != nil {
		return err
	}

	sep, err := tok.Encode("\n", tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		return err
	}

	o := edit.Options{
		Method: r.o.Method, HParams: &r.hp, Statistics: st, Seed: r.Seed, Separator: sep,
		KeepZeros: r.o.KeepZeros,
	}
	journal, err := readJournal(path)
	if errors.Is(err, fs.ErrNotExist) {
		if r.origin, err = r.m.Fingerprint(r.Ctx); err == nil {
			r.e, err = edit.New(r.m, o)
		}
		return err
	}
	if err != nil {
		return err
	}

	r.origin = journal.Model
	r.e, err = edit.Open(r.m, journal, true, o)
	return err
}

// readJournal reads the journal of a checkpoint.
func readJournal(dir string) (*edit.Journal, error) {
	path := filepath.Join(dir, edit.JournalName)
	f, err := safefile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	j, err := edit.ReadJournal(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	return j, nil
}

// work edits and measures.
func (r *run) work() error {
	before, err := r.judge()
	if err != nil {
		return err
	}

	r.r.before(before)

	for i, m := range before.Records {
		if m["efficacy_exact"] == 1 {
			r.r.Remarks = append(r.r.Remarks, edit.Remark{Index: i, What: "the model gives the new answer already"})
		}
	}

	prompts, err := r.x.Prompts(r.records, 64)
	if err != nil {
		return err
	}

	base, err := r.e.Baseline(r.Ctx, prompts)
	if err != nil {
		return err
	}

	if err := r.texts(&r.r.TextsBefore); err != nil {
		return err
	}
	if err := r.apply(); err != nil {
		return err
	}
	if n := len(r.r.Failed); n == len(r.records) {
		return errors.Join(fmt.Errorf("%w: %s", errNone, r.r.Failed[0].Why), r.log.Remove())
	}
	if r.r.Drift, err = r.e.Drift(r.Ctx, base); err != nil {
		return err
	}

	r.collapse()
	after, err := r.judge()
	if err != nil {
		return err
	}

	if err := r.texts(&r.r.Texts); err != nil {
		return err
	}

	r.r.after(after, r.records)
	if r.r.Norms, err = r.e.Norms(); err != nil {
		return err
	}

	r.r.Damped = r.e.Damped()
	for _, d := range r.r.Damped {
		r.Note("layer %d: the covariance of keys is not positive definite: %.2g of its mean diagonal was added "+
			"(HINT: --stats with more text)", d.Layer, d.Share)
	}

	r.r.SumError, err = r.e.CheckSum()
	return err
}

func (r *run) judge() (*edit.Judgement, error) { return r.e.Judge(r.Ctx, r.x, r.records) }

// save writes the checkpoint and its journal.
func (r *run) save() error {
	s, err := r.m.NewSaver(r.o.Out, lm.SaveOptions{Overwrite: r.o.Overwrite})
	if err != nil {
		return err
	}

	var journal bytes.Buffer
	files, err := s.Beside()
	if err == nil {
		err = r.e.WriteJournalOf(&journal, edit.Journal{Model: r.origin, Job: r.name, Files: files})
	}
	if err == nil {
		err = s.AddFile(edit.JournalName, journal.Bytes())
	}
	if err != nil {
		return errors.Join(err, s.Abort())
	}

	bar := r.Progress("saving", 1)
	defer bar.End()

	if err := s.Finish(r.Ctx); err != nil {
		return errors.Join(err, s.Abort())
	}

	return nil
}
