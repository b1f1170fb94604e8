package edit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Ways in which the edits of a folder can fail, besides those of the package and those of package lm.
var (
	// ErrUnfinished: beside the output lies the log of an interrupted run.
	ErrUnfinished = failure.Misuse("it holds an unfinished run", "--resume continues it, --overwrite starts over")
	// ErrSteps: an edited model has no such state to go back to.
	ErrSteps = failure.Misuse("no such state of the edits", "")
	// ErrNothing: every optimisation diverged, so that there is nothing to write.
	ErrNothing = errors.New("no edit was made: the optimisation of every one diverged")
	// ErrNoTokenizer: edits are text, and the folder of the model has no tokenizer.json.
	ErrNoTokenizer = errors.New("edits are text, and the model has no tokenizer.json")
	// ErrFinished: the output is that of the same run, and was changed since.
	ErrFinished = failure.New("the run was finished, and its output has been damaged since",
		"--overwrite makes it again")
)

// FolderOptions configure [ApplyFolder]. Method and Out must be given.
type FolderOptions struct {
	// Options are those of the editing. Where the method needs statistics and has none, they are collected from
	// Stats; without a Separator facts in context are parted by line breaks.
	Options
	Batch int // facts that are written at once; 0: all for methods that can ([Batches]), otherwise 1

	// NoContradictions refuses records that answer the prompt of another one otherwise. Without it the last one of a
	// batch counts, and the report names those that it overrules; of several batches, the later ones write last.
	NoContradictions bool

	Stats       string // text or JSONL that the covariance of keys is collected from; "": the prompts of the edits
	StatsTokens int    // of Stats, at most; 0: 1,000,000
	Cache       string // folder that keeps covariances for later runs with the same model and text; "": none

	Texts int // records whose generation prompts are continued, before and after, to measure fluency and consistency

	Out       string // folder of the edited model; it appears when it is complete
	Overwrite bool   // replace an earlier output, even an unfinished run
	Resume    bool   // continue an interrupted run, with the same result as without the interruption

	// Adapter names the adapter that is attached to the model, if one is: an interrupted run is only continued
	// with the same one.
	Adapter   string
	Tokenizer *tokenizer.Tokenizer // nil: that of the model's folder

	// Note is told what a user must know while the work goes on; nil: nobody.
	Note func(text string)
	// Progress is told how far a stage of the work is; nil: nobody.
	Progress func(stage string, done, total int64)
	// Card makes the README.md of the output of what was done; nil: it has that of the model.
	Card func(*FolderReport) []byte `json:"-"`
}

// defaultStatsTokens is how much text covariances are collected from.
const defaultStatsTokens = 1_000_000

// Validate returns the first fault of the options that needs no model.
func (o *FolderOptions) Validate() error {
	switch {
	case o.Out == "":
		return fmt.Errorf("%w: no folder for the output", ErrOptions)
	case o.Batch < 0 || o.Texts < 0 || o.StatsTokens < 0:
		return fmt.Errorf("%w: batch, texts and tokens of statistics must not be negative", ErrOptions)
	case o.Batch > 1 && !Batches(o.Method):
		err := fmt.Errorf("%w: a batch of %d: %s writes one fact at a time", ErrOptions, o.Batch, o.Method)
		return failure.Hinted(err, "leave --batch out, or choose a --method that writes several at once, such as memit")
	}
	_, err := find(o.Method)
	return err
}

// Check finds what can be wrong before the model in the folder source is loaded: with the options, and with what lies
// at the place of the output. [ApplyFolder] checks the same.
func (o *FolderOptions) Check(source string) error {
	_, _, err := o.place(source)
	return err
}

// place looks at where the output goes. Where the finished output of a run stands, and Resume may find that it is this
// very run, that is the name of the run; occupied is then the error for any other run.
func (o *FolderOptions) place(source string) (finished string, occupied, err error) {
	if err := o.Validate(); err != nil {
		return "", nil, err
	}
	if err := stage.Apart(source, o.Out); err != nil {
		return "", nil, err
	}

	var rule stage.Rule
	if o.Overwrite {
		rule = stage.Replaceable(source, JournalName)
	}
	if occupied = stage.Vacant(o.Out, rule); occupied != nil {
		// A folder in the way is no fault yet: whether it is this run's own result is known only once the job has
		// its name.
		if o.Resume {
			if j, err := readJournal(o.Out); err == nil {
				finished = j.Job
			}
		}
		if finished == "" {
			return "", nil, occupied
		}
	}

	path := LogPath(o.Out)
	// A log is what an interrupted run has done: only an explicit wish continues it or throws it away.
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) && !o.Resume && !o.Overwrite {
		return "", nil, fmt.Errorf("%s: %w", path, ErrUnfinished)
	}

	return finished, occupied, nil
}

