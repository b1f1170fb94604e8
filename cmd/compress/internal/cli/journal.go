package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
)

// ErrOtherJob: the journal notes steps of other work, which is a wrong use.
var ErrOtherJob = failure.Others(failure.Misuse("the journal is that of another job", ""))

// Journal notes finished steps of long work in a plain [stage.Journal]: its first line names the work, each of the
// others is a step. Done holds the steps that are finished, by their keys: fingerprints of all that a step's result
// depends on.
type Journal[T any] struct {
	Done  map[string]T
	lines *stage.Journal
}

// line is a line of a journal: the first has Command and Job, the others Key and Step.
type line[T any] struct {
	Command string `json:"command,omitempty"`
	Job     string `json:"job,omitempty"`
	Key     string `json:"key,omitempty"`
	Step    *T     `json:"step,omitempty"`
}

// OpenJournal opens or makes a journal. command names the verb, job is the fingerprint of what all steps share (see
// [Fingerprint]); a journal of another one is refused with [ErrOtherJob], one that another process has open with
// [stage.ErrBusy], a damaged one with [stage.ErrJournal]. A torn last line, which a crash can leave, counts for
// nothing.
func OpenJournal[T any](path, command, job string) (*Journal[T], error) {
	lines, err := stage.OpenPlainJournal(path)
	if err != nil {
		return nil, err
	}
	j := &Journal[T]{Done: map[string]T{}, lines: lines}
	if err := j.take(path, command, job); err != nil {
		return nil, errors.Join(err, lines.Close())
	}
	return j, nil
}

// take reads the steps, or begins the journal.
func (j *Journal[T]) take(path, command, job string) error {
	for i, text := range j.lines.Lines() {
		var l line[T]
		switch err := json.Unmarshal(text, &l); {
		case err != nil:
			return j.lines.At(i+1, err)
		case i == 0 && (l.Command != command || l.Job != job):
			return fmt.Errorf("%s: %w", path, ErrOtherJob)
		case l.Step != nil:
			j.Done[l.Key] = *l.Step
		}
	}

	if err := j.lines.Fault(); err != nil {
		return err
	}
	if len(j.lines.Lines()) == 0 {
		return j.lines.Start(line[T]{Command: command, Job: job})
	}

	return nil
}

// Add notes a finished step; it is durable on return.
func (j *Journal[T]) Add(key string, step T) error {
	j.Done[key] = step
	return j.lines.Add(line[T]{Key: key, Step: &step})
}

// Close unlocks the journal. Everything added is on the disk already.
func (j *Journal[T]) Close() { _ = j.lines.Close() }

// Measurements opens the journal of an output that is chosen by measuring: with resume that of an interrupted run.
// Without, one that is there is in the way unless overwrite gives it up.
func Measurements(path string, resume, overwrite bool, command, job string) (*Journal[float64], error) {
	if _, err := os.Lstat(path); err == nil && !resume {
		if !overwrite {
			return nil, Usagef("%s: the journal of an interrupted run (HINT: --resume goes on with it, --overwrite "+
				"begins anew)", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return OpenJournal[float64](path, command, job)
}
