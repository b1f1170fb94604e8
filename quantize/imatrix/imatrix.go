// Package imatrix reads and writes llama.cpp's importance matrices: for each matrix of a GGUF model the sums of the
// squares of its inputs over some text, by which quantisers weigh the errors of its columns, and by which Wanda ranks
// weights.
//
// # Use
//
//	f, err := imatrix.Read("model.imatrix.gguf")
//	e, ok := f.Entry("blk.0.ffn_down.weight")
//	weights := e.Importance(0) // the mean of x² for every input; of a mixture's tensor, of its first expert
//
// # Files
//
// A GGUF file of general.type "imatrix" has for every matrix NAME two tensors: NAME.in_sum2 [matrices, inputs], F32,
// the sums, and NAME.counts [matrices, 1], F32, the tokens that they are of. The experts of a block are matrices of one
// tensor, each with a count of its own. Files of the form before that, mostly called .dat, have means instead. [Read]
// takes both, [File.Write] writes the first and [File.WriteLegacy] the second.
package imatrix

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/safetensors"
)

// What can be wrong with a file.
var (
	// ErrFormat: the file is no importance matrix, or says things that cannot be.
	ErrFormat = failure.New("not an importance matrix", "llama-imatrix and compress imatrix write them")
	// ErrOther: an importance matrix does not belong to the model.
	ErrOther = errors.New("the importance matrix is that of another model")
)

// File is an importance matrix.
type File struct {
	Datasets  []string // names of the texts
	Chunks    int      // of text that were run
	ChunkSize int      // tokens of each; 0 where the file does not say it
	Entries   []Entry  // sorted by name
	Trailing  int      // bytes behind the end of a file of the old form
}

// Entry is what flowed into the matrices of one tensor.
type Entry struct {
	Name   string // of the tensor in the GGUF model, "blk.0.attn_q.weight"
	Inputs int    // columns
	// Sums are Σ x², Inputs for each matrix, one matrix after another.
	Sums []float32
	// Counts are the tokens that reached each matrix: one for all, or one for each expert.
	Counts []int64
}

// Entry finds the entry of a tensor.
func (f *File) Entry(name string) (*Entry, bool) {
	i, ok := slices.BinarySearchFunc(f.Entries, name, func(e Entry, n string) int { return strings.Compare(e.Name, n) })
	if !ok {
		return nil, false
	}
	return &f.Entries[i], true
}

// Matrices is how many matrices the tensor has.
func (e *Entry) Matrices() int { return len(e.Sums) / e.Inputs }

// Count is how many tokens reached a matrix.
func (e *Entry) Count(matrix int) int64 { return e.Counts[min(matrix, len(e.Counts)-1)] }

// Importance gives the mean of x² for each input of a matrix: what quantisers weigh errors by. A matrix that no token
// reached has 1 for every input, as llama.cpp reads it.
func (e *Entry) Importance(matrix int) []float32 {
	out := slices.Clone(e.Sums[matrix*e.Inputs:][:e.Inputs])
	count := float32(e.Count(matrix))
	for i := range out {
		if count > 0 {
			out[i] /= count
		} else {
			out[i] = 1
		}
	}
	return out
}

// Read reads a file of either form.
func Read(path string) (*File, error) {
	f, err := gguf.Open(path)
	if errors.Is(err, gguf.ErrMagic) {
		return readLegacy(path)
	} else if err != nil {
		return nil, err
	}
	defer f.Close()

	out, err := fromGGUF(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

func fromGGUF(f *gguf.File) (*File, error) {
	meta := f.Metadata()
	if v, _ := meta.Get("general.type"); v.Kind() != gguf.String || text(v) != "imatrix" {
		return nil, fmt.Errorf("%w: general.type is %v", ErrFormat, v)
	}

	out := &File{}
	if v, ok := meta.Get("imatrix.datasets"); ok {
		out.Datasets, _ = v.Strings()
		out.Datasets = slices.Clone(out.Datasets)
	}
	for key, to := range map[string]*int{
		"imatrix.chunk_count": &out.Chunks, "imatrix.chunk_size": &out.ChunkSize,
	} {
		v, ok := meta.Get(key)
		n, whole := v.Uint()
		if ok && (!whole || n > math.MaxInt32) {
			return nil, fmt.Errorf("%w: %s is %v", ErrFormat, key, v)
		}
		*to = int(n)
	}

	for _, name := range f.Names() {
		base, ok := strings.CutSuffix(name, ".in_sum2")
		if !ok {
			continue
		}
		e, err := entryOf(f, base)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		out.Entries = append(out.Entries, e)
	}

	return out, out.check()
}

func text(v gguf.Value) string {
	s, _ := v.Text()
	return s
}

// entryOf reads the two tensors of a matrix.
func entryOf(f *gguf.File, base string) (Entry, error) {
	e := Entry{Name: base}
	sums, err := tensorOf(f, base+".in_sum2")
	if err != nil {
		return e, err
	}
	counts, err := tensorOf(f, base+".counts")
	if err != nil {
		return e, err
	}

	info, _ := f.Info(base + ".in_sum2")
	e.Inputs = int(info.Cols())
	e.Sums = sums
	for _, c := range counts {
		if !(c >= 0 && c < 1<<53) {
			return e, fmt.Errorf("%w: a count of %v", ErrFormat, c)
		}
		e.Counts = append(e.Counts, int64(c))
	}
	return e, nil
}

func tensorOf(f *gguf.File, name string) ([]float32, error) {
	info, ok := f.Info(name)
	if !ok {
		return nil, fmt.Errorf("%w: there is no %q", ErrFormat, name)
	}
	if info.Type != gguf.F32 {
		return nil, fmt.Errorf("%w: %q is %v, not F32", ErrFormat, name, info.Type)
	}

	n := int64(1)
	for _, d := range info.Shape {
		n *= d
	}
	out := make([]float32, n)
	err := f.View(name, func(data []byte) error { return dtype.Decode(out, data, safetensors.F32) })
	return out, err
}

// check compares sizes and looks at every number.
func (f *File) check() error {
	slices.SortFunc(f.Entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	if len(f.Entries) == 0 {
		return fmt.Errorf("%w: it has no entries", ErrFormat)
	}
	for i := range f.Entries {
		e := &f.Entries[i]
		if e.Inputs < 1 || len(e.Sums) == 0 || len(e.Sums)%e.Inputs != 0 {
			return fmt.Errorf("%w: entry %q has %d sums of %d inputs", ErrFormat, e.Name, len(e.Sums), e.Inputs)
		}
		if n := len(e.Counts); n != 1 && n != e.Matrices() {
			return fmt.Errorf("%w: entry %q has %d counts for %d matrices", ErrFormat, e.Name, n, e.Matrices())
		}
		if at := slices.IndexFunc(e.Sums, func(v float32) bool { return !(v >= 0 && v <= math.MaxFloat32) }); at >= 0 {
			return fmt.Errorf("%w: entry %q: sum %d is %v", ErrFormat, e.Name, at, e.Sums[at])
		}
		if i > 0 && f.Entries[i-1].Name == e.Name {
			return fmt.Errorf("%w: entry %q is there twice", ErrFormat, e.Name)
		}
	}
	return nil
}
