package lora

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/lora/internal/preference"
	"github.com/modelcompress/compress/lora/internal/train"
)

// Step is what happened in one step of training.
type Step struct {
	Step     int     `json:"step"` // from 0
	Loss     float64 `json:"loss"` // mean over the tokens that count, before the update
	LR       float64 `json:"lr"`
	GradNorm float64 `json:"grad_norm"` // global, before clipping
	Tokens   int     `json:"tokens"`    // all that the model saw
	Counted  int     `json:"counted"`   // those whose loss counts
	Seconds  float64 `json:"seconds"`
	// Rewards are those of the answers, where preferences are learned.
	Rewards *Rewards `json:"rewards,omitempty"`
}

// Eval is the loss on held-out data after some steps.
type Eval struct {
	Step int     `json:"step"` // steps done
	Loss float64 `json:"loss"`
	Best bool    `json:"best,omitempty"` // so far
	// Rewards are those of the held-out answers, where preferences are learned.
	Rewards *Rewards `json:"rewards,omitempty"`
}

// subject is what is trained: an adapter ([train.Low]) or all parameters of a model ([train.Full]).
type subject interface {
	// Step computes the loss of some batches (the mean over counted tokens) and its gradients, and updates with
	// the learning rate. A loss or gradient that is not finite is an error that leaves the values as they are.
	Step(ctx context.Context, step int, batches []batches.Batch, counted int, lr, clip float64) (
		loss, norm float64, err error)
	// Eval computes the sum of the losses of a batch, and how many there are.
	Eval(ctx context.Context, b batches.Batch) (sum float64, counted int, err error)
	// Save writes all values and the optimiser's state, with progress in the header; with best only the values.
	Save(path string, progress any, best bool) error
	// Restore takes over the values, and unless best the optimiser's state, that Save has written.
	Restore(path string, best bool) error
}

// progress is what a run has done so far, as the files of its state have it.
type progress struct {
	Step        int     `json:"step"` // steps done
	Fingerprint string  `json:"fingerprint"`
	Same        string  `json:"same"` // see [run]
	Steps       []Step  `json:"steps"`
	Evals       []Eval  `json:"evals,omitempty"`
	Seconds     float64 `json:"seconds"`
}

// run is a run in progress.
type run struct {
	subject
	o        Options
	plan     *batches.Plan
	schedule optim.Schedule
	heldOut  *batches.Data // nil: no evaluation

	states      train.Folder // "": none are kept
	fingerprint string       // of all that the result depends on
	// same is the fingerprint of what must not change even where a loss that was not finite has stopped the run:
	// all but the learning rate and the bound of the norm, which are what one would change then.
	same string

	done    *progress
	proven  int     // steps done at the newest state from which a step has succeeded; -1: none
	before  float64 // seconds of earlier runs
	started time.Time
}

// train takes all steps. On a cancelled context, and on an error, the state before the step that failed is kept in
// the folder. A loss or gradient that is not finite comes of the values that the update before has made: then the
// newest state is kept with which a step has succeeded, from which a run may also go on with another learning
// rate or bound of the norm.
func (r *run) train(ctx context.Context, start func(done int)) error {
	r.done = &progress{Fingerprint: r.fingerprint, Same: r.same}
	r.proven = -1
	if err := r.open(); err != nil {
		return err
	}

	r.before = r.done.Seconds
	r.started = time.Now()
	start(r.done.Step)

	// An earlier run that was interrupted in an evaluation has done the step before it, but has no result of it.
	// Before the first step, the loss is what the training has to better.
	if n := len(r.done.Evals); n == 0 || r.done.Evals[n-1].Step != r.done.Step {
		if err := r.eval(ctx); err != nil {
			return err
		}
	}

	for r.done.Step < len(r.plan.Steps) {
		if err := r.step(ctx); err != nil {
			return r.abandon(err)
		}
	}

	evals := r.done.Evals
	if r.o.KeepBest && r.states != "" && len(evals) > 0 && !evals[len(evals)-1].Best {
		return r.Restore(r.states.Best(), true)
	}

	return nil
}

// open makes the folder of the state, or takes over what is in it.
func (r *run) open() error {
	if r.states == "" {
		return nil
	}
	if err := r.states.Open(r.o.Resume); err != nil {
		return err
	}

	path, p, err := train.Newest[progress](r.states, r.o.Remark)
	if err != nil || path == "" {
		return err
	}

	// A run that a loss stopped may go on with another learning rate or clip; any other one only as it was.
	if p.Fingerprint != r.fingerprint && (p.Same != r.same || !r.states.Halted()) {
		return fmt.Errorf("%s: %w", r.states, ErrOtherRun)
	}
	if p.Step > len(r.plan.Steps) || p.Step != len(p.Steps) {
		return fmt.Errorf("%s: %w: %d steps, %d planned", path, train.ErrState, p.Step, len(r.plan.Steps))
	}

	// From here on states are saved under the settings that now hold.
	p.Fingerprint = r.fingerprint
	r.done = p

	return r.Restore(path, false)
}