// ApplyFolder writes the facts of a set into a model and the edited model into a folder, with a journal
// ([JournalName]) from which [UndoFolder] restores every earlier state byte for byte. It measures before and after
// what the edits achieved and what else they moved. Where the checkpoint was edited before, it goes on from there.
//
// Facts whose optimisation diverges are left out, and the report names them. A log beside the output ([LogPath]) keeps
// what is done, so that an interrupted run can be continued; it is gone when the output is there. The model is edited
// in memory when the call returns.
func ApplyFolder(ctx context.Context, m *lm.Model, set *Set, o FolderOptions) (*FolderReport, error) {
	finished, occupied, err := o.place(m.Path())
	if err != nil {
		return nil, err
	}
	if m.Packed() {
		return nil, fmt.Errorf("%s: %w", m.Path(), lm.ErrSavePacked)
	}

	r := &folderRun{
		o: o, m: m, set: set, records: set.Records,
		report: &FolderReport{Method: o.Method, vocab: m.Config().Vocab},
	}

	// The name of the job depends on statistics and hyper-parameters, so even a finished run is prepared in full.
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	defer r.e.Close()

	if occupied != nil {
		switch finished {
		case r.job:
		case "":
			return nil, occupied
		default:
			return nil, fmt.Errorf("%s: %w, and the model, the edits or the options have changed since it was made",
				o.Out, stage.ErrExists)
		}
		return r.report, r.finished(ctx)
	}

	err = r.work(ctx)
	if err == nil {
		err = r.save(ctx)
	}
	if err != nil {
		r.leave()
		return nil, err
	}

	return r.report, r.log.Remove()
}

// folderRun is one call of [ApplyFolder].
type folderRun struct {
	o       FolderOptions
	m       *lm.Model
	set     *Set
	x       *Encoder
	records []Record
	encoded []Encoded
	e       *Editing
	origin  string // fingerprint of the model before the first edit
	job     string // hash of all that the output depends on
	log     *Log
	report  *FolderReport
}

func (r *folderRun) note(format string, args ...any) {
	if r.o.Note != nil {
		r.o.Note(fmt.Sprintf(format, args...))
	}
}

func (r *folderRun) progress(stage string, done, total int) {
	if r.o.Progress != nil {
		r.o.Progress(stage, int64(done), int64(total))
	}
}

// prepare reads tokens, hyper-parameters, statistics and what was edited before.
func (r *folderRun) prepare(ctx context.Context) error {
	if err := r.fit(); err != nil {
		return err
	}

	for _, m := range r.set.Remarks {
		if m.Index < len(r.records) {
			r.report.Remarks = append(r.report.Remarks, m)
			if m.Contradicts && r.o.NoContradictions {
				return fmt.Errorf("%s: %w: record %d %s", r.set.File, ErrRecord, m.Index, m.What)
			}
			r.note("%s: record %d: %s", r.set.File, m.Index, m.What)
		}
	}

	for i := range r.records {
		e, err := r.x.Record(&r.records[i])
		if err != nil {
			return fmt.Errorf("%s: %w", r.set.File, err)
		}
		r.encoded = append(r.encoded, e)
	}
	if r.o.HParams.Anchor && len(r.o.Anchors) == 0 {
		r.o.Anchors = r.encoded[:min(AnchorFacts, len(r.encoded))]
	}

	err := r.statistics(ctx)
	if err == nil {
		err = r.open(ctx)
	}
	if err == nil {
		r.job, err = r.name(ctx)
	}

	return err
}

// fit completes the options and refuses what does not fit the model, before a covariance is collected.
func (r *folderRun) fit() error {
	if r.o.Tokenizer == nil {
		tok, err := tokenizer.Load(r.m.Path())
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", r.m.Path(), ErrNoTokenizer)
		}
		if err != nil {
			return err
		}
		r.o.Tokenizer = tok
	}

	if r.o.HParams == nil {
		hp, err := Defaults(r.o.Method, r.m.Config())
		if err != nil {
			return err
		}
		r.o.HParams = &hp
	}

	if err := r.o.HParams.Validate(r.m.Blocks()); err != nil {
		return err
	}

	// Statistics come later and cost the most: that they are missing here is no fault.
	if _, err := New(r.m, r.o.Options); err != nil && !errors.Is(err, ErrStatistics) {
		return err
	}

	if r.o.Separator == nil {
		var err error
		if r.o.Separator, err = r.o.Tokenizer.Encode("\n", tokenizer.EncodeOptions{NoSpecial: true}); err != nil {
			return err
		}
	}

	r.report.HParams = *r.o.HParams
	r.x = &Encoder{
		Tokenizer: r.o.Tokenizer, Templates: r.o.HParams.Templates, Positions: r.m.Config().MaxPositions,
	}

	return nil
}

