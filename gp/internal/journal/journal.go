// Package journal keeps an append-only file of lines, each JSON followed by a tab and the CRC-32 of all JSON up
// to there. The first line identifies the work, the following ones are its steps in order. A last line that was
// cut off is dropped when the file is opened again; anything else that is wrong is refused.
package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"

	"github.com/modelcompress/compress/internal/failure"
)

// Err says that a journal is damaged or belongs to other work.
var Err = failure.New("unusable journal",
	"--resume takes the command that began the search; --overwrite starts over")

// Journal is an open file. A nil Journal keeps nothing.
type Journal[Step any] struct {
	path  string
	file  *os.File
	sum   uint32
	steps []Step // to be replayed
	used  int
}

// Open creates a journal that begins with head or, to resume, opens one if it exists; same says what the header
// found there differs in.
func Open[Head, Step any](path string, resume bool, head Head, same func(found Head) error) (*Journal[Step], error) {
	flags := os.O_RDWR | os.O_CREATE
	if !resume {
		flags |= os.O_EXCL
	}

	file, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s: %w: it exists; resume it or choose another name", path, Err)
	}

	if err != nil {
		return nil, err
	}

	j := &Journal[Step]{path: path, file: file}
	whole, err := j.repair()
	switch {
	case err != nil:
	case len(whole) == 0:
		err = j.write(head)
	default:
		err = read(j, whole, same)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return j, nil
}

// repair drops a last line that is not complete and returns the others.
func (j *Journal[Step]) repair() ([]byte, error) {
	text, err := io.ReadAll(j.file)
	if err != nil {
		return nil, err
	}

	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole < len(text) {
		if err := j.file.Truncate(int64(whole)); err != nil {
			return nil, err
		}
	}

	_, err = j.file.Seek(int64(whole), io.SeekStart)
	return text[:whole], err
}

func read[Head, Step any](j *Journal[Step], text []byte, same func(found Head) error) error {
	for number := 1; len(text) > 0; number++ {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		text = rest
		fail := func(err error) error { return fmt.Errorf("%s:%d: %w: %w", j.path, number, Err, err) }
		body, mark, ok := bytes.Cut(line, []byte{'\t'})
		j.sum = crc32.Update(j.sum, crc32.IEEETable, body)
		if !ok || string(mark) != fmt.Sprintf("%08x", j.sum) {
			return fail(errors.New("the line is damaged"))
		}

		var err error
		if number == 1 {
			// A header of another version may have other fields: same sees what could be read before the rest
			// is refused.
			var found Head
			odd := strict(body, &found)

			if json.Valid(body) {
				_ = json.Unmarshal(body, &found) // goes on behind fields that don't fit
				err = same(found)
			}
			if err == nil {
				err = odd
			}
		} else {
			var s Step
			err = strict(body, &s)
			j.steps = append(j.steps, s)
		}
		if err != nil {
			return fail(err)
		}
	}

	return nil
}

func strict(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// Next returns the next step to be replayed; ok is false if there is none.
func (j *Journal[Step]) Next() (s Step, ok bool) {
	if j.Left() == 0 {
		return s, false
	}
	j.used++
	return j.steps[j.used-1], true
}

// Left counts the steps that have not been replayed.
func (j *Journal[Step]) Left() int {
	if j == nil {
		return 0
	}
	return len(j.steps) - j.used
}

// Append adds a step.
func (j *Journal[Step]) Append(s Step) error {
	if j == nil {
		return nil
	}
	return j.write(s)
}

// write adds a line in one call.
func (j *Journal[Step]) write(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	j.sum = crc32.Update(j.sum, crc32.IEEETable, body)
	_, err = j.file.Write(fmt.Appendf(body, "\t%08x\n", j.sum))
	return err
}

// Sync brings what was written to the disk.
func (j *Journal[Step]) Sync() error {
	if j == nil {
		return nil
	}
	return j.file.Sync()
}

// Close closes the file.
func (j *Journal[Step]) Close() error {
	if j == nil {
		return nil
	}
	return j.file.Close()
}
