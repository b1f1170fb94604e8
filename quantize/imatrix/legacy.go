package imatrix

import (
	"encoding/binary"
	"fmt"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/safetensors"
)

// maxLegacy bounds the size of a file of the old form, which is read whole: far above any model's.
const maxLegacy = 4 << 30

// readLegacy reads the old form: the number of entries; for each the length of its name, the name, the number of
// calls, the number of values and these, mean·calls; then the number of the last chunk and the name of the text.
func readLegacy(path string) (*File, error) {
	data, err := safefile.ReadFile(path, maxLegacy)
	if err != nil {
		return nil, err
	}

	r := &reader{data: data}
	out := r.file()
	if r.err == nil {
		r.err = out.check()
	}
	if r.err != nil {
		return nil, fmt.Errorf("%s: %w", path, r.err)
	}
	return out, nil
}

// reader takes a file apart; after the first error it gives zeros.
type reader struct {
	data []byte
	at   int
	err  error
}

func (r *reader) file() *File {
	f := &File{}
	n := r.count("entries", 12)
	for range n {
		e := Entry{Name: string(r.take(r.count("bytes of a name", 1)))}
		calls := r.number()
		values := r.take(4 * r.count("values", 4))
		if r.err != nil {
			return f
		}
		if calls < 1 || len(values) == 0 {
			r.fail("entry %q has %d calls and %d values", e.Name, calls, len(values)/4)
			return f
		}

		// Means times calls are sums over as many tokens as there are calls.
		e.Inputs = len(values) / 4
		e.Sums = make([]float32, e.Inputs)
		r.err = dtype.Decode(e.Sums, values, safetensors.F32)
		e.Counts = []int64{int64(calls)}
		f.Entries = append(f.Entries, e)
	}

	if r.err == nil && r.at < len(r.data) { // the oldest files end here
		f.Chunks = max(0, r.number())
		if r.at < len(r.data) {
			f.Datasets = []string{string(r.take(r.count("bytes of a name", 1)))}
		}
		f.Trailing = len(r.data) - r.at
	}
	return f
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: at byte %d: %s", ErrFormat, r.at, fmt.Sprintf(format, args...))
	}
}

// take gives the next n bytes.
func (r *reader) take(n int) []byte {
	if r.err != nil || n > len(r.data)-r.at {
		r.fail("%d bytes are left, %d are needed", len(r.data)-r.at, n)
		return nil
	}
	r.at += n
	return r.data[r.at-n:][:n]
}

func (r *reader) number() int {
	b := r.take(4)
	if len(b) < 4 {
		return 0
	}
	return int(int32(binary.LittleEndian.Uint32(b)))
}

// count reads a number of things that take at least size bytes each, which must be there.
func (r *reader) count(what string, size int) int {
	n := r.number()
	if n < 0 || n > (len(r.data)-r.at)/size {
		r.fail("%d %s cannot be in %d bytes", n, what, len(r.data)-r.at)
		return 0
	}
	return n
}

// Split says how many matrices a tensor of the old form has, which does not say it itself: inputs is the length of a
// row of the model's tensor.
func (e *Entry) Split(inputs int) error {
	if inputs < 1 || len(e.Sums)%inputs != 0 {
		return fmt.Errorf("%w: entry %q has %d values, and a row of the tensor %d", ErrOther, e.Name, len(e.Sums),
			inputs)
	}
	e.Inputs = inputs
	return nil
}