// open begins the editing, or goes on with that of a checkpoint that was edited before.
func (r *folderRun) open(ctx context.Context) error {
	journal, err := readJournal(r.m.Path())
	if errors.Is(err, fs.ErrNotExist) {
		if r.origin, err = r.m.Fingerprint(ctx); err == nil {
			r.e, err = New(r.m, r.o.Options)
		}
		return err
	}
	if err != nil {
		return err
	}

	r.origin = journal.Model
	if r.e, err = Open(r.m, journal, true, r.o.Options); err != nil {
		return err
	}
	return journal.belongs(ctx, r.m.Path())
}

// readJournal reads the journal of the checkpoint in a folder.
func readJournal(dir string) (*Journal, error) {
	path := filepath.Join(dir, JournalName)
	f, err := safefile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	j, err := ReadJournal(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	return j, nil
}

// name is a hash of all that the edited model depends on.
func (r *folderRun) name(ctx context.Context) (string, error) {
	weights, err := r.m.Fingerprint(ctx)
	if err != nil {
		return "", err
	}

	data := ""
	if r.report.Statistics != nil {
		data = r.report.Statistics.Data
	}

	return stage.Fingerprint(weights, len(r.e.Steps()), r.o.Method, *r.o.HParams, r.size(), data, r.o.Seed, r.records,
		r.o.KeepZeros, r.o.Adapter)
}

// size is the number of facts that are written at once.
func (r *folderRun) size() int {
	if r.o.Batch == 0 && Batches(r.o.Method) {
		return len(r.records)
	}
	return max(r.o.Batch, 1)
}

// finished checks that the output of the run, which an earlier call has finished, is still what it wrote: the files
// beside the weights, and every tensor, which is the base's but for the edits of the journal.
func (r *folderRun) finished(ctx context.Context) error {
	err := func() error {
		journal, err := readJournal(r.o.Out)
		if err != nil {
			return err
		}
		if err := lm.Intact(r.o.Out, journal.Files); err != nil {
			return err
		}

		m, e, err := reopen(ctx, r.o.Out, r.m.Device(), journal, true)
		if err != nil {
			return err
		}
		defer m.Close()
		defer e.Close()

		// to what the run began with, which may have been edited before
		if err := e.Undo(len(r.e.Steps())); err != nil {
			return err
		}

		return sameTensors(ctx, r.m.Path(), m.Source(), e.Changed())
	}()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFinished, err)
	}

	r.report.Finished = true
	r.note("%s: this run was finished before; there is nothing to do", r.o.Out)

	return DropLog(LogPath(r.o.Out), r.job)
}

// work measures, edits and measures again.
func (r *folderRun) work(ctx context.Context) error {
	// All "before" figures are taken before the first edit, since the model is changed in place.
	before, err := r.e.Judge(ctx, r.x, r.records)
	if err != nil {
		return err
	}

	r.report.before(before)

	prompts, err := r.x.Prompts(r.records, driftPrompts)
	if err != nil {
		return err
	}

	base, err := r.e.Baseline(ctx, prompts)
	if err != nil {
		return err
	}

	if r.report.TextsBefore, err = r.texts(ctx); err != nil {
		return err
	}

	r.report.Example = &TextExample{Prompt: r.records[0].Full()}
	if r.report.Example.Before, err = r.e.continued(ctx, r.x, r.report.Example.Prompt); err != nil {
		return err
	}
	if err := r.apply(ctx); err != nil {
		return err
	}

	// A copy of the unedited model would look like a success, so nothing is written if every fact diverged.
	if n := len(r.report.Failed); n == len(r.records) {
		err := errors.Join(fmt.Errorf("%w: %s", ErrNothing, r.report.Failed[0].Why), r.log.Remove())
		r.log = nil
		return err
	}

	return r.measure(ctx, base)
}

// driftPrompts is how many prompts drift is measured at, at most.
const driftPrompts = 64

// mark is how far a run is, in its log.
type mark struct {
	Done   int          `json:"done"` // records
	Steps  []FolderStep `json:"steps,omitempty"`
	Failed []LeftOut    `json:"failed,omitempty"`
}

