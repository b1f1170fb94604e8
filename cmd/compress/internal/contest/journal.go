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

// Journal notes finished runs as lines of JSON, the first of which names the comparison. It is locked while open.
type Journal struct {
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

// OpenJournal opens or makes the journal of a folder. job names what all runs share; a journal of another one is refused. A
// torn last line, which a crash can leave, counts for nothing.
func OpenJournal(dir, job string) (*Journal, error) {
	path := filepath.Join(dir, journalName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, err
	}
	j := &Journal{file: f, runs: map[string]Run{}}
	if err := j.read(job); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return j, nil
}

func (j *Journal) read(job string) error {
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

func (j *Journal) write(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return j.file.Sync()
}

// Find gives a finished run by its fingerprint.
func (j *Journal) Find(key string) (Run, bool) {
	r, ok := j.runs[key]
	return r, ok
}

// Add notes a finished run; it is durable on return.
func (j *Journal) Add(r Run) error {
	j.runs[r.Key] = r
	return j.write(entry{Run: &r})
}

// Close unlocks the journal.
func (j *Journal) Close() error { return j.file.Close() }

// IsContest tells whether a folder is that of a comparison: nothing is there that none writes.
func IsContest(dir string) bool {
	entries, err := os.ReadDir(dir)
	found := false
	for _, e := range entries {
		switch e.Name() {
		case journalName:
			found = true
		case "report.json", "report.html", ModelsFolder:
		default:
			return false
		}
	}
	return err == nil && found
}

// ModelsFolder is where the models of a comparison are.
const ModelsFolder = "models"

// Clear removes what a comparison has written, but not the folder.
func Clear(dir string) error {
	var err error
	for _, name := range []string{"report.json", "report.html", ModelsFolder, journalName} { // the journal, which marks the folder, last
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	return err
}
