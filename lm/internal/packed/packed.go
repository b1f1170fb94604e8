// Package packed reads checkpoints whose pruned matrices are packed, in the sparse-bitmask form of
// compressed-tensors: instead of <module>.weight [rows, cols] there are <module>.compressed, the elements that
// are not zero, row after row; <module>.bitmask, U8 [rows, ⌈cols/8⌉], whose bit b of byte k says that column
// 8k+b is among them; <module>.shape, I64 [2]; and <module>.row_offsets, I64 [rows], the elements before each
// row. The last may be absent, since the others determine it. It also reads mixtures that keep the experts of a
// block in one tensor: each is a parameter of its own.
package packed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// ErrMismatch says that the tensors of a packed matrix do not make one.
var ErrMismatch = errors.New("packed matrix is not consistent")

// The ends of the names of a packed matrix's tensors, and of what they stand for.
const (
	shapePart   = ".shape"
	valuesPart  = ".compressed"
	maskPart    = ".bitmask"
	offsetsPart = ".row_offsets"
	weight      = ".weight"
)

var parts = []string{shapePart, valuesPart, maskPart, offsetsPart}

// Matrix is one packed matrix.
type Matrix struct {
	Name       string            // of the weight that it stands for
	DType      safetensors.DType // of the elements
	Rows, Cols int64

	module  string
	offsets bool // the file has them
}

// Source is a checkpoint as if nothing were packed and no two parameters lay in one tensor.
type Source struct {
	dir      *weights.Source
	names    []string
	matrices map[string]*Matrix     // by the names of what they stand for
	parts    map[string]bool        // their tensors
	inside   map[string]arch.Part   // parameters inside of stored tensors, by name
	joints   map[string][]arch.Part // the same by those tensors
}

// Find lists the tensors of a checkpoint. Where packed is false, no matrix is; otherwise the tensors of a
// packed matrix become the one that they stand for. Errors wrap [ErrMismatch], [arch.ErrShape] or
// [arch.ErrExtraTensor], or are those of reading. Only the shapes are read, and no matrix is larger than eight
// elements for a byte of its bitmask.
func Find(dir *weights.Source, c *arch.Config, packed bool) (*Source, error) {
	s := &Source{
		dir: dir, names: dir.Names(), matrices: map[string]*Matrix{}, parts: map[string]bool{},
		inside: map[string]arch.Part{}, joints: map[string][]arch.Part{},
	}

	if packed {
		if err := s.unpack(); err != nil {
			return nil, err
		}
	}

	return s, s.separate(c)
}

// unpack finds the packed matrices.
func (s *Source) unpack() error {
	modules := map[string]bool{}
	for _, name := range s.names {
		for _, part := range parts[1:] { // a name may end in shape by chance
			if module, ok := strings.CutSuffix(name, part); ok {
				modules[module] = true
			}
		}
	}

	var names []string
	for _, name := range s.names {
		at := strings.LastIndexByte(name, '.')
		if at < 0 || !modules[name[:at]] || !slices.Contains(parts, name[at:]) {
			names = append(names, name)
			continue
		}

		dense := name[:at] + weight
		if s.matrices[dense] != nil {
			continue
		}

		x, err := s.read(name[:at])
		if err != nil {
			return err
		}

		s.matrices[dense] = x
		names = append(names, dense)
	}

	s.names = names
	return nil
}

