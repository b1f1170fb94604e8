package prune

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/stage"
)

// outcomes notes finished runs of a comparison in a plain [stage.Journal]: its first line names the comparison, each of
// the others is a run. done holds the runs that are finished, by their keys: fingerprints of all that a run's outcome
// depends on.
type outcomes struct {
	done  map[string]Outcome
	lines *stage.Journal
}

// outcomeLine is a line of the journal: the first has Command and Job, the others Key and Step.
type outcomeLine struct {
	Command string   `json:"command,omitempty"`
	Job     string   `json:"job,omitempty"`
	Key     string   `json:"key,omitempty"`
	Step    *Outcome `json:"step,omitempty"`
}

// openOutcomes opens or makes a journal. job is the fingerprint of what all runs share; a journal of another one is
// [ErrOtherComparison], one that another process has open [stage.ErrBusy], a damaged one [stage.ErrJournal]. A torn
// last line, which a crash can leave, counts for nothing.
func openOutcomes(path, job string) (*outcomes, error) {
	lines, err := stage.OpenPlainJournal(path)
	if err != nil {
		return nil, err
	}
	j := &outcomes{done: map[string]Outcome{}, lines: lines}
	if err := j.take(path, job); err != nil {
		return nil, errors.Join(err, lines.Close())
	}
	return j, nil
}

// take reads the runs, or begins the journal.
func (j *outcomes) take(path, job string) error {
	for i, text := range j.lines.Lines() {
		var l outcomeLine
		switch err := json.Unmarshal(text, &l); {
		case err != nil:
			return j.lines.At(i+1, err)
		case i == 0 && (l.Command != comparing || l.Job != job):
			return fmt.Errorf("%s: %w", path, ErrOtherComparison)
		case l.Step != nil:
			j.done[l.Key] = *l.Step
		}
	}

	if err := j.lines.Fault(); err != nil {
		return err
	}
	if len(j.lines.Lines()) == 0 {
		return j.lines.Start(outcomeLine{Command: comparing, Job: job})
	}

	return nil
}

// add notes a finished run; it is durable on return.
func (j *outcomes) add(key string, run Outcome) error {
	j.done[key] = run
	return j.lines.Add(outcomeLine{Key: key, Step: &run})
}

// close unlocks the journal. Everything added is on the disk already.
func (j *outcomes) close() { _ = j.lines.Close() }
