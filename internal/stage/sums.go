package stage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/safetensors"
)

// castagnoli is the polynomial of CRC-32C, which processors compute about as fast as memory is read.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// reader takes checksums of tensors in the files of an output, each of which it opens once.
type reader struct {
	folder *Folder
	files  map[string]*safetensors.File // by shard
	buf    []byte
}

func (f *Folder) reader() *reader {
	return &reader{folder: f, files: map[string]*safetensors.File{}, buf: make([]byte, 1<<20)}
}

// sum is the checksum of a tensor's bytes.
func (r *reader) sum(name string) (uint32, error) {
	shard := r.folder.writer.ShardOf(name)
	if shard == "" {
		return 0, fmt.Errorf("%s: tensor %q: %w", r.folder.place.Dir, name, safetensors.ErrUnknownTensor)
	}

	file := r.files[shard]
	if file == nil {
		var err error
		if file, err = r.folder.Open(name); err != nil {
			return 0, err
		}
		r.files[shard] = file
	}

	sum, off := uint32(0), int64(0)
	for {
		n, err := file.ReadAt(name, r.buf, off)
		sum = crc32.Update(sum, castagnoli, r.buf[:n])
		off += int64(n)
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			return sum, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

func (r *reader) close() {
	for _, file := range r.files {
		_ = file.Close() // it was only read
	}
}

// sums takes the checksums of tensors that were written.
func (f *Folder) sums(names []string) ([]uint32, error) {
	r := f.reader()
	defer r.close()

	out := make([]uint32, len(names))
	for i, name := range names {
		var err error
		if out[i], err = r.sum(name); err != nil {
			return nil, err
		}
	}

	return out, nil
}

// takeUp marks the tensors as done whose bytes are those that the journal noted. Others are damaged and written again.
func (f *Folder) takeUp() error {
	r := f.reader()
	defer r.close()

	sums, names := f.noted()
	for _, name := range names {
		want := sums[name]
		got, err := r.sum(name)
		published := f.writer.Done(name) // in a file that has its final name already
		switch {
		case err != nil:
			return err
		case want != nil && got == *want && published:
		case want != nil && got == *want:
			if err := f.writer.MarkDone(name); err != nil {
				return err
			}
		case published:
			return failure.Hinted(fmt.Errorf("%s: tensor %q: %w", f.place.Dir, name, ErrDamaged), hintAnew)
		default:
			f.damaged = append(f.damaged, name)
		}
	}

	return nil
}

// Damaged lists the tensors of an interrupted run whose bytes are not those that it wrote, so that they are not done.
func (f *Folder) Damaged() []string { return f.damaged }