// read compares what the files say about the tensors of a packed matrix.
func (s *Source) read(module string) (*Matrix, error) {
	x := &Matrix{Name: module + weight, module: module}
	info := map[string]safetensors.Info{}
	for _, part := range parts {
		stored, ok := s.dir.Info(module + part)
		if !ok && part != offsetsPart {
			return nil, fmt.Errorf("%s: %w: %q lacks its tensor %q", s.dir.Path(), ErrMismatch, x.Name, module+part)
		}
		info[part], s.parts[module+part] = stored, true
	}

	if _, both := s.dir.Info(x.Name); both {
		return nil, s.fault(x, maskPart, "%q is there as well", x.Name)
	}

	shape := info[shapePart]
	values := info[valuesPart]
	mask := info[maskPart]
	offsets, hasOffsets := s.dir.Info(module + offsetsPart)
	var text [16]byte
	if shape.DType != safetensors.I64 || shape.Size != int64(len(text)) {
		return nil, s.fault(x, shapePart, "%s %v does not hold two I64", shape.DType, shape.Shape)
	}
	if n, err := s.dir.ReadAt(module+shapePart, text[:], 0); n < len(text) {
		return nil, fmt.Errorf("%s: %w", s.file(module+shapePart), err)
	}

	x.Rows, x.Cols = int64(binary.LittleEndian.Uint64(text[:])), int64(binary.LittleEndian.Uint64(text[8:]))
	x.DType, x.offsets = values.DType, hasOffsets
	switch {
	case x.Rows <= 0 || x.Cols <= 0:
		return nil, s.fault(x, shapePart, "a matrix cannot be [%d, %d]", x.Rows, x.Cols)
	case mask.DType != safetensors.U8 || !slices.Equal(mask.Shape, []int64{x.Rows, (x.Cols-1)/8 + 1}):
		return nil, s.fault(x, maskPart, "%s %v is not the bitmask of a matrix [%d, %d]", mask.DType, mask.Shape,
			x.Rows, x.Cols)
	case len(values.Shape) != 1:
		return nil, s.fault(x, valuesPart, "elements in %d dimensions, not in one", len(values.Shape))
	case hasOffsets && (offsets.DType != safetensors.I64 || !slices.Equal(offsets.Shape, []int64{x.Rows})):
		return nil, s.fault(x, offsetsPart, "%s %v is not I64 [%d]", offsets.DType, offsets.Shape, x.Rows)
	}

	return x, nil
}

// fault names file and tensor of a matrix that does not fit together.
func (s *Source) fault(x *Matrix, part, format string, args ...any) error {
	return fmt.Errorf("%s: tensor %q: %w: %s", s.file(x.module+part), x.module+part, ErrMismatch,
		fmt.Sprintf(format, args...))
}

func (s *Source) file(stored string) string { return s.dir.File(stored) }

// Files is the checkpoint as it was given.
func (s *Source) Files() *weights.Source { return s.dir }

// Decoded reports whether a parameter is quantised, and decoded as it is read.
func (s *Source) Decoded(name string) bool {
	stored, _ := s.Place(name)
	return s.dir.Decoded(stored)
}

// Names lists the tensors in the order of the files.
func (s *Source) Names() []string { return slices.Clone(s.names) }

// Any reports whether a matrix is packed.
func (s *Source) Any() bool { return len(s.matrices) > 0 }

// As gives the packed matrix of s that stands for a weight; nil: there is none. It is no method of s, which has
// a public name, as a Matrix has none.
func As(s *Source, name string) *Matrix { return s.matrices[name] }

// Info says what a tensor is; of a packed matrix, what the weight that it stands for would be.
func (s *Source) Info(name string) (safetensors.Info, bool) {
	if p, ok := s.inside[name]; ok {
		return s.inner(p), true
	}

	x := s.matrices[name]
	if x == nil {
		info, ok := s.dir.Info(name)
		return info, ok && !s.parts[name] && s.joints[name] == nil
	}

	return safetensors.Info{
		Name: name, DType: x.DType, Shape: []int64{x.Rows, x.Cols},
		Size: x.Rows * x.Cols * int64(x.DType.Bits()) / 8,
	}, true
}

// Shape gives a tensor's dimensions; false if there is none of that name.
func (s *Source) Shape(name string) ([]int64, bool) {
	info, ok := s.Info(name)
	return info.Shape, ok
}

// File is the path of the file that holds a tensor, of the folder for an unknown one.
func (s *Source) File(name string) string {
	if x := s.matrices[name]; x != nil {
		name = x.module + maskPart
	}
	stored, _ := s.Place(name)
	return s.file(stored)
}

