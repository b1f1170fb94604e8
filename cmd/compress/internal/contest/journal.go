package contest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Ways in which a journal cannot be used.
var (
	ErrOtherJob = errors.New("the journal is that of another comparison")
	ErrBusy     = errors.New("another process is at work there")
)

// journal notes finished runs as lines of JSON, the first of which names the comparison. It is locked while open.
type journal struct {
	file *os.File
	runs map[string]Run // by fingerprint
}

type entry struct {
	Command string `json:"command,omitempty"`
	Job     string `json:"job,omitempty"`
	Run     *Run   `json:"run,omitempty"`
}

const (
	journalName = "journal.jsonl"
	maxJournal  = 256 << 20
)

// openJournal opens or makes the journal of a folder. job names what all runs share; a journal of another one is refused. A
// torn last line, which a crash can leave, counts for nothing.
func openJournal(dir, job string) (*journal, error) {
	path := filepath.Join(dir, journalName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, err
	}
	j := &journal{file: f, runs: map[string]Run{}}
	if err := j.read(job); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return j, nil
}

func (j *journal) read(job string) error {
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
	for i, line := range lines[:len(lines)-1] {
		var e entry
		switch err := json.Unmarshal(line, &e); {
		case err != nil:
			return fmt.Errorf("line %d: %w", i+1, err)
		case i == 0 && (e.Command != Command || e.Job != job):
			return ErrOtherJob
		case e.Run != nil:
			j.runs[e.Run.Key] = *e.Run
		}
	}
	if err := j.file.Truncate(int64(len(text))); err != nil {
		return err
	}
	if _, err := j.file.Seek(0, 2); err != nil {
		return err
	}
	if len(text) == 0 {
		return j.write(entry{Command: Command, Job: job})
	}
	return nil
}

func (j *journal) write(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return j.file.Sync()
}

// add notes a finished run; it is durable on return.
func (j *journal) add(r Run) error {
	j.runs[r.Key] = r
	return j.write(entry{Run: &r})
}

// close unlocks the journal.
func (j *journal) close() { _ = j.file.Close() }
