package editeval

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/cputime"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm/corpus"
)

// Unit is a sequence: an editor of the plan on a model with one order of the edits.
type Unit struct {
	Model  string `json:"model"`  // name
	Editor int    `json:"editor"` // of Plan.Editors
	Seed   uint64 `json:"seed"`
}

// Units lists the sequences of models, in the order of the report.
func (s *Study) Units(models []string) []Unit {
	var out []Unit
	for _, m := range models {
		for k := range s.Plan.Editors {
			for _, seed := range s.Plan.Seeds {
				out = append(out, Unit{m, k, seed})
			}
		}
	}
	return out
}

// folder is that of a unit, relative to the results.
func (s *Study) folder(u Unit) string {
	return filepath.Join(unitsFolder, u.Model, s.Plan.Editors[u.Editor].Name, fmt.Sprintf("seed-%d", u.Seed))
}

// Checkpoint is what was measured after a number of edits.
type Checkpoint struct {
	Edits int `json:"edits"`
	// edits, by position, whose optimisation diverged: they were left out, and count as not held
	Failed    []int                  `json:"failed,omitempty"`
	Metrics   map[string]edit.Stat   `json:"metrics"` // of package edit, over all edits so far
	Score     float64                `json:"score"`
	NonFinite int                    `json:"non_finite"`
	Drift     *edit.Drift            `json:"drift"`
	Norms     map[string]edit.Norms  `json:"norms,omitempty"` // of the change of every matrix
	Fluency   *float64               `json:"fluency,omitempty"`
	Audits    map[string]*task.Audit `json:"audits,omitempty"` // by task
	Signs     map[string][]string    `json:"signs,omitempty"`  // of a collapsed model, in words, by task
	Records   []map[string]float64   `json:"records"`          // by position of the edit in the sequence
}

// Timing is the cost of the way from one count to the next.
type Timing struct {
	// written on the way, those included that were written again after an interruption
	Edits   int     `json:"edits"`
	Seconds float64 `json:"seconds"` // of editing
	// of the process, divided evenly among the sequences that were at work in it
	CPU      *float64 `json:"cpu_seconds,omitempty"`
	Measured float64  `json:"measured_seconds"`
}

// Sequence is the result of a unit.
type Sequence struct {
	Job         string       `json:"job"`           // hash of what it depends on
	Edits       string       `json:"edits_job"`     // the same without the counts: one with more counts goes on from it
	Probes      int          `json:"probe_records"` // of the order, those whose prompts drift and fluency look at
	Order       []int        `json:"order"`
	HParams     edit.HParams `json:"hparams"`
	Fluency     *float64     `json:"fluency_before,omitempty"`
	Checkpoints []Checkpoint `json:"checkpoints"`
	SumError    float64      `json:"sum_error"` // ‖final - base - Σ deltas‖/‖Σ deltas‖ at the last count
	// the model was what it had been, byte for byte, once all edits were taken out
	Restored bool     `json:"restored"`
	Damped   int      `json:"damped"`   // covariances that were not positive definite
	TasksAs  string   `json:"tasks_as"` // what answers the tasks: the edited model, or why not
	Restarts int      `json:"-"`        // interruptions
	Timings  []Timing `json:"-"`        // in a file of their own
}

// state is what an interrupted sequence goes on with.
type state struct {
	Job         string            `json:"job"`
	Applied     int               `json:"applied"` // edits in whole batches, whose journal is kept
	Probes      int               `json:"probe_records"`
	Failed      []int             `json:"failed"`
	Fluency     *float64          `json:"fluency"`
	Checkpoints []Checkpoint      `json:"checkpoints"`
	Sums        map[string]string `json:"sums"` // hashes of the files of finished counts
	Restarts    int               `json:"restarts"`
	Timings     []Timing          `json:"timings"`
	Open        Timing            `json:"open"` // of the way that is not finished
}