// Load makes a packed matrix resident on a device. view reports that the parts are views of the file mapping, which
// [Matrix.Release] empties; otherwise they are copies. Contents that do not make a matrix are an error of
// [kernels.NewSparse]. They are checked only here: the files must not change afterwards.
func (x *Matrix) Load(s *Source, t kernels.DType, dev kernels.Device) (w kernels.Sparse, view bool, err error) {
	var values, mask, offsets *kernels.Buffer
	view = true
	for _, p := range []struct {
		to   **kernels.Buffer
		part string
		t    kernels.DType
	}{{&values, valuesPart, t}, {&mask, maskPart, kernels.U8}, {&offsets, offsetsPart, kernels.I64}} {
		if p.part == offsetsPart && !x.offsets {
			continue
		}

		mapped := false
		if *p.to, mapped, err = s.part(x.module+p.part, p.t); err != nil {
			return w, false, fmt.Errorf("%s: %w", s.file(x.module+p.part), err)
		}

		view = view && mapped
	}

	if w, err = kernels.NewSparse(int(x.Rows), int(x.Cols), mask, values, offsets); err != nil {
		return w, false, fmt.Errorf("%s: tensor %q: %w: %w", s.file(x.module+maskPart), x.module+maskPart, ErrMismatch,
			err)
	}
	if dev.Info().Host {
		return w, view, nil
	}
	if w, err = upload(w, dev); err != nil {
		return w, false, fmt.Errorf("%s: tensor %q: %w", s.File(x.Name), x.Name, err)
	}

	_ = x.Release(s) // the copy is what counts now
	return w, false, nil
}

// Expand gives a packed matrix as a dense one on a device. w is the matrix if [Matrix.Load] has made it
// resident, and absent otherwise.
func (x *Matrix) Expand(s *Source, w kernels.Sparse, t kernels.DType, dev kernels.Device) (kernels.Mat, error) {
	if w.IsZero() {
		var err error
		if w, _, err = x.Load(s, t, dev); err != nil {
			return kernels.Mat{}, err
		}
		defer func() {
			Free(&w)
			_ = x.Release(s) // the copy is what counts now
		}()
	}

	buf, err := dev.Alloc(t, w.Rows()*w.Cols)
	if err != nil {
		return kernels.Mat{}, fmt.Errorf("%s: tensor %q: %w", s.File(x.Name), x.Name, err)
	}

	m := kernels.MatOf(buf, w.Rows(), w.Cols)
	dev.Ops().Expand(m, w)

	if err := dev.Ops().Sync(); err != nil {
		buf.Free()
		return kernels.Mat{}, fmt.Errorf("%s: tensor %q: %w", s.File(x.Name), x.Name, err)
	}

	return m, nil
}

// part gives a stored tensor as it lies in the file mapping, or a copy where that is not aligned.
func (s *Source) part(name string, t kernels.DType) (buf *kernels.Buffer, mapped bool, err error) {
	data, err := s.dir.Bytes(name)
	if err != nil {
		return nil, false, err
	}

	buf, err = kernels.Wrap(t, data)
	if !errors.Is(err, kernels.ErrMisaligned) {
		return buf, true, err
	}

	buf = kernels.NewHost(t, len(data)/t.Size())
	if _, err = s.dir.ReadAt(name, buf.Bytes(), 0); errors.Is(err, io.EOF) {
		err = nil
	}

	return buf, false, err
}

// upload copies the parts of a checked matrix to a device that is not host memory.
func upload(w kernels.Sparse, dev kernels.Device) (kernels.Sparse, error) {
	var made []*kernels.Buffer
	for _, m := range []*kernels.Mat{&w.Mask, &w.Values, &w.Offsets} {
		buf, err := dev.Alloc(m.DType(), m.Buf.Len)
		if err == nil {
			made = append(made, buf)
			err = dev.Upload(buf, 0, m.Buf.Bytes())
		}
		if err != nil {
			for _, b := range made {
				b.Free()
			}
			return kernels.Sparse{}, err
		}

		m.Buf = buf
	}

	return w, nil
}

// Release gives back the pages of a packed matrix's tensors. Views of them stay valid.
func (x *Matrix) Release(s *Source) error {
	for _, part := range parts {
		if part == offsetsPart && !x.offsets {
			continue
		}
		if err := s.dir.Release(x.module + part); err != nil {
			return err
		}
	}
	return nil
}

// Free ends the residence of a matrix.
func Free(w *kernels.Sparse) {
	for _, m := range []kernels.Mat{w.Mask, w.Values, w.Offsets} {
		if m.Buf != nil {
			m.Buf.Free()
		}
	}
	*w = kernels.Sparse{}
}

// Changed drops what a backend derived from a matrix.
func Changed(w kernels.Sparse) {
	for _, m := range []kernels.Mat{w.Mask, w.Values, w.Offsets} {
		m.Buf.Changed()
	}
}