// begin starts the log of the run, or goes on with that of an interrupted one, and returns how many records are done.
func (r *folderRun) begin() (done int, err error) {
	path := LogPath(r.o.Out)
	var notes []json.RawMessage
	if r.o.Resume {
		// Resume also starts: a run that was killed before its first note has left no log.
		r.log, notes, err = ResumeLog(path, r.job, r.e)
	}
	if !r.o.Resume || errors.Is(err, fs.ErrNotExist) {
		r.log, err = StartLog(path, r.job, r.e)
	}
	if err != nil {
		return 0, err
	}

	for _, text := range notes {
		var m mark
		if err := json.Unmarshal(text, &m); err != nil {
			return 0, fmt.Errorf("%s: %w: %w", path, ErrJournal, err)
		}

		done = m.Done
		r.report.Steps = append(r.report.Steps, m.Steps...)
		r.report.Failed = append(r.report.Failed, m.Failed...)
	}

	if done > 0 {
		r.note("%d of %d edits were made before", done, len(r.records))
	}

	return done, nil
}

// apply writes the edits, batch by batch. An optimisation that diverges leaves its edit out.
func (r *folderRun) apply(ctx context.Context) error {
	done, err := r.begin()
	if err != nil {
		return err
	}

	size := r.size()
	r.report.Batch = size
	start := time.Now()

	for lo := done; lo < len(r.records); lo += size {
		r.progress("editing", lo, len(r.records))
		hi := min(lo+size, len(r.records))
		if err := r.batch(ctx, lo, hi); err != nil {
			return fmt.Errorf("records %d to %d: %w", lo, hi-1, err)
		}
	}

	r.progress("editing", len(r.records), len(r.records))

	// Facts that an earlier call wrote took no time in this one.
	if fresh := len(r.records) - done; fresh > 0 {
		r.report.SecondsPerEdit = time.Since(start).Seconds() / float64(fresh)
	}

	return nil
}

// batch writes some edits and notes them in the log.
func (r *folderRun) batch(ctx context.Context, lo, hi int) error {
	steps, failed := len(r.report.Steps), len(r.report.Failed)
	later := overruled(r.records[lo:hi])
	var which []int
	var encoded []Encoded
	var records []Record
	for i := lo; i < hi; i++ {
		if k, over := later[i-lo]; over {
			r.report.Failed = append(r.report.Failed, LeftOut{i, fmt.Sprintf("record %d overrules it", lo+k)})
			continue
		}
		which, encoded, records = append(which, i), append(encoded, r.encoded[i]), append(records, r.records[i])
	}

	step, err := r.e.Apply(ctx, encoded, Titles(records))
	switch {
	case errors.Is(err, ErrDiverged):
		for _, i := range which {
			r.report.Failed = append(r.report.Failed, LeftOut{i, err.Error()})
		}
		r.note("records %d to %d: %v; left out", lo, hi-1, err)
	case err != nil:
		return err
	default:
		r.report.step(lo, which, step)
	}

	return r.log.Add(mark{hi, r.report.Steps[steps:], r.report.Failed[failed:]})
}

// Titles name records for people, as the steps of a journal have them.
func Titles(records []Record) []string {
	var names []string
	for i := range records {
		r := &records[i]
		names = append(names, r.ID+": "+r.Full()+" "+strings.TrimSpace(r.New))
	}
	return names
}

// leave lets go of the log after work that failed, and removes one that holds nothing to go on with.
func (r *folderRun) leave() {
	switch {
	case r.log == nil:
	case len(r.report.Steps)+len(r.report.Failed) == 0:
		_ = r.log.Remove() // the work's own error says more
	default:
		_ = r.log.Close()
	}
}

// save writes the checkpoint and its journal.
func (r *folderRun) save(ctx context.Context) error {
	s, err := r.m.NewSaver(r.o.Out, lm.SaveOptions{Overwrite: r.o.Overwrite, Own: []string{JournalName}})
	if err != nil {
		return err
	}

	var journal bytes.Buffer
	quantised, _ := r.m.Quantised()
	files, err := s.Beside()
	if err == nil {
		of := Journal{Model: r.origin, Job: r.job, Files: files, Quantised: quantised}
		err = r.e.WriteJournalOf(&journal, of)
	}
	if err == nil {
		err = s.AddFile(JournalName, journal.Bytes())
	}
	if err == nil && r.o.Card != nil {
		err = s.AddFile(card.Name, r.o.Card(r.report))
	}
	if err == nil {
		r.progress("saving", 0, 1)
		err = s.Finish(ctx)
	}
	if err != nil {
		return errors.Join(err, s.Abort())
	}

	return nil
}