// sequence is a unit at work.
type sequence struct {
	s       *Study
	sub     *Subject
	u       Unit
	ed      Editor
	dir     string // of results
	kept    string // of the state
	edits   string // hash of what the edits depend on, which the counts are no part of
	order   []int
	records []edit.Record
	encoded []edit.Encoded
	x       *edit.Encoder
	o       edit.Options
	e       *edit.Editing
	base    *edit.Baseline
	state   state
	saved   time.Time
	journal int  // edits in the journal on the disk
	rest    bool // the model has the edits behind the last whole batch too
	step    func(edits, checkpoints int)
}

// stateFile is the name of a file of [state].
const stateFile = "state.json"

// saveEvery is how often edits between two counts are brought to the disk.
const saveEvery = time.Minute

// Sequence carries out a unit, or what is left of it. step is told of every edit that is written and every
// count that is done.
func (s *Study) Sequence(ctx context.Context, sub *Subject, u Unit, step func(edits, checkpoints int)) (err error) {
	q, done, err := s.begin(sub, u)
	if err != nil || done {
		return err
	}

	if q.step = step; step == nil {
		q.step = func(int, int) {}
	}
	if err := q.open(ctx); err != nil {
		return err
	}

	s.active.Add(1)
	// Whatever happened, the model is put back: the next unit starts from the same weights.
	defer func() {
		s.active.Add(-1)
		restored := q.restore()
		// The first error says more than that of the clean-up.
		if err == nil {
			err = restored
		}
	}()

	for _, c := range s.Counts[len(q.state.Checkpoints):] {
		if err := q.checkpoint(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", s.folder(u), err)
		}
	}

	return q.finish(ctx)
}

// begin looks at what is there.
func (s *Study) begin(sub *Subject, u Unit) (*sequence, bool, error) {
	q := &sequence{s: s, sub: sub, u: u, ed: s.Plan.Editors[u.Editor], dir: filepath.Join(s.dir, s.folder(u))}
	q.kept = filepath.Join(s.dir, StateFolder, s.folder(u))
	last := s.Counts[len(s.Counts)-1]
	common, err := s.common(sub)
	if err != nil {
		return nil, false, err
	}

	hp := sub.hp[u.Editor]
	statistics := ""
	if edit.NeedsStatistics(q.ed.Method, hp) {
		statistics = sub.stats.Data
	}
	if edit.NeedsBackground(q.ed.Method) {
		statistics = corpus.HashIDs(sub.background)
	}
	if q.edits, err = stage.Fingerprint(common, q.ed.Method, q.ed.Batch, u.Seed, hp, statistics); err != nil {
		return nil, false, err
	}

	// The edits' identity lacks the counts: a finished sequence can go on to larger ones (widen).
	job, err := stage.Fingerprint(q.edits, s.Counts)
	if err != nil {
		return nil, false, err
	}

	var before Sequence
	finished := s.finished(s.folder(u), sequenceFile, &before)
	if finished && before.Job == job {
		return nil, true, q.tidy(job)
	}

	switch {
	case q.unfinished(job):
		q.state.Restarts++
	case finished && q.widens(&before):
		if err := q.widen(job, &before); err != nil {
			return nil, false, err
		}
	default:
		// Anything else that lies there belongs to other settings.
		q.state = state{Job: job, Probes: last}
		if err := errors.Join(os.RemoveAll(q.dir), os.RemoveAll(q.kept)); err != nil {
			return nil, false, err
		}
	}

	q.order = order(len(s.Records), u.Seed)[:last]
	q.x = &edit.Encoder{Tokenizer: sub.Tokenizer, Templates: hp.Templates, Positions: sub.Model.Config().MaxPositions}
	for _, i := range q.order {
		enc, err := q.x.Record(&s.Records[i])
		if err != nil {
			return nil, false, err
		}
		q.records, q.encoded = append(q.records, s.Records[i]), append(q.encoded, enc)
	}

	return q, false, nil
}

// unfinished reads the state of an interrupted run of a job, and checks that what it had done is still what it was.
func (q *sequence) unfinished(job string) bool {
	err := stage.ReadSealed(filepath.Join(q.kept, stateFile), &q.state)
	return !missing(err) && q.s.whole(q.s.folder(q.u), q.state.Sums, err) && q.state.Job == job
}

