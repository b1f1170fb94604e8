package edit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
)

// ErrOtherJob: a log was written by a run with other edits, another model or other options.
var ErrOtherJob = failure.Others(failure.Misuse("the unfinished run was another one", "--overwrite starts over"))

// Log is a journal on disk that grows with every step, so that a run of many edits continues where it was
// interrupted. It is locked while it is open. What is not followed by a note counts as never written. Its lines are
// those of the journal that the finished model has.
type Log struct {
	path         string
	j            *stage.Journal
	e            *Editing
	bases, steps int // that are in the file
}

// StartLog begins a log, in place of what is at path, with the edits so far. job names all that the outcome depends on.
// The error wraps [stage.ErrBusy] while another process has the log.
func StartLog(path, job string, e *Editing) (*Log, error) {
	j, err := stage.StartLarge(path,
		journalLine{Header: &header{Format: journalFormat, Version: journalVersion, Job: job}})
	if err != nil {
		return nil, err
	}
	return &Log{path: path, j: j, e: e}, nil
}

// ResumeLog brings a model, edited as far as it was when the log began, to the last note of the log, and
// returns the notes. A line that a crash has torn, and what it follows without a note, is dropped. Errors wrap
// [ErrOtherJob], [ErrJournal], or are those of the file.
func ResumeLog(path, job string, e *Editing) (*Log, []json.RawMessage, error) {
	old, err := openLog(path, job)
	if err != nil {
		return nil, nil, err
	}

	if old.good == 0 { // nothing but a torn header
		if err := old.file.Close(); err != nil {
			return nil, nil, err
		}
		l, err := StartLog(path, job, e)
		return l, nil, err
	}

	err = e.carryOn(&old.journal)
	if err == nil {
		err = old.file.Keep(old.good)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), old.file.Close())
	}

	l := &Log{path: path, j: old.file, e: e, bases: len(old.journal.bases), steps: len(old.journal.Steps)}
	return l, old.notes, nil
}

// unfinished is the log of an interrupted run, as far as its last note that is followed by nothing damaged.
type unfinished struct {
	file    *stage.Journal
	journal Journal
	notes   []json.RawMessage
	good    int // lines as far as the last note; 0: there is no whole line, the run had done nothing
}

// openLog reads the log of an interrupted run of a job.
func openLog(path, job string) (*unfinished, error) {
	u := &unfinished{}
	bases := 0
	steps := 0

	var err error
	u.file, err = stage.OpenLarge(path, func(n int, value []byte) error {
		var l journalLine
		// Only a note makes what stands before it count: bases and steps after the last one belong to a batch that
		// was not finished.
		if err := json.Unmarshal(value, &l); err == nil && l.Note != nil && n > 1 {
			u.notes = append(u.notes, l.Note)
			u.good = n
			bases = len(u.journal.bases)
			steps = len(u.journal.Steps)
			return nil
		}

		if err := u.journal.line(n, value); err != nil {
			return err
		}
		if n > 1 {
			return nil
		}

		u.good = 1
		if u.journal.Job != job {
			return ErrOtherJob
		}
		return nil
	})
	if err != nil {
		return nil, err
	}

	// Damage before the first note leaves nothing to go on with, and no job that could be compared.
	if u.file.Fault() != nil && u.good == 0 {
		return nil, errors.Join(fmt.Errorf("%s: %w: line 1 is damaged", path, ErrJournal), u.file.Close())
	}

	u.journal.bases = u.journal.bases[:bases]
	u.journal.Steps = u.journal.Steps[:steps]
	return u, nil
}

// carryOn takes the steps of a journal that the model does not have yet.
func (e *Editing) carryOn(j *Journal) error {
	if len(j.Steps) < len(e.steps) {
		if len(j.Steps) == 0 {
			return nil
		}
		return fmt.Errorf("%w: %d steps, the model has %d", ErrJournal, len(j.Steps), len(e.steps))
	}

	for i := range j.bases {
		if _, ok := e.weights[j.bases[i].Linear]; ok {
			continue
		}
		if err := e.adopt(&j.bases[i], j, false); err != nil {
			return err
		}
	}

	return e.play(j, len(e.steps))
}

// play takes the steps of a journal from one on.
func (e *Editing) play(j *Journal, from int) error {
	for i := from; i < len(j.Steps); i++ {
		s := j.Steps[i]
		for _, d := range s.Deltas {
			if _, ok := e.weights[d.Linear]; !ok {
				return fmt.Errorf("%w: step %d changes %.200q, of which it has no base", ErrJournal, i+1, d.Linear)
			}
		}

		if err := e.replay(&s); err != nil {
			return err
		}

		e.steps = append(e.steps, s)
	}

	return nil
}

// Add writes what has been edited since, and a note that says how far the run is. When it returns, that
// survives a crash.
func (l *Log) Add(note any) error {
	for ; l.bases < len(l.e.order); l.bases++ {
		name := l.e.order[l.bases]
		w := l.e.weights[name]
		if err := l.j.Put(journalLine{Base: &baseLine{name, w.dtype.String(), w.base}}); err != nil {
			return err
		}
	}

	for ; l.steps < len(l.e.steps); l.steps++ {
		if err := l.j.Put(journalLine{Step: packStep(&l.e.steps[l.steps])}); err != nil {
			return err
		}
	}

	text, err := json.Marshal(note)
	if err != nil {
		return err
	}

	return l.j.Add(journalLine{Note: text})
}

// Close closes the file, which stays.
func (l *Log) Close() error { return l.j.Close() }

// Remove removes the file and closes it, once the edited model is safe elsewhere.
func (l *Log) Remove() error { return errors.Join(l.j.Remove(), l.j.Close()) }

// DropLog removes the log that a run left which was killed once its output was complete: that of job, or one
// that has not even a whole first line. Logs of other jobs stay. It is no error if there is none.
func DropLog(path, job string) error {
	u, err := openLog(path, job)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrOtherJob), errors.Is(err, ErrJournal):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(u.file.Remove(), u.file.Close())
}

// LogPath is where the log of a run lies whose output is dir.
func LogPath(dir string) string {
	return filepath.Join(filepath.Dir(filepath.Clean(dir)), "."+filepath.Base(filepath.Clean(dir))+".edits.log")
}
