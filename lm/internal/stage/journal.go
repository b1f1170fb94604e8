package stage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const journalName = "journal.jsonl"

// maxJournal bounds what is read of a journal: a few times the names of the largest checkpoints.
const maxJournal = 256 << 20

// journal notes which tensors of an output are durable: one JSON object per line, the first names the job. A torn last
// line, which a crash can leave, counts for nothing. It is locked while open.
type journal struct {
	path    string
	file    *os.File
	entries []journalEntry
}

type journalEntry struct {
	Job  *string  `json:"job,omitempty"`
	Done []string `json:"done,omitempty"`
	Sums []uint32 `json:"sums,omitempty"` // CRC-32C of their bytes
}

// openJournal opens or makes a journal and reads what is there.
func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, err
	}

	j := &journal{path: path, file: f}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: another process is writing this output: %w", path, err), f.Close())
	}
	if err := j.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}

	return j, nil
}

// read takes the whole lines and cuts off the rest.
func (j *journal) read() error {
	text, err := io.ReadAll(io.LimitReader(j.file, maxJournal))
	if err != nil {
		return err
	}

	good := 0
	for {
		end := bytes.IndexByte(text[good:], '\n')
		if end < 0 {
			break
		}

		var e journalEntry
		if json.Unmarshal(text[good:good+end], &e) != nil {
			break
		}

		j.entries = append(j.entries, e)
		good += end + 1
	}

	if err := j.file.Truncate(int64(good)); err != nil {
		return err
	}

	_, err = j.file.Seek(int64(good), io.SeekStart)
	return err
}

// job is the fingerprint of the job, false before it has started.
func (j *journal) job() (string, bool) {
	if len(j.entries) == 0 || j.entries[0].Job == nil {
		return "", false
	}
	return *j.entries[0].Job, true
}

// done lists the tensors that are there, in the order in which they were first noted, and their latest
// checksums; nil where there is none.
func (j *journal) done() (sums map[string]*uint32, names []string) {
	sums = map[string]*uint32{}
	for _, e := range j.entries {
		for i, name := range e.Done {
			if _, known := sums[name]; !known {
				names = append(names, name)
			}

			sums[name] = nil
			if i < len(e.Sums) {
				sums[name] = &e.Sums[i]
			}
		}
	}

	return sums, names
}

// start empties the journal and notes the job.
func (j *journal) start(job string) error {
	if err := j.file.Truncate(0); err != nil {
		return err
	}
	if _, err := j.file.Seek(0, io.SeekStart); err != nil {
		return err
	}

	j.entries = nil
	if err := j.write(journalEntry{Job: &job}); err != nil {
		return err
	}

	return syncFolderOf(j.path)
}

// add notes tensors; they are durable before, the note is when add returns.
func (j *journal) add(names []string, sums []uint32) error {
	if len(names) == 0 {
		return nil
	}
	return j.write(journalEntry{Done: names, Sums: sums})
}

func (j *journal) write(e journalEntry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%s: %w", j.path, err)
	}
	return j.file.Sync()
}

func (j *journal) close() error { return j.file.Close() }

// remove deletes the journal once it is no longer needed. It may be called again.
func (j *journal) remove() error {
	if err := os.Remove(j.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
