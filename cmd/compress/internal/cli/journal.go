package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Ways in which a journal cannot be used. ErrOtherJob is a wrong use.
var (
	ErrOtherJob = Usagef("the journal is that of another job")
	ErrBusy     = errors.New("another process is at work there")
)

// Journal notes finished steps of long work as lines of JSON, the first of which names the work. It is locked
// while open. Done holds the steps that are finished, by their keys: fingerprints of all that a step's result
// depends on. It is no [stage.Journal], whose lines carry checksums: finished comparisons have it among their
// files, and those of earlier builds are added to.
type Journal[T any] struct {
	Done map[string]T
	file *os.File
}

// line is a line of a journal: the first has Command and Job, the others Key and Step.
type line[T any] struct {
	Command string `json:"command,omitempty"`
	Job     string `json:"job,omitempty"`
	Key     string `json:"key,omitempty"`
	Step    *T     `json:"step,omitempty"`
}

const maxJournal = 256 << 20

// OpenJournal opens or makes a journal. command names the verb, job is the fingerprint of what all steps share (see
// [Fingerprint]); a journal of another one is refused. A torn last line, which a crash can leave, counts for nothing.
func OpenJournal[T any](path, command, job string) (*Journal[T], error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, err
	}
	j := &Journal[T]{file: f, Done: map[string]T{}}
	if err := j.read(command, job); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return j, nil
}

func (j *Journal[T]) read(command, job string) error {
	if unix.Flock(int(j.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return ErrBusy
	}

	st, err := j.file.Stat()
	if err != nil {
		return err
	}

	if st.Size() > maxJournal {
		return fmt.Errorf("%d bytes are more than any journal has", st.Size())
	}

	text := make([]byte, st.Size())
	if _, err := j.file.ReadAt(text, 0); err != nil {
		return err
	}

	text = text[:bytes.LastIndexByte(text, '\n')+1]
	lines := bytes.SplitAfter(text, []byte("\n"))
	for i, text := range lines[:len(lines)-1] {
		var l line[T]
		switch err := json.Unmarshal(text, &l); {
		case err != nil:
			return fmt.Errorf("line %d: %w", i+1, err)
		case i == 0 && (l.Command != command || l.Job != job):
			return ErrOtherJob
		case l.Step != nil:
			j.Done[l.Key] = *l.Step
		}
	}

	if err := j.file.Truncate(int64(len(text))); err != nil {
		return err
	}
	if _, err := j.file.Seek(0, 2); err != nil {
		return err
	}
	if len(text) == 0 {
		return j.write(line[T]{Command: command, Job: job})
	}

	return nil
}

func (j *Journal[T]) write(l line[T]) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(text, '\n')); err != nil {
		return err
	}
	return j.file.Sync()
}

// Add notes a finished step; it is durable on return.
func (j *Journal[T]) Add(key string, step T) error {
	j.Done[key] = step
	return j.write(line[T]{Key: key, Step: &step})
}

// Close unlocks the journal. Everything added is on the disk already.
func (j *Journal[T]) Close() { _ = j.file.Close() }
