package imatrix

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/safetensors"
)

// Write writes a GGUF file, with the tensors in the order of their names. It appears when it is complete.
func (f *File) Write(path string, overwrite bool) error {
	meta := gguf.Metadata{
		{Key: "general.type", Value: gguf.Of("imatrix")},
		{Key: "imatrix.datasets", Value: gguf.List(f.Datasets)},
		{Key: "imatrix.chunk_count", Value: gguf.Of(uint32(f.Chunks))},
		{Key: "imatrix.chunk_size", Value: gguf.Of(uint32(f.ChunkSize))},
	}

	var infos []gguf.Info
	for _, e := range f.Entries {
		sums := gguf.Info{Name: e.Name + ".in_sum2", Type: gguf.F32, Shape: []int64{int64(e.Inputs)}}
		if n := e.Matrices(); n > 1 { // llama.cpp writes no dimensions of 1
			sums.Shape = []int64{int64(n), int64(e.Inputs)}
		}
		counts := gguf.Info{Name: e.Name + ".counts", Type: gguf.F32, Shape: []int64{1}}
		if n := len(e.Counts); n > 1 {
			counts.Shape = []int64{int64(n), 1}
		}
		infos = append(infos, sums, counts)
	}

	w, err := gguf.Create(path, infos, meta, gguf.Options{Overwrite: overwrite})
	if err != nil {
		return err
	}
	defer w.Abort() //nolint:errcheck // does nothing after Finish

	for _, e := range f.Entries {
		counts := make([]float32, len(e.Counts))
		for i, c := range e.Counts {
			counts[i] = float32(c)
		}
		if err := w.WriteTensor(e.Name+".in_sum2", bytesOf(e.Sums)); err != nil {
			return err
		}
		if err := w.WriteTensor(e.Name+".counts", bytesOf(counts)); err != nil {
			return err
		}
	}

	return w.Finish()
}

func bytesOf(x []float32) []byte {
	out := make([]byte, 4*len(x))
	if err := dtype.Encode(out, x, safetensors.F32); err != nil {
		panic("imatrix: F32 is no type")
	}
	return out
}

// WriteLegacy writes the form of before 2025 that llama.cpp still reads, with means in the place of sums. It knows no
// counts for single experts.
func (f *File) WriteLegacy(path string) error {
	var b bytes.Buffer
	put := func(n int) { _ = binary.Write(&b, binary.LittleEndian, int32(n)) }
	name := func(s string) {
		put(len(s))
		b.WriteString(s)
	}

	size := max(f.ChunkSize, 1)
	put(len(f.Entries))
	for _, e := range f.Entries {
		name(e.Name)
		calls := int((slices.Max(e.Counts) + int64(size) - 1) / int64(size))
		put(calls)
		put(len(e.Sums))
		values := make([]float32, len(e.Sums))
		for m := range e.Matrices() {
			count := float32(e.Count(m))
			for j, sum := range e.Sums[m*e.Inputs:][:e.Inputs] {
				if count == 0 {
					sum, count = 1, 1 // as llama.cpp has it for experts that no token reached
				}
				values[m*e.Inputs+j] = sum / count * float32(calls)
				if e.Count(m) == 0 {
					count = 0
				}
			}
		}
		b.Write(bytesOf(values))
	}

	put(f.Chunks)
	last := ""
	if n := len(f.Datasets); n > 0 {
		last = f.Datasets[n-1]
	}
	name(last)
	return safefile.WriteFile(path, b.Bytes(), 0o644)
}
