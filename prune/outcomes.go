package prune

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/stage"
)

// outcomes notes finished runs of a comparison as lines of JSON, the first of which names the comparison. It is locked
// while open. done holds the runs that are finished, by their keys: fingerprints of all that a run's outcome depends
// on. It is no [stage.Journal], whose lines carry checksums: finished comparisons have it among their files, and those
// of earlier builds are added to.
type outcomes struct {
	done map[string]Outcome
	file *os.File
}

// outcomeLine is a line of the journal: the first has Command and Job, the others Key and Step.
type outcomeLine struct {
	Command string   `json:"command,omitempty"`
	Job     string   `json:"job,omitempty"`
	Key     string   `json:"key,omitempty"`
	Step    *Outcome `json:"step,omitempty"`
}

const maxOutcomes = 256 << 20

// openOutcomes opens or makes a journal. job is the fingerprint of what all runs share; a journal of another one is
// [ErrOtherComparison], one that another process has open [stage.ErrBusy]. A torn last line, which a crash can leave,
// counts for nothing.
func openOutcomes(path, job string) (*outcomes, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, err
	}
	j := &outcomes{file: f, done: map[string]Outcome{}}
	if err := j.read(job); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return j, nil
}

func (j *outcomes) read(job string) error {
	if unix.Flock(int(j.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return stage.ErrBusy
	}

	st, err := j.file.Stat()
	if err != nil {
		return err
	}

	if st.Size() > maxOutcomes {
		return fmt.Errorf("%d bytes are more than any comparison's journal has", st.Size())
	}

	text := make([]byte, st.Size())
	if _, err := j.file.ReadAt(text, 0); err != nil {
		return err
	}

	text = text[:bytes.LastIndexByte(text, '\n')+1]
	lines := bytes.SplitAfter(text, []byte("\n"))
	for i, text := range lines[:len(lines)-1] {
		var l outcomeLine
		switch err := json.Unmarshal(text, &l); {
		case err != nil:
			return fmt.Errorf("line %d: %w", i+1, err)
		case i == 0 && (l.Command != comparing || l.Job != job):
			return ErrOtherComparison
		case l.Step != nil:
			j.done[l.Key] = *l.Step
		}
	}

	if err := j.file.Truncate(int64(len(text))); err != nil {
		return err
	}
	if _, err := j.file.Seek(0, 2); err != nil {
		return err
	}
	if len(text) == 0 {
		return j.write(outcomeLine{Command: comparing, Job: job})
	}

	return nil
}

func (j *outcomes) write(l outcomeLine) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(text, '\n')); err != nil {
		return err
	}
	return j.file.Sync()
}

// add notes a finished run; it is durable on return.
func (j *outcomes) add(key string, run Outcome) error {
	j.done[key] = run
	return j.write(outcomeLine{Key: key, Step: &run})
}

// close unlocks the journal. Everything added is on the disk already.
func (j *outcomes) close() { _ = j.file.Close() }
