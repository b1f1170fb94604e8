package edit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/safefile"
)

// ErrOtherJob: a log was written by a run with other edits, another model or other options.
var ErrOtherJob = errors.New("the unfinished run was another one")

// errNoHeader: a run was killed while it wrote the first line of its log, and had done nothing else.
var errNoHeader = errors.New("a log without a whole first line")

// Log is a journal on disk that grows with every step, so that a run of many edits continues where it was
// interrupted. What is not followed by a note counts as never written. Its lines are those of the journal that the
// finished model has, which is read by the same code, and not those of a [stage.Journal].
type Log struct {
	f            *os.File
	e            *Editing
	bases, steps int // that are in the file
}

// StartLog begins a log, in place of what is at path, with the edits so far. job names all that the outcome depends on.
func StartLog(path, job string, e *Editing) (*Log, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}

	l := &Log{f: f, e: e}
	if err := l.put(journalLine{Header: &header{Format: journalFormat, Version: journalVersion, Job: job}}); err !=
		nil {
		return nil, errors.Join(err, f.Close())
	}

	return l, nil
}

// ResumeLog brings a model, edited as far as it was when the log began, to the last note of the log, and
// returns the notes. A line that a crash has torn, and what it follows without a note, is dropped. Errors wrap
// [ErrOtherJob], [ErrJournal], or are those of the file.
func ResumeLog(path, job string, e *Editing) (*Log, []json.RawMessage, error) {
	in, err := safefile.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()

	j, notes, good, err := readLog(in, job)
	if errors.Is(err, errNoHeader) {
		l, err := StartLog(path, job, e)
		return l, nil, err
	}

	if err == nil {
		err = e.carryOn(j)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}

	if _, err = f.Seek(good, io.SeekStart); err == nil {
		err = f.Truncate(good)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}

	return &Log{f: f, e: e, bases: len(j.bases), steps: len(j.Steps)}, notes, nil
}

// readLog reads as far as the last note that is followed by nothing damaged; good is where that ends.
func readLog(r io.Reader, job string) (j *Journal, notes []json.RawMessage, good int64, err error) {
	in := bufio.NewReaderSize(r, 1<<20)
	j = &Journal{}

	bases := 0
	steps := 0
	at := int64(0)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		at += int64(len(text))
		body, bad := verified(n, bytes.TrimSuffix(text, []byte("\n")))
		if err != nil || bad != nil {
			if n == 1 && errors.Is(err, io.EOF) {
				return nil, nil, 0, errNoHeader
			}
			if n == 1 {
				return nil, nil, 0, fmt.Errorf("%w: line 1 is not complete", ErrJournal)
			}

			j.bases, j.Steps = j.bases[:bases], j.Steps[:steps]
			return j, notes, good, nil
		}

		var l journalLine
		if err := json.Unmarshal(body, &l); err == nil && l.Note != nil {
			notes, bases, steps, good = append(notes, l.Note), len(j.bases), len(j.Steps), at
			continue
		}

		if err := j.line(n, body); err != nil {
			return nil, nil, 0, err
		}

		if n == 1 {
			good = at
			if l.Header.Job != job {
				return nil, nil, 0, ErrOtherJob
			}
		}
	}
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
		if err := l.put(journalLine{Base: &baseLine{name, w.dtype.String(), w.base}}); err != nil {
			return err
		}
	}

	for ; l.steps < len(l.e.steps); l.steps++ {
		if err := l.put(journalLine{Step: packStep(&l.e.steps[l.steps])}); err != nil {
			return err
		}
	}

	text, err := json.Marshal(note)
	if err != nil {
		return err
	}

	if err := l.put(journalLine{Note: text}); err != nil {
		return err
	}

	return l.f.Sync()
}

func (l *Log) put(line journalLine) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	out := append(append([]byte(site.Hash(text)), ' '), text...)
	_, err = l.f.Write(append(out, '\n'))
	return err
}

// Close closes the file, which stays.
func (l *Log) Close() error { return l.f.Close() }

// Remove closes and removes the file, once the edited model is safe elsewhere.
func (l *Log) Remove() error { return errors.Join(l.f.Close(), os.Remove(l.f.Name())) }

// DropLog removes the log that a run left which was killed once its output was complete: that of job, or one
// that has not even a whole first line. Logs of other jobs stay. It is no error if there is none.
func DropLog(path, job string) error {
	f, err := safefile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	_, _, _, err = readLog(f, job)
	f.Close()
	if err != nil && !errors.Is(err, errNoHeader) {
		return nil
	}

	return os.Remove(path)
}

// LogPath is where the log of a run lies whose output is dir.
func LogPath(dir string) string {
	return filepath.Join(filepath.Dir(filepath.Clean(dir)), "."+filepath.Base(filepath.Clean(dir))+".edits.log")
}
