package tune

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// journalLimit bounds what is read of a journal.
const journalLimit = 1 << 30

// Journal is the file of a search's steps. Every write is on disk when it returns. It stays in the finished folder,
// where people read it and earlier builds wrote it as plain lines, so it is no [stage.Journal].
type Journal struct{ f *os.File }

// OpenJournal starts the journal of a search, which job identifies, or with resume reads that of an interrupted
// one, and is ready to write behind its last whole line. The errors wrap [os.ErrExist] for one that is not to
// be continued, and [ErrJournal] for that of another job.
func OpenJournal(path, job string, resume bool) (_ *Journal, steps []byte, err error) {
	head, err := json.Marshal(map[string]string{"job": job})
	if err != nil {
		return nil, nil, err
	}

	head = append(head, '\n')
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()

	text, err := io.ReadAll(io.LimitReader(f, journalLimit))
	switch {
	case err != nil:
		return nil, nil, err
	case len(text) > 0 && !resume:
		return nil, nil, fmt.Errorf("%s: %w", path, os.ErrExist)
	case bytes.HasPrefix(text, head):
		steps = text[len(head) : bytes.LastIndexByte(text, '\n')+1]
	case bytes.IndexByte(text, '\n') >= 0:
		return nil, nil, fmt.Errorf("%s: %w: recipe, what is measured, or options differ", path, ErrJournal)
	}

	if steps == nil { // a new file, or one that ends within its first line
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt(head, 0)
		}
	} else {
		err = f.Truncate(int64(len(head) + len(steps)))
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekEnd)
	}

	return &Journal{f}, steps, err
}

// Write implements [io.Writer].
func (j *Journal) Write(p []byte) (int, error) {
	n, err := j.f.Write(p)
	if err == nil {
		err = j.f.Sync()
	}
	return n, err
}

// Close closes the file.
func (j *Journal) Close() error { return j.f.Close() }
