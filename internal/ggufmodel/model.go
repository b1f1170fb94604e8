package ggufmodel

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// Model is a GGUF file as a checkpoint. It reads the file that it was made of, which must stay open. All methods may
// be called from several goroutines at once.
type Model struct {
	meta    *metadata
	tensors *tensors
	config  *arch.Config
	text    []byte // config.json
	list    []*tensor
	byName  map[string]*tensor
	opaque  []gguf.Info // of Stored
	files   func() (map[string][]byte, error)
}

// New reads metadata and descriptions of tensors and checks that they agree; no weight is decoded. The errors wrap one
// of this package's, [gguf.ErrNotDecodable] or [arch.ErrUnknown].
func New(m *gguf.Model) (*Model, error) { return open(m, m.Path()) }

func open(src file, path string) (*Model, error) {
	m := &Model{meta: newMetadata(path, src.Metadata()), tensors: newTensors(src), byName: map[string]*tensor{}}
	a, err := choose(m.meta, m.tensors)
	if err != nil {
		return nil, err
	}

	c := &configuration{metadata: m.meta, arch: a, tensors: m.tensors}
	if m.config, err = c.build(); err != nil {
		return nil, err
	}
	if m.text, err = c.out.Indent(); err != nil {
		return nil, &Error{File: path, Err: ErrMetadata, Detail: err.Error()}
	}

	b := &builder{file: path, config: m.config, tensors: m.tensors, used: map[string]bool{}}
	if err := b.build(); err != nil {
		return nil, err
	}
	if err := b.leftovers(); err != nil {
		return nil, err
	}

	m.files = sync.OnceValues(m.makeFiles)
	m.list = b.sorted()
	for _, t := range m.list {
		m.byName[t.name] = t
	}

	return m, nil
}

// Config is what config.json says, as it is read.
func (m *Model) Config() *arch.Config { return m.config }

// Names lists the tensors by the names of the checkpoint, in the order of the file.
func (m *Model) Names() []string {
	names := make([]string, len(m.list))
	for i, t := range m.list {
		names[i] = t.name
	}
	return names
}

// Info says what a tensor is: its shape in the checkpoint, and the type that its values have, which is F32 for
// quantised ones. It has no place; false if there is none of that name.
func (m *Model) Info(name string) (safetensors.Info, bool) {
	t := m.byName[name]
	if t == nil {
		return safetensors.Info{}, false
	}
	return safetensors.Info{Name: name, DType: t.dtype(), Shape: slices.Clone(t.shape)}, true
}

// Bytes gives a read-only view of a tensor whose bytes the file has as they are in the checkpoint; false for others,
// which [Model.Matrix] decodes.
func (m *Model) Bytes(name string) ([]byte, bool, error) {
	t := m.byName[name]
	if t == nil {
		return nil, false, &Error{File: m.meta.file, Tensor: name, Err: gguf.ErrUnknownTensor}
	}

	first, size, ok := t.plain()
	if !ok {
		return nil, false, nil
	}

	data, err := m.tensors.src.Bytes(t.pieces[0].info.Name)
	if err != nil {
		return nil, false, err
	}
	return data[first:][:size], true, nil
}

// Matrix decodes a tensor: rows of its last dimension, in the order of the checkpoint. A vector is one row. Rows are
// decoded within mmapsafe.Do or in its groups, as the file is mapped. It is nil for an unknown name.
func (m *Model) Matrix(name string) *quantized.Matrix {
	t := m.byName[name]
	if t == nil {
		return nil
	}
	return t.matrix(m.tensors.src.Bytes)
}

// Place names the tensors of the file that a tensor is made of; "" for an unknown name.
func (m *Model) Place(name string) string {
	t := m.byName[name]
	if t == nil {
		return ""
	}

	var places []string
	for _, p := range t.pieces {
		places = append(places, p.info.Name)
	}

	return strings.Join(slices.Compact(places), " and ")
}

// Quantised reports whether values of the file are those of a quantised model.
func (m *Model) Quantised() bool {
	return slices.ContainsFunc(m.list, func(t *tensor) bool {
		return slices.ContainsFunc(t.pieces, func(p piece) bool { return p.info.Type.Quantized() })
	})
}

// Quantisation says for a report what types the file has: "GGUF Q4_1 (Q4_1 210, Q6_K 1, F32 61 tensors)". The type of
// most values gives the name.
func (m *Model) Quantisation() string {
	counts := map[gguf.Type]int{}
	sizes := map[gguf.Type]int64{}
	var types []gguf.Type
	for _, info := range m.tensors.info {
		if counts[info.Type] == 0 {
			types = append(types, info.Type)
		}
		counts[info.Type]++
		sizes[info.Type] += info.Rows() * info.Cols()
	}

	slices.SortFunc(types, func(a, b gguf.Type) int {
		if a.Quantized() != b.Quantized() {
			if a.Quantized() {
				return -1
			}
			return 1
		}
		return compare(sizes[b], sizes[a], int64(a), int64(b))
	})

	var parts []string
	for _, t := range types {
		parts = append(parts, fmt.Sprintf("%v %d", t, counts[t]))
	}
	if len(types) == 0 {
		return "GGUF"
	}

	return fmt.Sprintf("GGUF %v (%s tensors)", types[0], strings.Join(parts, ", "))
}

// compare orders by the first pair of numbers that differ.
func compare(pairs ...int64) int {
	for i := 0; i < len(pairs); i += 2 {
		switch {
		case pairs[i] < pairs[i+1]:
			return -1
		case pairs[i] > pairs[i+1]:
			return 1
		}
	}
	return 0
}

// Unknown lists keys of the architecture that were not read and have no effect here.
func (m *Model) Unknown() []string { return m.meta.unknown() }