// order is that in which records are edited: the file's for seed 0, otherwise a random one.
func order(n int, seed uint64) []int {
	if seed != 0 {
		return rng.Order(seed, n)
	}

	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// open brings the model to where the sequence was.
func (q *sequence) open(ctx context.Context) (err error) {
	if q.e, q.o, err = q.s.editing(q.sub, q.u.Editor, q.u.Seed); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.restore())
		}
	}()

	// Drift is measured at the prompts of the run's first plan, or figures before and after widening would not
	// compare.
	prompts, err := q.x.Prompts(q.records[:q.state.Probes], q.s.Plan.Drift)
	if err != nil {
		return err
	}

	if q.base, err = q.e.Baseline(ctx, prompts); err != nil {
		return err
	}

	// Texts of the unedited model: the model must not have been edited yet.
	if len(q.state.Checkpoints) == 0 && q.state.Applied == 0 {
		if q.state.Fluency, err = q.fluency(ctx); err != nil {
			return err
		}
		return q.save()
	}

	if q.state.Applied == 0 {
		return nil
	}

	q.e.Close()
	path := q.journalPath(q.state.Applied)
	f, err := safefile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()

	j, err := edit.ReadJournal(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	q.journal = q.state.Applied
	// Not strict: the model in memory is the unedited one, and the journal brings it to where it was.
	e, err := edit.Open(q.sub.Model, j, false, q.o)
	if err == nil {
		q.e = e
	}

	return err
}

func (q *sequence) journalPath(applied int) string {
	return filepath.Join(q.kept, fmt.Sprintf("edits-%d.journal", applied))
}

// save brings the state to the disk: first the edits, then what names them.
func (q *sequence) save() error {
	if err := os.MkdirAll(q.kept, 0o777); err != nil {
		return err
	}

	before := q.journal

	if q.state.Applied != q.journal {
		var text bytes.Buffer
		if err := q.e.WriteJournal(&text, q.sub.Identity, ""); err != nil {
			return err
		}
		if err := writeFile(q.journalPath(q.state.Applied), text.Bytes()); err != nil {
			return err
		}

		q.journal = q.state.Applied
	}

	var err error

	// Sums of the results, so that a resumed run notices files that were changed in between.
	if q.state.Sums, err = stage.Sums(q.dir); err != nil {
		return err
	}
	if err := stage.WriteSealed(filepath.Join(q.kept, stateFile), &q.state); err != nil {
		return err
	}

	q.saved = time.Now()
	// Only now: until the new state stands, the old journal is what a resumed run would need.
	if before > 0 && before != q.journal {
		return os.Remove(q.journalPath(before))
	}

	return nil
}

// checkpoint goes on to a count and measures there.
func (q *sequence) checkpoint(ctx context.Context, count int) error {
	size := q.ed.Batch
	if size == whole {
		size = count + 1 // no batch is whole before the count is reached
	}

	for full := count - count%size; q.state.Applied < full; {
		failed, err := q.apply(ctx, q.state.Applied, q.state.Applied+size)
		if err != nil {
			return err
		}

		q.state.Failed = append(q.state.Failed, failed...)
		q.state.Applied += size

		if time.Since(q.saved) > saveEvery {
			if err := q.save(); err != nil {
				return err
			}
		}
	}

	if q.journal != q.state.Applied {
		if err := q.save(); err != nil {
			return err
		}
	}

	failed, steps := q.state.Failed, len(q.e.Steps())
	if q.state.Applied < count {
		some, err := q.apply(ctx, q.state.Applied, count)
		if err != nil {
			return err
		}
		failed = append(failed[:len(failed):len(failed)], some...)
	}

	start := time.Now()
	c, err := q.measure(ctx, count)
	if err != nil {
		return err
	}

	c.Failed = failed
	q.state.Open.Measured += time.Since(start).Seconds()
	q.state.Checkpoints = append(q.state.Checkpoints, *c)
	q.state.Timings = append(q.state.Timings, q.state.Open)
	q.state.Open = Timing{}
	q.step(0, 1)

	if count == len(q.records) {
		q.rest = true
		return q.save()
	}

	if len(q.e.Steps()) > steps {
		if err := q.e.Undo(steps); err != nil {
			return err
		}
	}

	return q.save()
}

