// Package maskfile writes a .safetensors file that a run which was interrupted goes on with. Checksums of the
// tensors that are durable stand in a hidden journal beside it until its owner forgets them, so that damage is noticed.
package maskfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/safetensors"
)

// ErrDamaged: a file that has its final name already is not what the interrupted run wrote.
var ErrDamaged = failure.New("its bytes are not those that the interrupted run wrote",
	"--overwrite without --resume starts anew")

// header is the first line of the journal of checksums.
type header struct {
	Format string `json:"format"`
}

const format = "compress masks 2"

// note is another line: the checksums of tensors that are durable.
type note map[string]uint32

// castagnoli is the polynomial of CRC-32C, which processors compute about as fast as memory is read.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Options say how a file is started. The zero value refuses an existing one.
type Options struct {
	Overwrite bool // an existing file may be replaced
	Resume    bool // continue the file of an interrupted run, if there is one
}

// File is one in the making. It is used by one goroutine at a time.
type File struct {
	*safetensors.Writer
	notes   string          // path of the journal
	journal *stage.Journal  // nil until there is something to note
	fresh   note            // CRC-32C of the tensors that were written and are not noted yet
	damaged map[string]bool // tensors of an interrupted run that are not, or no longer, what it noted
}

// Open finds the unfinished file of an interrupted run, or one that was finished just before the interruption, or
// starts a new one. The errors are those of safetensors.Create and safetensors.Reopen, and [ErrDamaged].
func Open(path string, tensors []safetensors.Info, metadata map[string]string, o Options) (*File, error) {
	f := &File{notes: notesOf(path), fresh: note{}, damaged: map[string]bool{}}
	opts := safetensors.Options{Overwrite: o.Overwrite}
	var err error
	if o.Resume {
		f.Writer, err = safetensors.Reopen(path, tensors, metadata, opts)
		if errors.Is(err, safetensors.ErrNoPartial) && o.Overwrite {
			f.Writer, err = safetensors.Reopen(path, tensors, metadata, safetensors.Options{})
		}
		if err == nil {
			if err = f.verify(tensors); err != nil {
				err = errors.Join(err, f.Suspend())
			}
		}
		if !errors.Is(err, safetensors.ErrNoPartial) {
			return f, err
		}
	}

	if f.Writer, err = safetensors.Create(path, tensors, metadata, opts); err != nil {
		return nil, err
	}

	// Checksums of a run that is not gone on with would be taken for those of this one.
	return f, f.Forget()
}

// notesOf is the journal of checksums of a file.
func notesOf(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".sums")
}

// Place is where the tensors that were written can be read: the final path only once the file has it, since another
// one may stand there until it is replaced.
func (f *File) Place() string {
	if f.Finished() {
		return f.Path()
	}
	return f.Path() + ".partial"
}

// verify compares what an interrupted run left with its checksums.
func (f *File) verify(tensors []safetensors.Info) error {
	complete := f.Finished()
	_, err := os.Lstat(f.notes)
	if errors.Is(err, fs.ErrNotExist) && complete {
		return nil // nothing was left to do
	}

	noted := note{}
	if err == nil {
		noted, err = f.noted()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	name := f.Place()
	file, err := safetensors.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()

	for _, t := range tensors {
		got, err := sum(file, t.Name)
		if err != nil {
			return err
		}

		want, ok := noted[t.Name]
		switch {
		case ok && got == want:
		case complete:
			return fmt.Errorf("%s: tensor %q: %w", name, t.Name, ErrDamaged)
		default:
			f.damaged[t.Name] = true
		}
	}

	return nil
}

// noted opens the journal of an interrupted run and reads its checksums. What is damaged of it counts for nothing: the
// tensors are made again.
func (f *File) noted() (note, error) {
	if err := f.open(); err != nil {
		return nil, err
	}

	all := note{}
	for i, line := range f.journal.Lines() {
		if i == 0 {
			continue // the header
		}
		if err := json.Unmarshal(line, &all); err != nil { // adds to what is there
			return nil, f.journal.At(i+1, err)
		}
	}

	return all, nil
}

// open opens the journal, and begins it where it is none that this program can go on with.
func (f *File) open() error {
	j, err := stage.OpenJournal(f.notes)
	if err != nil {
		return err
	}

	var h header
	lines := j.Lines()
	if len(lines) > 0 && json.Unmarshal(lines[0], &h) == nil && h.Format == format {
		err = j.Keep(len(lines))
	} else {
		err = j.Start(header{format})
	}
	if err != nil {
		return errors.Join(err, j.Close())
	}

	f.journal = j
	return nil
}

// sum is the checksum of a tensor's bytes.
func sum(file *safetensors.File, name string) (uint32, error) {
	buf, s := make([]byte, 1<<20), uint32(0)
	for off := int64(0); ; {
		n, err := file.ReadAt(name, buf, off)
		s = crc32.Update(s, castagnoli, buf[:n])
		off += int64(n)
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			return s, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// Damaged reports whether an interrupted run has not left a tensor as it noted it, so that it has to be written.
func (f *File) Damaged(name string) bool { return f.damaged[name] }

// Write writes a whole tensor.
func (f *File) Write(name string, data []byte) error {
	if err := f.WriteTensor(name, data); err != nil {
		return err
	}
	f.fresh[name] = crc32.Checksum(data, castagnoli)
	delete(f.damaged, name)
	return nil
}

// Note makes what was written durable, then its checksums.
func (f *File) Note() error {
	if err := f.Sync(); err != nil || len(f.fresh) == 0 {
		return err
	}
	if f.journal == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	if err := f.journal.Add(f.fresh); err != nil {
		return err
	}

	f.fresh = note{}
	return nil
}

// Suspend ends the run and leaves the unfinished file and its checksums for one that resumes.
func (f *File) Suspend() error { return errors.Join(f.Writer.Suspend(), f.Close()) }

// Close closes the checksums of a finished file and leaves them, for a run that resumes to compare with.
func (f *File) Close() error {
	if f.journal == nil {
		return nil
	}
	err := f.journal.Close()
	f.journal = nil
	return err
}

// Forget removes the checksums, when nothing can be resumed any more.
func (f *File) Forget() error {
	if err := os.Remove(f.notes); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.Close()
}

// Abort removes the unfinished file.
func (f *File) Abort() error {
	err := f.Writer.Abort()
	if _, there := os.Lstat(f.Path() + ".partial"); there == nil {
		return errors.Join(err, f.Close()) // suspended, so it can be resumed
	}
	return errors.Join(err, f.Forget())
}

// Remove removes a finished file, then its checksums, so that there is no moment in which it is there without them.
// Either may be gone already.
func Remove(path string) error {
	for _, name := range []string{path, notesOf(path)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
