package search

import (
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// errUnfit: the engine holds a parameter in another form than the file, so that bytes of a file cannot be put there.
var errUnfit = errors.New("parameter cannot be replaced in memory")

// resident is a model in memory whose parameters a merge writes: for results that are only measured, and then replaced
// by the next one of the same shape. It is the sink of the merge's engine.
type resident struct {
	*lm.Model
	layout []safetensors.Info
	values map[string]kernels.Mat // of the tensors that the model uses
}

// newResident takes over a model that was loaded from a folder with such tensors, and gives it parameters of its own.
// It fails with [errUnfit], and closes the model, if one of them is not held as the file has it.
func newResident(m *lm.Model, layout []safetensors.Info) (*resident, error) {
	r := &resident{Model: m, layout: layout, values: map[string]kernels.Mat{}}
	used := map[string]bool{}
	for _, name := range m.Tensors() {
		used[name] = true
	}

	for _, t := range layout {
		if !used[t.Name] {
			continue
		}

		value, err := m.MutableParam(t.Name)
		if err == nil {
			size, _ := t.DType.ByteSize(t.Shape) // the file was opened with it
			if have := value.Buf.Bytes(); int64(len(have)) != size {
				err = fmt.Errorf("tensor %q: %d bytes in memory, %d in a file: %w", t.Name, len(have), size, errUnfit)
			}
		}
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}

		r.values[t.Name] = value
	}

	return r, nil
}

// fits reports whether a result with such tensors can take the place of the one that is there.
func (m *resident) fits(layout []safetensors.Info) bool {
	return slices.EqualFunc(m.layout, layout, func(a, b safetensors.Info) bool {
		return a.Name == b.Name && a.DType == b.DType && slices.Equal(a.Shape, b.Shape)
	})
}

// WriteAt writes a part of a tensor; what the model does not use is dropped. Several goroutines may call it at once.
func (m *resident) WriteAt(name string, p []byte, off int64) error {
	value, ok := m.values[name]
	if !ok {
		return nil
	}
	copy(value.Buf.Bytes()[off:], p)
	return nil
}

// Position implements the engine's sink: memory has no place that buffers would have to suit.
func (m *resident) Position(string) int64 { return 0 }

// Written makes the model compute with what a tensor holds now.
func (m *resident) Written(name string) error {
	if value, ok := m.values[name]; ok {
		value.Buf.Changed()
	}
	return nil
}
