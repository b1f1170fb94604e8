package editeval

import (
	"context"
	"path/filepath"
	"runtime"
	"time"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/cputime"
)

// Estimate is what a plan will take on a model, from a look at a few documents: good to a factor of about two.
// Seconds are those that the work takes on the processors that were free while it looked; on a machine that
// others use too, they are derived from processor time, which does not depend on how often the look was
// interrupted. A device away from the host is timed by the clock.
type Estimate struct {
	Model      string    `json:"model"`
	Processors float64   `json:"processors"`              // that one sequence could have
	Threads    int       `json:"threads"`                 // that it would use
	CPU        float64   `json:"processor_seconds"`       // of everything
	Rate       float64   `json:"tokens_per_second"`       // of forward passes
	Statistics float64   `json:"statistics_seconds"`      // of the covariance of keys
	Measure    float64   `json:"seconds_per_measurement"` // of all tasks
	Judge      float64   `json:"seconds_per_judged_edit"` // of edit metrics
	Edit       []float64 `json:"seconds_per_edit"`        // by editor
	Sequences  int       `json:"sequences"`               //
	Edits      int       `json:"edits"`                   // that are written in all sequences
	Checks     int       `json:"measurements"`            // of all tasks, the unedited model's included
	Total      float64   `json:"seconds"`                 // one sequence after another
	Blocks     []int     `json:"statistics_blocks"`       // that the covariance is needed of
	StatTokens int       `json:"statistics_tokens"`       //
	Tasks      []string  `json:"tasks"`                   //
	Documents  []int     `json:"documents"`               // by task
}

// Estimate looks at a few documents of every task and says what the plan will take on a model.
func (s *Study) Estimate(ctx context.Context, sub *Subject) (*Estimate, error) {
	r := &Estimate{Model: sub.Name}
	var err error
	if r.Blocks, err = s.fit(sub); err != nil {
		return nil, err
	}

	// Only from here on the model runs: faults of the plan cost nothing.
	docs, err := s.statistics(sub)
	if err != nil {
		return nil, err
	}

	if err := s.speed(ctx, sub, docs, r); err != nil {
		return nil, err
	}

	if len(r.Blocks) > 0 {
		for _, d := range docs {
			r.StatTokens += len(d)
		}
		r.Statistics = float64(r.StatTokens) / r.Rate
	}

	if r.Tasks, r.Documents, err = s.Tasks(); err != nil {
		return nil, err
	}
	if err := s.total(sub, r); err != nil {
		return nil, err
	}

	r.scale(sub.Model.Device().Info().Host)
	return r, nil
}

// Documents that an estimate looks at: tokens for the speed, edits that are judged, documents of each task.
const (
	probeTokens    = 1024
	probeEdits     = 4
	probeDocuments = 2
)

// speed measures a few passes of each kind.
func (s *Study) speed(ctx context.Context, sub *Subject, docs [][]int32, r *Estimate) error {
	n, k := 0, 0
	for k < len(docs) && n < probeTokens {
		n, k = n+len(docs[k]), k+1
	}

	c := &clock{host: sub.Model.Device().Info().Host}
	took, err := c.time(func() error {
		_, err := edit.Collect(ctx, sub.Model, docs[:k], []int{sub.Model.Blocks() - 1}, func(int, int) {})
		return err
	})
	if err != nil {
		return err
	}

	r.Rate = float64(n) / took
	// Any method will do: judging runs the model, and edits are not made.
	method := "ft"
	hp, err := edit.Defaults(method, sub.Model.Config())
	if err != nil {
		return err
	}

	e, err := edit.New(sub.Model, edit.Options{Method: method, HParams: &hp})
	if err != nil {
		return err
	}
	defer e.Close()

	few := s.Records[:min(probeEdits, len(s.Records))]
	took, err = c.time(func() error {
		_, err := e.Judge(ctx,
			&edit.Encoder{
				Tokenizer: sub.Tokenizer, Templates: hp.Templates,
				Positions: sub.Model.Config().MaxPositions,
			}, few)
		return err
	})
	if err != nil {
		return err
	}

	r.Judge = took / float64(len(few))

	for _, t := range s.tasks {
		all, err := t.suite.Check(s.options(t.Task))
		if err != nil {
			return err
		}

		documents := 0
		for _, c := range all {
			documents += c.Documents
		}

		// The same code as later, on a few documents, in a folder of its own that no run takes for a result.
		t.Limit = probeDocuments
		took, err := c.time(func() error {
			_, err := s.runTask(ctx, sub, t, filepath.Join(s.dir, StateFolder, "rehearsal", t.name))
			return err
		})
		if err != nil {
			return err
		}

		r.Measure += took * float64(documents) / float64(probeDocuments*len(all))
	}

	if r.Threads = sub.Model.Device().Info().Threads; r.Threads == 0 {
		r.Threads = runtime.GOMAXPROCS(0)
	}

	r.Processors = c.all.Free(r.Threads)
	return nil
}

