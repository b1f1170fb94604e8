package stage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
)

// ErrJournal says that a journal is damaged or cannot be used.
var ErrJournal = failure.New("unusable journal",
	"--resume takes the command that began the work; --overwrite starts over")

// maxJournal bounds what is read of a journal: a few times the names of the largest checkpoints.
const maxJournal = 1 << 30

// Journal is an append-only file of lines, which is locked while open. Each line is a JSON value, a tab and eight
// digits: the CRC-32 of all values up to there, so that a line that was changed, lost or moved is noticed. The first
// line is the header, which identifies the work; the following ones are its steps in order. A last line without its
// end, which a crash can leave, counts for nothing. A plain journal has the values alone.
type Journal struct {
	path  string
	file  *os.File
	plain bool
	sum   uint32
	lines [][]byte
	ends  []int64 // of the lines
	sums  []uint32
	fault error
}

// OpenJournal opens the journal at path, or makes one, and reads what is there. The error wraps [ErrBusy] while another
// process has it, or is one of the operating system; damage is no error here, see [Journal.Fault].
func OpenJournal(path string) (*Journal, error) { return openJournal(path, 0, false) }

// OpenPlainJournal is [OpenJournal] for a plain journal. Comparisons and demos keep theirs among their finished files,
// which later builds add to, so that its form is theirs for good.
func OpenPlainJournal(path string) (*Journal, error) { return openJournal(path, 0, true) }

// NewJournal makes a journal where none is. The error wraps fs.ErrExist where there is one.
func NewJournal(path string) (*Journal, error) { return openJournal(path, os.O_EXCL, false) }

func openJournal(path string, flags int, plain bool) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|flags, 0o666)
	if err != nil {
		return nil, err
	}

	j := &Journal{path: path, file: f, plain: plain}
	if err := hold(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	if err := j.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}

	return j, nil
}

// read takes the lines up to the first that is damaged, and cuts off a torn last one.
func (j *Journal) read() error {
	if st, err := j.file.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > maxJournal {
		return errors.Join(err, ErrJournal)
	}

	text, err := io.ReadAll(j.file)
	if err != nil {
		return err
	}

	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole < len(text) {
		if err := j.file.Truncate(int64(whole)); err != nil {
			return err
		}
	}

	for at := 0; at < whole && j.fault == nil; {
		length := bytes.IndexByte(text[at:], '\n')
		body, ok := j.value(text[at : at+length])
		sum := crc32.Update(j.sum, crc32.IEEETable, body)
		if !ok {
			j.fault = j.At(len(j.lines)+1, errors.New("the line is damaged"))
			break
		}

		at += length + 1
		j.sum = sum
		j.lines = append(j.lines, body)
		j.sums = append(j.sums, sum)
		j.ends = append(j.ends, int64(at))
	}

	_, err = j.file.Seek(0, io.SeekEnd)
	return err
}

// value is the JSON value of the line that follows those that were read, and whether the line is whole.
func (j *Journal) value(line []byte) (body []byte, whole bool) {
	if j.plain {
		return line, json.Valid(line)
	}
	body, mark, ok := bytes.Cut(line, []byte{'\t'})
	return body, ok && string(mark) == fmt.Sprintf("%08x", crc32.Update(j.sum, crc32.IEEETable, body))
}

// Lines are the JSON values that were there when the journal was opened, in front of damage; the first is the header.
func (j *Journal) Lines() [][]byte { return j.lines }

// Fault is the damage of the journal, nil if there is none. It wraps [ErrJournal] and names the line. What is added
// behind damage is never read, so the caller gives the journal up, or calls [Journal.Keep].
func (j *Journal) Fault() error { return j.fault }

// At is an error about a line, the first of which is 1.
func (j *Journal) At(line int, err error) error {
	return fmt.Errorf("%s:%d: %w: %w", j.path, line, ErrJournal, err)
}

// Keep cuts off everything behind the first n lines.
func (j *Journal) Keep(n int) error {
	end := int64(0)
	j.sum = 0
	if n > 0 {
		end = j.ends[n-1]
		j.sum = j.sums[n-1]
	}

	j.lines = j.lines[:n]
	j.ends = j.ends[:n]
	j.sums = j.sums[:n]
	j.fault = nil

	if err := j.file.Truncate(end); err != nil {
		return err
	}
	_, err := j.file.Seek(end, io.SeekStart)
	return err
}

// Start empties the journal and writes a header; the name of the file is durable on return, too.
func (j *Journal) Start(header any) error {
	if err := j.Keep(0); err != nil {
		return err
	}
	if err := j.Add(header); err != nil {
		return err
	}
	return safefile.SyncFolder(filepath.Dir(j.path))
}

// Add appends a line; it is durable on return.
func (j *Journal) Add(v any) error { return errors.Join(j.Put(v), j.Sync()) }

// Put appends a line, which the next [Journal.Sync] makes durable.
func (j *Journal) Put(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}

	sum := crc32.Update(j.sum, crc32.IEEETable, body)
	line := append(body, '\n')
	if !j.plain {
		line = fmt.Appendf(body, "\t%08x\n", sum)
	}

	// In one call, so that a line that is cut short can only be the last one.
	if _, err := j.file.Write(line); err != nil {
		return fmt.Errorf("%s: %w", j.path, err)
	}
	j.sum = sum

	return nil
}

// Sync makes what was put durable.
func (j *Journal) Sync() error { return j.file.Sync() }

// Close unlocks the journal. Everything added is on the disk already.
func (j *Journal) Close() error { return j.file.Close() }

// Remove deletes the journal once it is no longer needed. It may be called again.
func (j *Journal) Remove() error {
	if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
