package quantized

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// packQuantized is compressed-tensors' format of integers of 1 to 8 bits. With b bits, u = q + 2^(b-1) is stored: the
// rows of weight_packed are strings of bits, and the columns of weight_zero_point too. The value is (q - z)·scale,
// rounded to the type of the scales.
var packQuantized = Format{
	Name: "pack-quantized", marks: []string{".weight_packed"},
	parts: []string{".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx"},
	fits:  func(w *stored) bool { return w.dtype(".weight_packed") == safetensors.I32 },
	open: func(w *stored, s Scheme) (*Matrix, error) {
		packed, err := w.matrix(".weight_packed", safetensors.I32)
		if err != nil {
			return nil, err
		}
		if s.Bits < 1 || s.Bits > 8 {
			return nil, fmt.Errorf("%w: num_bits %d; 1 to 8 can be packed", ErrConfig, s.Bits)
		}

		cols, err := packedColumns(w, packed, s.Bits)
		if err != nil {
			return nil, err
		}

		q := &integers{bits: s.Bits, bias: 1 << (s.Bits - 1), row: func(dst []byte, r int) {
			size := packed.cols() * 4
			codes(dst, packed.data[r*size:][:size], s.Bits)
		}}
		if s.Bits == 4 && packed.cols()*4 == kernels.Int4.RowBytes(cols) {
			q.whole = packed.data
		}
		return q.open(w, s, packed.rows(), cols)
	},
}

// packedColumns reads the number of columns, which the packed words only bound.
func packedColumns(w *stored, packed part, n int) (int, error) {
	shape, err := w.part(".weight_shape", safetensors.I64, safetensors.I32)
	if err != nil {
		return 0, err
	}
	if err := shape.expect(2); err != nil {
		return 0, err
	}

	at := func(i int) int64 {
		if shape.DType == safetensors.I32 {
			return int64(int32(binary.LittleEndian.Uint32(shape.data[4*i:])))
		}
		return int64(binary.LittleEndian.Uint64(shape.data[8*i:]))
	}

	most := packed.Shape[1] * 32 / int64(n)
	if at(0) != packed.Shape[0] || at(1) < 1 || at(1) > most || int64(ceil(int(at(1))*n, 32)) != packed.Shape[1] {
		return 0, packed.misfit("%d-bit numbers of a matrix of %d×%d", n, at(0), at(1))
	}

	return int(at(1)), nil
}

// intQuantized is compressed-tensors' format of whole bytes. The value is (q - z)·scale, rounded to the type of the
// scales.
var intQuantized = Format{
	Name: "int-quantized", marks: []string{".weight"},
	parts: []string{".weight_scale", ".weight_zero_point", ".weight_g_idx"},
	fits: func(w *stored) bool {
		return w.dtype(".weight") == safetensors.I8 && w.has(".weight_scale")
	},
	open: func(w *stored, s Scheme) (*Matrix, error) {
		weight, err := w.matrix(".weight", safetensors.I8)
		if err != nil {
			return nil, err
		}

		// As bytes, q + 128 is q with its sign bit turned over.
		q := &integers{bits: 8, bias: 128, row: func(dst []byte, r int) {
			for i, v := range weight.data[r*len(dst):][:len(dst)] {
				dst[i] = v ^ 0x80
			}
		}, whole: weight.data}
		return q.open(w, s, weight.rows(), weight.cols())
	},
}

// integers are rows of whole numbers with scales and zero points, as compressed-tensors has them.
type integers struct {
	bits, bias int
	row        func(dst []byte, r int) // the numbers of a row, with the bias added
	whole      []byte                  // the rows as kernels have them; nil: they have them otherwise

	scales *grid
	zero   func(row, group int) int // nil for symmetric ones
	groups []int32                  // of each column; nil if they follow each other
	dtype  safetensors.DType
}

func (q *integers) open(w *stored, s Scheme, rows, cols int) (*Matrix, error) {
	scale, err := w.part(".weight_scale", floats...)
	if err != nil {
		return nil, err
	}

	q.dtype = scale.DType
	if q.scales, err = newGrid(scale, rows, cols, s.Block); err != nil {
		return nil, err
	}
	if err := q.openZeros(w, s, rows); err != nil {
		return nil, err
	}
	if q.groups, err = permutation(w, ".weight_g_idx", cols, q.scales.width, true); err != nil {
		return nil, err
	}

	m := &Matrix{Rows: rows, Cols: cols, DType: scale.DType}
	m.eachRow(q.decode)
	if q.groups == nil || inOrder(q.groups, q.scales.cols) {
		g := q.grouped(cols)
		m.kernel = g.kernel()
		m.codes = g.codes
	}
	return m, nil
}

// grouped is how kernels have the integers.
func (q *integers) grouped(cols int) *grouped {
	g := &grouped{
		bits: q.bits, cols: cols, group: q.scales.cols, groups: q.scales.width, row: q.row, scale: q.scales.at,
		whole: q.whole,
	}
	if q.zero != nil {
		g.zero = func(r, group int) int { return q.zero(r, group) + q.bias }
	}
	return g
}