// clock times pieces of work.
type clock struct {
	host bool
	all  cputime.Span
}

// time runs a piece of work and returns the processor seconds that it took, or the seconds of a device away
// from the host.
func (c *clock) time(work func() error) (float64, error) {
	w := cputime.Start()
	err := work()

	took := w.Stop()
	if c.all.Wall == 0 {
		c.all = took
	} else {
		c.all = c.all.Add(took)
	}

	const least = time.Millisecond // the resolution of processor time on some systems is worse
	if c.host && took.CPU >= least {
		return took.CPU.Seconds(), err
	}

	return took.Wall.Seconds(), err
}

// scale turns processor seconds into seconds on the processors that are free.
func (e *Estimate) scale(host bool) {
	e.CPU = e.Total
	if !host {
		e.CPU = 0 // not known
		return
	}

	e.Rate *= e.Processors
	for _, v := range []*float64{&e.Statistics, &e.Measure, &e.Judge, &e.Total} {
		*v /= e.Processors
	}
	for i := range e.Edit {
		e.Edit[i] /= e.Processors
	}
}

// Busy reports whether others use so much of the machine that the work will take longer than it could.
func (e *Estimate) Busy() bool { return e.Processors < 0.7*float64(e.Threads) }

// total adds everything up. Searches are taken to need all of their steps.
func (s *Study) total(sub *Subject, r *Estimate) error {
	r.Total = r.Statistics + r.Measure + r.Judge*float64(len(s.used()))
	r.Checks = 1
	for k, ed := range s.Plan.Editors {
		hp := sub.hp[k]
		x := &edit.Encoder{
			Tokenizer: sub.Tokenizer, Templates: hp.Templates,
			Positions: sub.Model.Config().MaxPositions,
		}

		work := 0.0
		few := s.Records[:min(probeEdits, len(s.Records))]
		for i := range few {
			enc, err := x.Record(&few[i])
			if err != nil {
				return err
			}
			work += edit.Work(ed.Method, hp, sub.Model.Blocks(), &enc)
		}

		one := work / float64(len(few)) / r.Rate
		r.Edit = append(r.Edit, one)
		edits := s.writes(ed)
		for range s.Plan.Seeds {
			r.Sequences = r.Sequences + 1
			r.Edits = r.Edits + edits
			r.Checks = r.Checks + len(s.Counts)
			r.Total += float64(edits)*one + float64(len(s.Counts))*r.Measure
			for _, c := range s.Counts {
				r.Total += float64(c) * r.Judge
			}
		}
	}

	return nil
}

// writes is how many edits a sequence writes, those included that are taken out again.
func (s *Study) writes(ed Editor) int {
	n := 0
	for _, c := range s.Counts {
		if ed.Batch == whole {
			n += c
		} else {
			n += c % ed.Batch
		}
	}

	last := s.Counts[len(s.Counts)-1]
	if ed.Batch != whole {
		n += last - last%ed.Batch
	}

	return n
}
