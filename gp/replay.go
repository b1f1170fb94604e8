package gp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/modelcompress/compress/internal/stage"
)

// replay is the journal of a search: its header identifies the search, and the steps behind it, in order, are replayed
// when it goes on. A nil replay keeps nothing.
type replay[Step any] struct {
	file  *stage.Journal
	steps []Step // to be replayed
	used  int
}

// openReplay creates a journal that begins with head or, to resume, opens one if it exists; same says what the header
// found there differs in. Anything that is wrong with it is refused, and left as it is: a search whose steps are not
// exactly those of the interrupted one would take another course.
func openReplay[Head, Step any](path string, resume bool, head Head, same func(found Head) error) (
	*replay[Step], error,
) {
	open := stage.NewJournal
	if resume {
		open = stage.OpenJournal
	}

	file, err := open(path)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s: %w: it exists; resume it or choose another name", path, ErrJournal)
	}
	if err != nil {
		return nil, err
	}

	r := &replay[Step]{file: file}
	lines := file.Lines()
	// Not a whole first line: it may be anybody's file, so it is not overwritten.
	switch {
	case len(lines) == 0 && file.Fault() != nil:
		err = file.Fault()
	case len(lines) == 0:
		err = file.Put(head)
	default:
		err = readReplay(r, lines, same)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return r, nil
}

func readReplay[Head, Step any](r *replay[Step], lines [][]byte, same func(found Head) error) error {
	// A header of another version may have other fields: same sees what could be read before the rest is refused.
	var found Head
	odd := strict(lines[0], &found)
	if json.Valid(lines[0]) {
		_ = json.Unmarshal(lines[0], &found) // goes on behind fields that don't fit
		if err := same(found); err != nil {
			return r.file.At(1, err)
		}
	}
	if odd != nil {
		return r.file.At(1, odd)
	}

	for i, line := range lines[1:] {
		var s Step
		if err := strict(line, &s); err != nil {
			return r.file.At(i+2, err)
		}
		r.steps = append(r.steps, s)
	}

	return r.file.Fault()
}

func strict(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// Next returns the next step to be replayed; ok is false if there is none.
func (r *replay[Step]) Next() (s Step, ok bool) {
	if r.Left() == 0 {
		return s, false
	}
	r.used++
	return r.steps[r.used-1], true
}

// Left counts the steps that have not been replayed.
func (r *replay[Step]) Left() int {
	if r == nil {
		return 0
	}
	return len(r.steps) - r.used
}

// Append adds a step.
func (r *replay[Step]) Append(s Step) error {
	if r == nil {
		return nil
	}
	return r.file.Put(s)
}

// Sync brings what was written to the disk.
func (r *replay[Step]) Sync() error {
	if r == nil {
		return nil
	}
	return r.file.Sync()
}

// Close closes the file.
func (r *replay[Step]) Close() error {
	if r == nil {
		return nil
	}
	return r.file.Close()
}
