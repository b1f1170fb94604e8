// Package input opens the models of a merge: checkpoint folders, with a PEFT adapter on top where the recipe
// asks for one. The adapter's product is added to the weights as they are read; no merged copy is made.
package input

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// Model is an open input.
type Model struct {
	Name    string // for messages
	Path    string
	Dir     *weights.Source
	table   *arch.Arch           // nil for an architecture that has none
	parts   map[string]arch.Part // experts that lie in tensors with others, by their own names
	names   []string             // of all tensors, with those of the experts
	adapter *adapter             // nil: none
}

// Open opens the checkpoint in dir and the adapter in adapterDir, "" for none.
func Open(ctx context.Context, name, dir, adapterDir string) (*Model, error) {
	if err := whole(dir); err != nil {
		return nil, err
	}

	d, err := weights.Open(ctx, dir)
	if err != nil {
		return nil, err
	}

	m := &Model{Name: name, Path: dir, Dir: d}
	if err := m.split(); err != nil {
		return nil, errors.Join(err, d.Close())
	}

	if adapterDir != "" {
		if m.adapter, err = openAdapter(adapterDir, m); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}

	return m, nil
}

// Close closes all files.
func (m *Model) Close() error {
	if m.adapter != nil {
		return errors.Join(m.adapter.file.Close(), m.Dir.Close())
	}
	return m.Dir.Close()
}

// Infos lists the tensors in the order of the files; experts are tensors of their own, however they are stored.
func (m *Model) Infos() []safetensors.Info {
	list := make([]safetensors.Info, len(m.names))
	for i, n := range m.names {
		list[i], _ = m.Info(n)
	}
	return list
}

// Files lists the files that the tensors come from.
func (m *Model) Files() []string {
	list := m.Dir.Files()
	if m.adapter != nil {
		list = append(list, m.adapter.file.Path(), filepath.Join(m.adapter.dir, configName))
	}
	return list
}

// Source reads a tensor; elements are rounded to the type round before anything else, 0: not.
func (m *Model) Source(name string, round safetensors.DType) (stream.Source, error) {
	info, ok := m.Info(name)
	if !ok {
		return nil, fmt.Errorf("%s: tensor %q: %w", m.Path, name, safetensors.ErrUnknownTensor)
	}

	var own *change
	if m.adapter != nil {
		own = m.adapter.changes[name]
	}
	if own == nil {
		return m.mapped(name, info.DType, round)
	}

	if own.instead != "" {
		data, err := m.adapter.file.Bytes(own.instead)
		if err != nil {
			return nil, err
		}
		from, _ := m.adapter.file.Info(own.instead)
		return stream.NewMapped(data, from.DType, round, nil)
	}

	plain, err := m.mapped(name, info.DType, 0)
	if err != nil {
		return nil, err
	}

	cols := int64(1)
	if n := len(info.Shape); n > 0 {
		cols = info.Shape[n-1]
	}

	return &adapted{Source: plain, change: own, cols: cols, round: round}, nil
}

func (m *Model) mapped(name string, d, round safetensors.DType) (stream.Source, error) {
	if stored, first := m.place(name); m.Dir.Decoded(stored) {
		return &decoded{m.Dir, stored, first, d, round}, nil
	}

	data, err := m.bytes(name)
	if err != nil {
		return nil, err
	}
	s, err := stream.NewMapped(data, d, round, func() { m.release(name) })
	if err != nil {
		return nil, fmt.Errorf("%s: tensor %q: %w", m.Path, name, err)
	}
	return s, nil
}

// Raw gives a tensor's bytes as they lie in the file, nil if they are decoded, or an adapter changes them.
func (m *Model) Raw(name string) ([]byte, error) {
	if stored, _ := m.place(name); m.Dir.Decoded(stored) {
		return nil, nil
	}
	if m.adapter != nil && m.adapter.changes[name] != nil {
		return nil, nil
	}
	return m.bytes(name)
}

// decoded reads a tensor that is quantised.
type decoded struct {
	src   *weights.Source
	name  string // of the stored tensor
	first int64  // element there
	dtype safetensors.DType
	round safetensors.DType
}

// Read implements [stream.Source].
func (d *decoded) Read(dst []float32, off int64) error {
	size := int64(dtype.Size(d.dtype))
	buf := decodedBytes.Get().(*[]byte)
	defer decodedBytes.Put(buf)
	data := slices.Grow((*buf)[:0], int(size)*len(dst))[:int(size)*len(dst)]
	*buf = data

	if _, err := d.src.ReadAt(d.name, data, size*(d.first+off)); err != nil {
		return err
	}
	if err := dtype.Decode(dst, data, d.dtype); err != nil {
		return err
	}
	stream.Round(dst, d.round)
	return nil
}

// decodedBytes keeps the space of earlier reads.
var decodedBytes = sync.Pool{New: func() any { return new([]byte) }}

// Ahead implements [stream.Source]: what is decoded is read with it.
func (d *decoded) Ahead(int64, int64) {}

// Release implements [stream.Source]; a failure costs memory alone.
func (d *decoded) Release() { _ = d.src.Release(d.name) }

// adapted adds a product of low rank, left [rows, rank] · right [rank, cols], to the rows of a tensor.
type adapted struct {
	stream.Source
	*change
	cols  int64
	round safetensors.DType
}

// Read implements [stream.Source].
func (a *adapted) Read(dst []float32, off int64) error {
	if err := a.Source.Read(dst, off); err != nil {
		return err
	}

	for first := int64(0); first < int64(len(dst)); {
		row, col := (off+first)/a.cols, (off+first)%a.cols
		n := min(a.cols-col, int64(len(dst))-first)
		for r := range int64(a.rank) {
			if f := a.left[row*int64(a.rank)+r]; f != 0 {
				part := dst[first : first+n]
				vec.Add(part, part, a.right[r*a.cols+col:r*a.cols+col+n], f)
			}
		}

		first += n
	}

	stream.Round(dst, a.round)
	return nil
}
