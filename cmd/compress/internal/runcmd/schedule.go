package runcmd

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// event is the end of a job.
type event struct {
	j   *job
	key string
	o   *outcome
	err error
}

// schedule has the jobs done, each when all that it needs is there. After a failure no further job is begun, or
// with KeepGoing none that needs it. The error is one of the run itself: those of jobs are in their rows.
func (r *run) schedule() error {
	events := make(chan event)
	begun := map[*job]bool{}
	running := 0
	failed := false
	var errs error
	start := func() {
		for _, j := range r.jobs {
			if running >= r.limit || errs != nil || r.Ctx.Err() != nil || failed && !r.o.KeepGoing {
				return
			}

			if !begun[j] && !slices.ContainsFunc(j.needs, func(n *job) bool { return !r.rows[n].ready() }) {
				begun[j] = true
				running++
				go func() { events <- r.one(j) }()
			}
		}
	}

	for start(); running > 0; start() {
		e := <-events
		running--
		if e.err != nil {
			errs = errors.Join(errs, e.err)
			continue
		}

		row := r.rows[e.j]
		row.Key = e.key
		row.State = e.o.State
		row.Seconds = e.o.Seconds

		row.Error = e.o.Failure
		row.Resumed = e.o.Resumed
		row.Worker = e.o.Worker
		failed = failed || row.State == stateFailed
		r.tell(row)
	}

	if err := r.Ctx.Err(); err != nil {
		return err
	}

	return errs
}

// one has one job done.
func (r *run) one(j *job) event {
	e := event{j: j}
	if e.key, e.err = keyOf(r.Ctx, r.hashes, j, r.dir, r.version); e.err != nil {
		return e.asFailure(r.Ctx)
	}

	if j.recipe != nil {
		if e.err = cli.WriteFile(filepath.Join(r.dir, recipeName(j.name)), j.document(r.dir)); e.err != nil {
			return e
		}
	}

	e.o, e.err = r.hand(j.describe(r.dir, e.key))
	return e
}

// asFailure makes a job's input that cannot be read the failure of that job.
func (e event) asFailure(ctx context.Context) event {
	if ctx.Err() == nil {
		e.o, e.err = &outcome{State: stateFailed, Failure: e.err.Error()}, nil
	}
	return e
}

// tell says what became of a job.
func (r *run) tell(row *Row) {
	took := time.Duration(row.Seconds * float64(time.Second)).Round(10 * time.Millisecond)
	over := 0
	for _, other := range r.rows {
		if other.State != stateIdle {
			over++
		}
	}

	switch row.State {
	case stateKept:
		r.say("%s: kept, nothing has changed (%d of %d)", row.Name, over, len(r.rows))
	case stateFailed:
		r.say("%s: failed after %v: %s", row.Name, took, row.Error)
	default:
		r.say("%s: done in %v (%d of %d%s)", row.Name, took, over, len(r.rows), r.left())
	}
}

// left is about how long the rest takes, if that is known: from earlier runs of the jobs, or of variants of them.
func (r *run) left() string {
	sum, n := map[string]float64{}, map[string]float64{}
	for _, j := range r.jobs {
		if s := r.known[j.name]; s > 0 || r.rows[j].State == stateDone {
			sum[j.base] += max(s, r.rows[j].Seconds)
			n[j.base]++
		}
	}

	total, open := 0.0, 0
	for _, j := range r.jobs {
		if r.rows[j].State != stateIdle {
			continue
		}

		open++

		switch {
		case r.known[j.name] > 0:
			total += r.known[j.name]
		case n[j.base] > 0:
			total += sum[j.base] / n[j.base]
		default:
			return ""
		}
	}

	if open == 0 {
		return ""
	}

	left := time.Duration(total / float64(max(1, min(r.limit, open))) * float64(time.Second))
	return ", about " + left.Round(100*time.Millisecond).String() + " left"
}