// step runs one step and what follows it.
func (r *run) step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	n := r.done.Step
	began := time.Now()
	batches, counted := r.plan.At(n)

	s := Step{Step: n, LR: r.o.LR * r.schedule(n), Tokens: r.plan.Tokens(n), Counted: counted}
	var err error
	if s.Loss, s.GradNorm, err = r.Step(ctx, n, batches, counted, s.LR, r.o.Clip); err != nil {
		return fmt.Errorf("step %d: %w", n, err)
	}

	s.Seconds = time.Since(began).Seconds()
	s.Rewards = r.rewards(false)
	if err := r.prove(n); err != nil {
		return err
	}

	r.done.Step = n + 1
	r.done.Steps = append(r.done.Steps, s)
	if r.o.Each != nil {
		r.o.Each(s)
	}

	if err := r.eval(ctx); err != nil {
		return fmt.Errorf("evaluation after step %d: %w", n, err)
	}

	// After the last step there is none: the result is there.
	every := r.o.SaveEvery
	if r.states != "" && r.done.Step < len(r.plan.Steps) && every > 0 && r.done.Step%every == 0 {
		return r.save()
	}

	return nil
}

// prove notes that a step has succeeded from the state after n steps, if there is one: older ones are not
// needed any more.
func (r *run) prove(n int) error {
	if r.states == "" || !r.states.Has(n) {
		return nil
	}
	r.proven = n
	return r.states.Prune(n)
}

// save writes the state, and removes those before that are not needed.
func (r *run) save() error {
	r.done.Seconds = r.before + time.Since(r.started).Seconds()
	if err := r.Save(r.states.State(r.done.Step), *r.done, false); err != nil {
		return err
	}
	if err := r.states.GoOn(); err != nil {
		return err
	}
	return r.states.Prune(r.done.Step, r.proven)
}

// abandon keeps what there is after an error.
func (r *run) abandon(err error) error {
	switch {
	case r.states == "":
		return err
	case errors.Is(err, lm.ErrNonFinite):
		return r.halt(err)
	case r.done.Step == 0 || errors.Is(err, train.ErrTorn) || r.states.Has(r.done.Step):
		return err
	}
	return errors.Join(err, r.save())
}

// halt keeps the newest state with which a step has succeeded, and says which that is.
func (r *run) halt(err error) error {
	// The state before this step has led to it, so a run that went on from there would end as this one did.
	if failed := os.RemoveAll(r.states.State(r.done.Step)); failed != nil {
		return errors.Join(err, failed)
	}

	path, steps, failed := r.states.Latest()
	if failed != nil {
		return errors.Join(err, failed)
	}

	if path == "" {
		return failure.Hinted(fmt.Errorf("%w; there is no earlier state", err),
			"begin anew with a smaller --lr, a --warmup or a --clip; --save-every says how often a state is kept")
	}
	if failed := r.states.Halt(err); failed != nil {
		return errors.Join(err, failed)
	}

	return failure.Hinted(fmt.Errorf("%w; the state after %d steps is kept", err, steps),
		"--resume goes on from it, with a smaller --lr or a --clip")
}

// eval measures the loss on the held-out data when it is time.
func (r *run) eval(ctx context.Context) error {
	n := r.done.Step
	last := n == len(r.plan.Steps)
	if r.heldOut == nil || n > 0 && !last && (r.o.EvalEvery <= 0 || n%r.o.EvalEvery != 0) {
		return nil
	}

	loss, err := meanLoss(ctx, r.subject, *r.heldOut, r.o.evalBatches())
	if err != nil {
		return err
	}
	if err := train.Finite("the held-out loss", loss); err != nil {
		return err
	}

	// Only strictly better ones count, so of equal evaluations the earliest is kept.
	e := Eval{Step: n, Loss: loss, Best: true, Rewards: r.rewards(true)}
	for _, earlier := range r.done.Evals {
		e.Best = e.Best && loss < earlier.Loss
	}

	r.done.Evals = append(r.done.Evals, e)

	if e.Best && r.o.KeepBest && r.states != "" {
		// A best state is for use, not for going on: it needs neither the optimiser nor the losses.
		if err := r.Save(r.states.Best(), progress{Step: n}, true); err != nil {
			return err
		}
	}

	if r.o.Note != nil {
		r.o.Note(e)
	}

	return nil
}

// rewards are those of the latest step or evaluation of a subject that learns preferences; nil for any other.
func (r *run) rewards(held bool) *Rewards {
	if s, ok := r.subject.(interface {
		Rewards(held bool) *preference.Rewards
	}); ok {
		return (*Rewards)(s.Rewards(held))
	}
	return nil
}

// meanLoss is the mean loss of a subject over the tokens of data that count, or its preferences, some sequences at a
// time.
func meanLoss(ctx context.Context, s subject, d batches.Data, o batches.Options) (float64, error) {
	p, err := batches.New(d, o)
	if err != nil {
		return 0, err
	}

	sum, n := 0.0, 0
	for step := range p.Steps {
		list, _ := p.At(step)
		for _, b := range list {
			part, counted, err := s.Eval(ctx, b)
			if err != nil {
				return 0, err
			}

			sum += part
			n += counted
		}
	}

	return sum / float64(n), nil
}
