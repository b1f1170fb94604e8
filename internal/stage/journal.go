package stage

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/system"

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
// end, which a crash can leave, counts for nothing.
//
// A journal of large values ([StartLarge]) has another form, since it is not kept in memory and its lines become part
// of a finished file: each value stands behind a SHA-256, of the one before and of itself ([SealLine] without one
// before). A plain journal ([OpenPlainJournal]) is of
// objects, and stays a file of JSON lines: the sum is the last member of each.
type Journal struct {
	path  string
	file  *os.File
	take  func(line int, value []byte) error // of a journal of large values; nil: lines are kept
	large bool
	plain bool
	bare  bool // a plain one of an earlier build, which has no sums
	sum   uint32
	lines [][]byte
	ends  []int64 // of the lines
	sums  []uint32
	seals []string // of the lines of a journal of large values
	fault error
}

// OpenJournal opens the journal at path, or makes one, and reads what is there. The error wraps [ErrBusy] while another
// process has it, or is one of the operating system; damage is no error here, see [Journal.Fault].
func OpenJournal(path string) (*Journal, error) { return (&Journal{path: path}).open(os.O_CREATE) }

// OpenPlainJournal is [OpenJournal] for a plain journal. Comparisons and demos keep theirs among their finished files,
// which others read and later builds add to. One that an earlier build began has no sums, and gets none.
func OpenPlainJournal(path string) (*Journal, error) {
	return (&Journal{path: path, plain: true}).open(os.O_CREATE)
}

// NewJournal makes a journal where none is. The error wraps fs.ErrExist where there is one.
func NewJournal(path string) (*Journal, error) {
	return (&Journal{path: path}).open(os.O_CREATE | os.O_EXCL)
}

// OpenLarge opens a journal of large values, which must be there. Its lines are handed to take, the first with number
// 1, up to the first that is damaged, and not kept: [Journal.Lines] has none. An error of take ends the reading.
// Otherwise it is [OpenJournal].
func OpenLarge(path string, take func(line int, value []byte) error) (*Journal, error) {
	return (&Journal{path: path, large: true, take: take}).open(0)
}

// StartLarge makes a journal of large values, in place of what is at path, and writes its header.
func StartLarge(path string, header any) (*Journal, error) {
	j, err := (&Journal{path: path, large: true}).open(os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := j.Start(header); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

// open locks the file and reads it.
func (j *Journal) open(flags int) (*Journal, error) {
	f, err := system.OpenFile(j.path, os.O_RDWR|system.NoFollow|flags, 0o666)
	if err != nil {
		return nil, err
	}

	if err := held(system.TryLock(f)); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", j.path, err), f.Close())
	}

	j.file = f
	if err := j.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", j.path, err), f.Close())
	}

	return j, nil
}

// read takes the lines up to the first that is damaged, and cuts off a torn last one.
func (j *Journal) read() error {
	st, err := j.file.Stat()
	if err != nil || !st.Mode().IsRegular() || !j.large && st.Size() > maxJournal {
		return errors.Join(err, ErrJournal)
	}

	if j.large && j.take == nil { // about to be emptied
		return nil
	}

	in := bufio.NewReaderSize(j.file, 1<<20)
	for at := int64(0); ; {
		line, err := in.ReadBytes('\n')
		torn := errors.Is(err, io.EOF)
		if torn && len(line) > 0 {
			err = j.file.Truncate(at)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if torn {
			break
		}

		value, sum, ok := j.unseal(line[:len(line)-1])
		if !ok {
			j.fault = j.At(len(j.ends)+1, errors.New("the line is damaged"))
			break
		}

		at += int64(len(line))
		j.sum = sum
		j.ends = append(j.ends, at)
		j.sums = append(j.sums, sum)
		if j.large {
			j.seals = append(j.seals, string(line[:2*sha256.Size]))
		}

		if !j.large {
			j.lines = append(j.lines, value)
		} else if err := j.take(len(j.ends), value); err != nil {
			return err
		}
	}

	_, err = j.file.Seek(0, io.SeekEnd)
	return err
}

// seal is a value as a line of the journal, and the sum of all values up to it.
func (j *Journal) seal(value []byte) (line []byte, sum uint32) {
	switch {
	case j.large:
		return SealAfter(j.lastSeal(), value), 0
	case j.bare:
		return append(value, '\n'), 0
	}

	sum = crc32.Update(j.sum, crc32.IEEETable, value)
	if j.plain {
		return fmt.Appendf(value[:len(value)-1:len(value)-1], sealOfPlain+"\n", sum), sum
	}
	return fmt.Appendf(value, "\t%08x\n", sum), sum
}

// lastSeal is what stands in front of the last line of a journal of large values, so that a line that is there twice,
// missing or elsewhere is damage too.
func (j *Journal) lastSeal() string {
	if len(j.seals) == 0 {
		return ""
	}
	return j.seals[len(j.seals)-1]
}

// sealOfPlain is what stands at the end of an object in a plain journal, in place of its last brace.
const sealOfPlain = `,"sum":"%08x"}`

// unsealPlain is unseal for a plain journal. Its first line says whether it has sums.
func (j *Journal) unsealPlain(line []byte) (value []byte, sum uint32, ok bool) {
	at := len(line) - len(fmt.Sprintf(sealOfPlain, 0))
	sealed := at > 0 && bytes.HasPrefix(line[at:], []byte(sealOfPlain[:len(`,"sum":"`)]))
	if len(j.ends) == 0 && !sealed {
		j.bare = true
	}
	if j.bare {
		return line, 0, !sealed && json.Valid(line) // a sum behind a line without one: what said so is damaged
	}
	if !sealed {
		return line, 0, false
	}

	value = append(line[:at:at], '}')
	sum = crc32.Update(j.sum, crc32.IEEETable, value)
	return value, sum, string(line[at:]) == fmt.Sprintf(sealOfPlain, sum)
}

// unseal is what seal made a line of; false for a damaged one.
func (j *Journal) unseal(line []byte) (value []byte, sum uint32, ok bool) {
	if j.large {
		value, ok = unsealAfter(j.lastSeal(), line)
		return value, 0, ok
	}
	if j.plain {
		return j.unsealPlain(line)
	}

	value, mark, ok := bytes.Cut(line, []byte{'\t'})
	sum = crc32.Update(j.sum, crc32.IEEETable, value)
	return value, sum, ok && string(mark) == fmt.Sprintf("%08x", sum)
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

	j.lines = j.lines[:min(n, len(j.lines))]
	j.ends = j.ends[:n]
	j.sums = j.sums[:n]
	j.seals = j.seals[:min(n, len(j.seals))]
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
	j.bare = false
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
	if j.plain && !j.bare && (body[0] != '{' || len(body) == len("{}")) {
		return fmt.Errorf("%s: %w: a line is no object, or an empty one", j.path, ErrJournal)
	}

	line, sum := j.seal(body)
	// In one call, so that a line that is cut short can only be the last one.
	if _, err := j.file.Write(line); err != nil {
		return fmt.Errorf("%s: %w", j.path, err)
	}
	j.sum = sum
	if j.large {
		j.seals = append(j.seals, string(line[:2*sha256.Size]))
	}

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
