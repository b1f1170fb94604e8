package editcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/edit"
)

// errUnfinished protects the work of an interrupted run.
var errUnfinished = errors.New("it holds an unfinished run (HINT: --resume continues it, --overwrite starts over)")

// unfinished refuses to begin where an interrupted run can be continued.
func (o *Options) unfinished() error {
	path := edit.LogPath(o.Out)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || o.Resume || o.Overwrite {
		return nil
	}
	return fmt.Errorf("%s: %w", path, errUnfinished)
}

// mark is how far a run is, in its log.
type mark struct {
	Done   int       `json:"done"` // records
	Steps  []Step    `json:"steps,omitempty"`
	Failed []Failure `json:"failed,omitempty"`
}

// size is the number of edits that are written at once.
func (r *run) size() int {
	if r.o.Batch == 0 && edit.Batches(r.o.Method) {
		return len(r.records)
	}
	return max(r.o.Batch, 1)
}

// begin starts the log of the run, or goes on with that of an interrupted one, and tells how many records are done.
func (r *run) begin() (done int, err error) {
	job := r.name
	path := edit.LogPath(r.o.Out)
	if !r.o.Resume {
		r.log, err = edit.StartLog(path, job, r.e)
		return 0, err
	}

	log, notes, err := edit.ResumeLog(path, job, r.e)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.log, err = edit.StartLog(path, job, r.e)
		return 0, err
	case errors.Is(err, edit.ErrOtherJob):
		return 0, cli.Usagef("--resume: %w (HINT: --overwrite starts over)", err)
	case err != nil:
		return 0, err
	}

	r.log = log

	for _, text := range notes {
		var m mark
		if err := json.Unmarshal(text, &m); err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		done = m.Done
		r.r.Steps, r.r.Failed = append(r.r.Steps, m.Steps...), append(r.r.Failed, m.Failed...)
	}

	if done > 0 {
		r.Note("%d of %d edits were made before", done, len(r.records))
	}

	return done, nil
}

// job is a hash of all that the edited model depends on.
func (r *run) job() (string, error) {
	weights, err := r.m.Fingerprint(r.Ctx)
	if err != nil {
		return "", err
	}

	data := ""
	if r.r.Statistics != nil {
		data = r.r.Statistics.Data
	}

	return cli.Fingerprint(weights, len(r.e.Steps()), r.o.Method, r.hp, r.size(), data, r.Seed, r.records,
		r.o.KeepZeros, r.o.Adapter), nil
}

// apply writes the edits, batch by batch. An optimisation that diverges leaves its edit out.
func (r *run) apply() error {
	done, err := r.begin()
	if err != nil {
		return err
	}

	size := r.size()
	r.r.Batch = size
	bar := r.Progress("editing", int64(len(r.records)))
	defer bar.End()

	start := time.Now()

	for lo := done; lo < len(r.records); lo += size {
		hi := min(lo+size, len(r.records))
		if err := r.batch(lo, hi); err != nil {
			return fmt.Errorf("records %d to %d: %w", lo, hi-1, err)
		}
		bar.Set(int64(hi))
	}

	if fresh := len(r.records) - done; fresh > 0 {
		r.r.SecondsPerEdit = time.Since(start).Seconds() / float64(fresh)
	}

	return nil
}

// batch writes some edits and notes them in the log.
func (r *run) batch(lo, hi int) error {
	var names []string
	for i := range r.records[lo:hi] {
		rec := &r.records[lo+i]
		names = append(names, rec.ID+": "+rec.Full()+" "+strings.TrimSpace(rec.New))
	}

	steps, failed := len(r.r.Steps), len(r.r.Failed)
	step, err := r.e.Apply(r.Ctx, r.encoded[lo:hi], names)
	switch {
	case errors.Is(err, edit.ErrDiverged):
		for i := lo; i < hi; i++ {
			r.r.Failed = append(r.r.Failed, Failure{i, err.Error()})
		}
		r.Note("records %d to %d: %v; left out", lo, hi-1, err)
	case err != nil:
		return err
	default:
		r.r.step(lo, hi, step)
	}

	return r.log.Add(mark{hi, r.r.Steps[steps:], r.r.Failed[failed:]})
}
