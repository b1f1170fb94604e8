// Package train is the training loop: batches in, gradients, clipping, updates, evaluations, and state on disk
// from which an interrupted run goes on with the same bits.
package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/safetensors"
)

// Step is what happened in one step.
type Step struct {
	Step     int     `json:"step"` // from 0
	Loss     float64 `json:"loss"` // mean over the tokens that count, before the update
	LR       float64 `json:"lr"`
	GradNorm float64 `json:"grad_norm"` // global, before clipping
	Tokens   int     `json:"tokens"`    // all that the model saw
	Counted  int     `json:"counted"`   // those whose loss counts
	Seconds  float64 `json:"seconds"`
}

// Eval is the loss on held-out data after some steps.
type Eval struct {
	Step int     `json:"step"` // steps done
	Loss float64 `json:"loss"`
	Best bool    `json:"best,omitempty"` // so far
}

// Settings of [Run].
type Settings struct {
	LR       float64
	Schedule optim.Schedule
	Clip     float64 // global norm; 0: none

	Eval      *batches.Data // nil: no evaluation
	EvalEvery int           // steps; the last step is always followed by one
	Batch     int           // sequences per pass of an evaluation
	KeepBest  bool

	Dir         string // of the state; "": none is kept
	SaveEvery   int    // steps; there is none after the last, when the result is there
	Resume      bool
	Fingerprint string
	// Same is the fingerprint of what must not change even after a run that was stopped by a loss that is not finite.
	Same string

	Start func(done int) // before the first step, with the steps of earlier runs; nil: nobody
	Each  func(Step)     // after every step
	Note  func(Eval)     // after every evaluation
	// Remark is told of states that are damaged; nil: nobody.
	Remark func(string)
}

// Subject is what is trained.
type Subject interface {
	// Step computes the loss of some batches (the mean over counted tokens) and its gradients, and updates with
	// the learning rate. A loss or gradient that is not finite is an error that leaves the values as they are.
	Step(ctx context.Context, step int, batches []batches.Batch, counted int, lr, clip float64) (
		loss, norm float64, err error)
	// Eval computes the sum of the losses of a batch, and how many there are.
	Eval(ctx context.Context, b batches.Batch) (sum float64, counted int, err error)
	// Save writes all values and the optimiser's state; with best only the values.
	Save(path string, p Progress, best bool) error
	// Restore takes over what Save has written.
	Restore(path string, p *Progress, best bool) error
}

// Run trains. On a cancelled context, and on an error, the state before the step that failed is kept in the
// folder. A loss or gradient that is not finite comes of the values that the update before has made: then the
// newest state is kept with which a step has succeeded, from which a run may also go on with another learning
// rate or bound of the norm.
func Run(ctx context.Context, s Subject, p *batches.Plan, o Settings) (*Progress, error) {
	r := &run{Subject: s, plan: p, o: o, done: &Progress{Fingerprint: o.Fingerprint, Same: o.Same}, proven: -1}
	if err := r.open(); err != nil {
		return nil, err
	}

	r.before = r.done.Seconds
	r.started = time.Now()
	if o.Start != nil {
		o.Start(r.done.Step)
	}

	// where the earlier run was interrupted in it
	if n := len(r.done.Evals); r.done.Step > 0 && (n == 0 || r.done.Evals[n-1].Step != r.done.Step) {
		if err := r.eval(ctx); err != nil {
			return r.done, err
		}
	}

	for r.done.Step < len(p.Steps) {
		if err := r.step(ctx); err != nil {
			return r.done, r.abandon(err)
		}
	}

	if o.KeepBest && o.Dir != "" && len(r.done.Evals) > 0 && !r.done.Evals[len(r.done.Evals)-1].Best {
		var best Progress
		if err := s.Restore(filepath.Join(o.Dir, bestName), &best, true); err != nil {
			return r.done, err
		}
	}

	return r.done, nil
}

// run is a run in progress.
type run struct {
	Subject
	plan    *batches.Plan
	o       Settings
	done    *Progress
	proven  int     // steps done at the newest state from which a step has succeeded; -1: none
	before  float64 // seconds of earlier runs
	started time.Time
}

// open makes the folder of the state, or takes over what is in it.
func (r *run) open() error {
	if r.o.Dir == "" {
		return nil
	}
	if err := scratch.Leftover(r.o.Dir, haltedName, bestName); err != nil {
		return err
	}

	if !r.o.Resume {
		if err := empty(r.o.Dir); err != nil {
			return err
		}
	}

	if err := os.MkdirAll(r.o.Dir, 0o777); err != nil {
		return err
	}

	path, p, err := r.newest()
	if err != nil || path == "" {
		return err
	}

	if p.Fingerprint != r.o.Fingerprint && (p.Same != r.o.Same || !there(r.o.Dir, haltedName)) {
		return fmt.Errorf("%s: %w", r.o.Dir, ErrOtherRun)
	}
	if p.Step > len(r.plan.Steps) || p.Step != len(p.Steps) {
		return fmt.Errorf("%s: %w: %d steps, %d planned", path, ErrState, p.Step, len(r.plan.Steps))
	}

	p.Fingerprint = r.o.Fingerprint
	r.done = p
	return r.Restore(path, new(Progress), false)
}