// apply writes one batch and returns the edits that diverged.
func (q *sequence) apply(ctx context.Context, lo, hi int) ([]int, error) {
	active, watch := q.s.active.Load(), cputime.Start()
	step, err := q.e.Apply(ctx, q.encoded[lo:hi], edit.Titles(q.records[lo:hi]))
	active = max(1, (active+q.s.active.Load())/2)
	q.state.Open.add(hi-lo, watch.Stop(), int(active))
	q.step(hi-lo, 0)

	var failed []int
	switch {
	case errors.Is(err, edit.ErrDiverged):
		for i := lo; i < hi; i++ {
			failed = append(failed, i)
		}
	case err != nil:
		return nil, fmt.Errorf("edits %d to %d: %w", lo+1, hi, err)
	default:
		for _, i := range step.Failed {
			failed = append(failed, lo+i)
		}
	}

	return failed, nil
}

// add counts edits that took so long. Sequences that are at work at once in this process have devices of the
// same size: what the process spent meanwhile is divided evenly among them.
func (t *Timing) add(edits int, took cputime.Span, sequences int) {
	first := t.Edits == 0
	t.Edits += edits
	t.Seconds += took.Wall.Seconds()

	spent := took.CPU.Seconds() / float64(sequences)
	switch {
	case first:
		t.CPU = &spent
	case t.CPU != nil: // an earlier version of the program has left it out
		sum := *t.CPU + spent
		t.CPU = &sum
	}
}

// finish takes everything out, checks that, and writes the result.
func (q *sequence) finish(ctx context.Context) error {
	r := &Sequence{
		Job: q.state.Job, Edits: q.edits, Probes: q.state.Probes, Order: q.order, HParams: q.sub.hp[q.u.Editor],
		Fluency: q.state.Fluency, Checkpoints: q.state.Checkpoints,
		Damped: len(q.e.Damped()), TasksAs: "the edited model",
	}

	if q.ed.Method == "ike" {
		r.TasksAs = "the unedited model: what in-context editing puts before prompts is not put before those of tasks"
	}

	var err error
	// the last count was measured before an interruption: what is not in the journal is written once more
	if !q.rest && q.state.Applied < len(q.records) {
		if _, err = q.apply(ctx, q.state.Applied, len(q.records)); err != nil {
			return err
		}
	}

	if r.SumError, err = q.e.CheckSum(); err != nil {
		return err
	}
	if err := q.e.Undo(0); err != nil {
		return err
	}
	if r.Restored, err = q.restored(ctx); err != nil {
		return err
	}

	timings := filepath.Join(q.s.dir, StateFolder, "timings", q.s.folder(q.u)+".json")
	if err := writeJSON(timings, map[string]any{"restarts": q.state.Restarts, "timings": q.state.Timings}); err != nil {
		return err
	}
	if err := q.s.seal(q.s.folder(q.u), sequenceFile, r); err != nil {
		return err
	}

	// One after the other: what ends between them is put right by tidy.
	if err := q.keepJournal(); err != nil {
		return err
	}
	return os.RemoveAll(q.kept)
}

// sameKL is what rounding the remembered likelihoods to F32 leaves of a divergence.
const sameKL = 1e-7

// restored compares the model with its file, and what it says with what it said.
func (q *sequence) restored(ctx context.Context) (bool, error) {
	src := q.sub.Model.Source()
	for name, now := range q.e.Changed() {
		if was, err := src.Bytes(name); err == nil && !bytes.Equal(was, now) {
			return false, nil
		}
	}
	d, err := q.e.Drift(ctx, q.base)
	return err == nil && d.KL < sameKL && d.Agreement == 1, err
}

// restore takes everything out, whatever happened.
func (q *sequence) restore() error {
	err := q.e.Undo(0)
	q.e.Close()
	return err
}
