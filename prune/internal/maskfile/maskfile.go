// Package maskfile writes a .safetensors file that a run which was interrupted goes on with. Checksums of the
// tensors that are durable stand in a hidden file beside it until the end, so that damage is noticed.
package maskfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/safetensors"
)

// ErrDamaged: a file that has its final name already is not what the interrupted run wrote.
var ErrDamaged = errors.New("its bytes are not those that the interrupted run wrote")

// maxSums bounds what is read of a file of checksums: a few times the names of the largest checkpoints.
const maxSums = 64 << 20

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
	notes   string            // path of the checksums
	sums    map[string]uint32 // CRC-32C of the tensors that were written
	fresh   bool              // some of them are not noted yet
	damaged map[string]bool   // tensors of an interrupted run that are not, or no longer, what it noted
}

// Open finds the unfinished file of an interrupted run, or one that was finished just before the interruption, or
// starts a new one. The errors are those of safetensors.Create and safetensors.Reopen, and [ErrDamaged].
func Open(path string, tensors []safetensors.Info, metadata map[string]string, o Options) (*File, error) {
	f := &File{
		notes: filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".sums"), sums: map[string]uint32{},
		damaged: map[string]bool{},
	}
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

	f.Writer, err = safetensors.Create(path, tensors, metadata, opts)
	return f, err
}

// verify compares what an interrupted run left with its checksums.
func (f *File) verify(tensors []safetensors.Info) error {
	complete := len(f.Remaining()) == 0
	text, err := safefile.ReadFile(f.notes, maxSums)
	if errors.Is(err, fs.ErrNotExist) && complete {
		return nil // nothing was left to do
	}

	noted := map[string]uint32{}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if json.Unmarshal(text, &noted) != nil {
		noted = map[string]uint32{} // damaged itself: everything is made again
	}

	name := f.Path()
	if !complete {
		name += ".partial"
	}

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
			f.sums[t.Name] = got
		case complete:
			return fmt.Errorf("%s: tensor %q: %w; remove the file and start over without resuming", name, t.Name,
				ErrDamaged)
		default:
			f.damaged[t.Name] = true
		}
	}

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

// Damaged tells whether an interrupted run has not left a tensor as it noted it, so that it has to be written.
func (f *File) Damaged(name string) bool { return f.damaged[name] }

// Write writes a whole tensor.
func (f *File) Write(name string, data []byte) error {
	if err := f.WriteTensor(name, data); err != nil {
		return err
	}
	f.sums[name], f.fresh = crc32.Checksum(data, castagnoli), true
	delete(f.damaged, name)
	return nil
}

// Note makes what was written durable, then its checksums.
func (f *File) Note() error {
	if err := f.Sync(); err != nil || !f.fresh {
		return err
	}

	text, err := json.Marshal(maps.Clone(f.sums))
	if err != nil {
		return err
	}

	if err := safefile.WriteFile(f.notes, text, 0o666); err != nil {
		return err
	}

	f.fresh = false
	return nil
}

// Forget removes the checksums, when nothing can be resumed any more.
func (f *File) Forget() error {
	if err := os.Remove(f.notes); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Abort removes the unfinished file.
func (f *File) Abort() error {
	err := f.Writer.Abort()
	if _, there := os.Lstat(f.Path() + ".partial"); there == nil {
		return err // suspended, so it can be resumed
	}
	return errors.Join(err, f.Forget())
}
