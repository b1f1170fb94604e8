// Package resident holds the result of a merge in memory, as the parameters of a model that the engine runs:
// for results that are only measured, and then replaced by the next one of the same shape.
package resident

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// ErrUnfit: the engine holds a parameter in another form than the file, so that bytes of a file cannot be put there.
var ErrUnfit = errors.New("parameter cannot be replaced in memory")

// WriteZeros writes model.safetensors with tensors of zeros. The zeros are a hole in the file: they take no
// space on the disk, where its file system has holes.
func WriteZeros(dir string, tensors []safetensors.Info) error {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}

	header, at := map[string]entry{}, int64(0)
	for _, t := range tensors {
		size, err := t.DType.ByteSize(t.Shape)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		header[t.Name] = entry{t.DType.String(), append([]int64{}, t.Shape...), [2]int64{at, at + size}}
		at += size
	}

	text, err := json.Marshal(header)
	if err != nil {
		return err
	}

	for len(text)%8 != 0 {
		text = append(text, ' ')
	}

	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}

	w := bufio.NewWriter(f)
	_, _ = w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) // Flush has the error
	_, _ = w.Write(text)

	return errors.Join(w.Flush(), f.Truncate(8+int64(len(text))+at), f.Close())
}

// Model is a model in memory whose parameters a merge writes.
type Model struct {
	*lm.Model
	layout []safetensors.Info
	values map[string]kernels.Mat // of the tensors that the model uses
}

// New takes over a model that was loaded from a folder with such tensors, and gives it parameters of its own.
// It fails with [ErrUnfit], and closes the model, if one of them is not held as the file has it.
func New(m *lm.Model, layout []safetensors.Info) (*Model, error) {
	r := &Model{Model: m, layout: layout, values: map[string]kernels.Mat{}}
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
				err = fmt.Errorf("tensor %q: %d bytes in memory, %d in a file: %w", t.Name, len(have), size, ErrUnfit)
			}
		}
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}

		r.values[t.Name] = value
	}

	return r, nil
}

// Fits tells whether a result with such tensors can take the place of the one that is there.
func (m *Model) Fits(layout []safetensors.Info) bool {
	return slices.EqualFunc(m.layout, layout, func(a, b safetensors.Info) bool {
		return a.Name == b.Name && a.DType == b.DType && slices.Equal(a.Shape, b.Shape)
	})
}

// WriteAt writes a part of a tensor; what the model does not use is dropped. Several goroutines may call it at once.
func (m *Model) WriteAt(name string, p []byte, off int64) error {
	value, ok := m.values[name]
	if !ok {
		return nil
	}
	copy(value.Buf.Bytes()[off:], p)
	return nil
}

// Position implements the engine's sink: memory has no place that buffers would have to suit.
func (m *Model) Position(string) int64 { return 0 }

// Written makes the model compute with what a tensor holds now.
func (m *Model) Written(name string) error {
	if value, ok := m.values[name]; ok {
		value.Buf.Changed()
	}
	return nil
}