// newest reads the newest state that is what was written; path is empty if there is none. Those that are not
// are removed, which is said: their steps are done again.
func (r *run) newest() (path string, p *Progress, err error) {
	for {
		path, steps, err := Latest(r.o.Dir)
		if err != nil || path == "" {
			return "", nil, err
		}

		p := &Progress{}
		f, err := readState(path, p)
		if err == nil {
			return path, p, f.Close()
		}

		var format *safetensors.Error
		var system syscall.Errno
		if !errors.Is(err, ErrState) && !errors.As(err, &format) || errors.As(err, &system) {
			return "", nil, err
		}

		if r.o.Remark != nil {
			r.o.Remark(fmt.Sprintf("%v: the state after %d steps is not used, and steps are done again", err, steps))
		}
		if err := os.Remove(path); err != nil {
			return "", nil, err
		}
	}
}

func there(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// step runs one step and what follows it.
func (r *run) step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	n, began := r.done.Step, time.Now()
	batches, counted := r.plan.At(n)
	s := Step{Step: n, LR: r.o.LR * r.o.Schedule(n), Tokens: r.plan.Tokens(n), Counted: counted}
	var err error
	if s.Loss, s.GradNorm, err = r.Step(ctx, n, batches, counted, s.LR, r.o.Clip); err != nil {
		return fmt.Errorf("step %d: %w", n, err)
	}

	s.Seconds = time.Since(began).Seconds()
	if err := r.prove(n); err != nil {
		return err
	}

	r.done.Step, r.done.Steps = n+1, append(r.done.Steps, s)
	if r.o.Each != nil {
		r.o.Each(s)
	}
	if err := r.eval(ctx); err != nil {
		return fmt.Errorf("evaluation after step %d: %w", n, err)
	}
	if r.o.Dir != "" && r.done.Step < len(r.plan.Steps) && r.o.SaveEvery > 0 && r.done.Step%r.o.SaveEvery == 0 {
		return r.save()
	}

	return nil
}

// prove notes that a step has succeeded from the state after n steps, if there is one: older ones are not
// needed any more.
func (r *run) prove(n int) error {
	if r.o.Dir == "" || !there(r.o.Dir, stateName(n)) {
		return nil
	}
	r.proven = n
	return prune(r.o.Dir, n)
}

// save writes the state, and removes those before that are not needed.
func (r *run) save() error {
	r.done.Seconds = r.before + time.Since(r.started).Seconds()
	if err := r.Save(filepath.Join(r.o.Dir, stateName(r.done.Step)), *r.done, false); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(r.o.Dir, haltedName)); err != nil {
		return err
	}
	return prune(r.o.Dir, r.done.Step, r.proven)
}

// abandon keeps what there is after an error.
func (r *run) abandon(err error) error {
	switch {
	case r.o.Dir == "":
		return err
	case errors.Is(err, lm.ErrNonFinite):
		return r.halt(err)
	case r.done.Step == 0 || errors.Is(err, errTorn) || there(r.o.Dir, stateName(r.done.Step)):
		return err
	}
	return errors.Join(err, r.save())
}

// halt keeps the newest state with which a step has succeeded, and says which that is.
func (r *run) halt(err error) error {
	if rm := os.RemoveAll(filepath.Join(r.o.Dir, stateName(r.done.Step))); rm != nil {
		return errors.Join(err, rm)
	}

	path, steps, failed := Latest(r.o.Dir)
	if failed != nil {
		return errors.Join(err, failed)
	}
	if path == "" {
		return fmt.Errorf("%w; there is no earlier state (HINT: begin anew with a smaller --lr, a --warmup or a "+
			"--clip; --save-every says how often a state is kept)", err)
	}
	if failed := os.WriteFile(filepath.Join(r.o.Dir, haltedName), []byte(err.Error()+"\n"), 0o666); failed != nil {
		return errors.Join(err, failed)
	}

	return fmt.Errorf("%w; the state after %d steps is kept (HINT: --resume goes on from it, with a smaller --lr "+
		"or a --clip)", err, steps)
}

// eval measures the loss on the held-out data when it is time.
func (r *run) eval(ctx context.Context) error {
	n := r.done.Step
	if r.o.Eval == nil || n != len(r.plan.Steps) && (r.o.EvalEvery <= 0 || n%r.o.EvalEvery != 0) {
		return nil
	}

	loss, err := Mean(ctx, r.Subject, *r.o.Eval, r.o.Batch)
	if err != nil {
		return err
	}

	if err := finite("the held-out loss", loss); err != nil {
		return err
	}

	e := Eval{Step: n, Loss: loss, Best: true}
	for _, earlier := range r.done.Evals {
		e.Best = e.Best && loss < earlier.Loss
	}

	r.done.Evals = append(r.done.Evals, e)

	if e.Best && r.o.KeepBest && r.o.Dir != "" {
		if err := r.Save(filepath.Join(r.o.Dir, bestName), Progress{Step: n}, true); err != nil {
			return err
		}
	}

	if r.o.Note != nil {
		r.o.Note(e)
	}

	return nil
}

// Mean is the mean loss of a subject over data, batch sequences at a time.
func Mean(ctx context.Context, s Subject, d batches.Data, batch int) (float64, error) {
	p, err := batches.New(d, batches.Options{Batch: max(batch, 1), Ordered: true})
	if err != nil {
		return 0, err
	}

	sum, n := 0.0, 0
	for step := range p.Steps {
		batches, _ := p.At(step)
		for _, b := range batches {
			part, counted, err := s.Eval(ctx, b)
			if err != nil {
				return 0, err
			}
			sum, n = sum+part, n+counted
		}
	}

	return sum / float64(n), nil
}

// finite refuses a norm or a loss that training cannot go on with.
func finite(what string, x float64) error {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return fmt.Errorf("%s is %v: %w", what, x, lm.ErrNonFinite)
	}
	return nil
}