// openZeros finds the zero points, if there are any: as bytes of the scales' shape, or packed along the rows.
func (q *integers) openZeros(w *stored, s Scheme, rows int) error {
	if !w.has(".weight_zero_point") {
		if !s.Symmetric {
			return fmt.Errorf("%w: %s.weight_zero_point", ErrMissing, w.name)
		}
		return nil
	}

	p, err := w.part(".weight_zero_point", safetensors.I8, safetensors.I32)
	if err != nil {
		return err
	}

	g := q.scales
	if p.DType == safetensors.I8 {
		if n := ceil(rows, g.rows) * g.width; p.Elements() != int64(n) {
			return p.misfit("%d zero points", n)
		}
		q.zero = func(row, group int) int { return int(int8(p.data[row/g.rows*g.width+group])) }
		return nil
	}

	if err := p.expect(int64(ceil(rows*q.bits, 32)), int64(g.width)); err != nil {
		return err
	}
	q.zero = func(row, group int) int {
		at := row * q.bits
		word := func(i int) uint64 {
			if 4*(i*g.width+group) >= len(p.data) {
				return 0
			}
			return uint64(binary.LittleEndian.Uint32(p.data[4*(i*g.width+group):]))
		}
		v := word(at/32) | word(at/32+1)<<32
		return int(v>>(at%32)&(1<<q.bits-1)) - q.bias
	}
	return nil
}

// permutation reads the group of every column; nil where there is no such tensor, or one that was never set. With
// unset, any -1 says so, as compressed-tensors has it: it fills the tensor with -1 and asks whether one is left. GPTQ
// knows no such number.
func permutation(w *stored, ending string, cols, groups int, unset bool) ([]int32, error) {
	if !w.has(ending) {
		return nil, nil
	}

	p, err := w.part(ending, safetensors.I32)
	if err != nil {
		return nil, err
	}
	if err := p.expect(int64(cols)); err != nil {
		return nil, err
	}

	list := make([]int32, cols)
	for i := range list {
		list[i] = int32(binary.LittleEndian.Uint32(p.data[4*i:]))
	}
	if unset && slices.Contains(list, -1) {
		return nil, nil
	}

	for i, g := range list {
		if g < 0 || int(g) >= groups {
			return nil, fmt.Errorf("%w: column %d is in group %d of %d", ErrGroups, i, g, groups)
		}
	}

	return list, nil
}

// decode writes a row.
func (q *integers) decode(dst []float32, r int) error {
	w := rowBuffers.Get().(*rowBuffer)
	defer rowBuffers.Put(w)

	row := w.bytes(len(dst))
	q.row(row, r)

	if q.groups != nil {
		return q.decodePermuted(dst, row, r)
	}

	for group := range q.scales.width {
		first := group * q.scales.cols
		n := min(q.scales.cols, len(dst)-first)
		if err := q.decodeGroup(dst[first:][:n], row[first:][:n], r, group, &w.table); err != nil {
			return err
		}
	}

	return nil
}

// decodeGroup decodes numbers that share a scale: by a table of all values where that is shorter than the group.
func (q *integers) decodeGroup(dst []float32, row []byte, r, group int, table *[128]float32) error {
	s, offset, err := q.scale(r, group)
	if err != nil {
		return err
	}

	if q.bits == 8 && offset == q.bias && len(dst)%16 == 0 {
		for i := 0; i < len(row); i += 8 {
			store(row[i:], load(row[i:])^signs) // the numbers themselves, signed
		}
		table[0] = s
		fastest.scale(dst, row, table[:1], len(dst))
		round(dst, q.dtype)
		return nil
	}

	if len(dst) < 1<<q.bits || q.bits == 8 {
		for i, v := range row {
			dst[i] = float32(int(v)-offset) * s
		}
		round(dst, q.dtype)
		return nil
	}

	for v := range 1 << q.bits {
		table[v] = float32(v-offset) * s
	}
	round(table[:1<<q.bits], q.dtype)
	for len(row) >= 8 { // eight bounds are checked at once
		out := (*[8]float32)(dst)
		for i, v := range (*[8]byte)(row) {
			out[i] = table[v&127]
		}
		dst = dst[8:]
		row = row[8:]
	}
	for i, v := range row {
		dst[i] = table[v&127]
	}

	return nil
}

// scale returns the scale of a group, and what is subtracted from its numbers.
func (q *integers) scale(r, group int) (s float32, offset int, err error) {
	s, err = q.scales.at(r, group)
	offset = q.bias
	if q.zero != nil {
		offset += q.zero(r, group)
	}
	return s, offset, err
}

func (q *integers) decodePermuted(dst []float32, row []byte, r int) error {
	for i, v := range row {
		s, offset, err := q.scale(r, int(q.groups[i]))
		if err != nil {
			return err
		}
		dst[i] = float32(int(v)-offset) * s
	}
	round(dst, q.dtype)
	return nil
}
