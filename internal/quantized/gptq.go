package quantized

import (
	"encoding/binary"
	"fmt"

	"github.com/modelcompress/compress/safetensors"
)

// gptq is the format of GPTQ's tools, for 2, 3, 4 and 8 bits. The matrix is stored transposed: the columns of qweight
// [in·bits/32, out] are strings of bits, as are the rows of qzeros [in/group, out·bits/32]; scales is [in/group, out],
// and g_idx has the group of every input. Version 1 stores zero points less 1, modulo 2^bits. The value is
// (q - z)·scale, rounded to the type of the scales.
var gptq = Format{
	Name: "gptq", marks: []string{".qweight"}, parts: []string{".qzeros", ".scales", ".g_idx"},
	open: func(w *stored, s Scheme) (*Matrix, error) {
		qweight, err := w.matrix(".qweight", safetensors.I32)
		if err != nil {
			return nil, err
		}
		if s.Bits != 2 && s.Bits != 3 && s.Bits != 4 && s.Bits != 8 {
			return nil, fmt.Errorf("%w: bits %d (known: 2, 3, 4, 8)", ErrConfig, s.Bits)
		}

		t := &transposed{bits: s.Bits, in: qweight.rows() * 32 / s.Bits, out: qweight.cols()}
		if w.has(".g_idx") { // the last word of a column may hold fewer inputs
			p, err := w.part(".g_idx", safetensors.I32)
			if err != nil {
				return nil, err
			}
			if n := len(p.data) / 4; n < 1 || ceil(n*s.Bits, 32) != qweight.rows() {
				return nil, qweight.misfit("%d-bit numbers of the %d inputs of g_idx", s.Bits, n)
			}
			t.in = len(p.data) / 4
		}

		if err := t.openScales(w, s); err != nil {
			return nil, err
		}
		if err := t.openGroups(w, s); err != nil {
			return nil, err
		}

		qzeros, err := w.part(".qzeros", safetensors.I32)
		if err != nil {
			return nil, err
		}
		if err := qzeros.expect(int64(t.n), int64(ceil(t.out*s.Bits, 32))); err != nil {
			return nil, err
		}
		t.zero = gptqZeros(qzeros, s)

		words := s.Bits // that hold 32 inputs
		if 32%s.Bits == 0 {
			words = 1
		}
		t.step = words * 32 / s.Bits
		t.read = func(q []byte, first, column int) { gptqColumn(q, qweight, first/t.step*words, column, s.Bits) }
		if s.Bits == 4 && t.eights() {
			t.eight = func(q []uint32, from, first int) {
				row := qweight.data[4*(from/8*t.out+first):]
				for j := range q {
					q[j] = binary.LittleEndian.Uint32(row[4*j:])
				}
			}
		}

		return t.matrix(), nil
	},
}

func gptqZeros(p part, s Scheme) func(group, column int) int {
	most := 1<<s.Bits - 1
	return func(group, column int) int {
		size := p.cols() * 4
		z := int(bits(p.data[group*size:][:size], column, s.Bits))
		if s.ZerosLessOne {
			z = (z + 1) & most
		}
		return z
	}
}

// gptqColumn reads numbers of a column from a word on.
func gptqColumn(q []byte, p part, word, column, n int) {
	var b [32]byte // at most 8 words, and what bits may look at behind them
	size := ceil(len(q)*n, 32)
	for i := range min(size, p.rows()-word) {
		copy(b[4*i:4*i+4], p.data[4*((word+i)*p.cols()+column):])
	}

	if n == 4 { // the usual case: one word
		v := binary.LittleEndian.Uint32(b[:])
		for i := range q {
			q[i] = byte(v & 15)
			v >>= 4
		}
		return
	}
	codes(q, b[:], n)
}

// awqOrder is where in a word the column 8·c + i is.
var awqOrder = [8]int{0, 4, 1, 5, 2, 6, 3, 7}

// awq is the format of AutoAWQ's version "gemm", of 4 bits. The matrix is stored transposed: a word of qweight
// [in, out/8] has eight columns in the order 0 2 4 6 1 3 5 7, as qzeros [in/group, out/8] has; scales is
// [in/group, out]. The value is (q - z)·scale, rounded to the type of the scales.
var awq = Format{
	Name: "awq", marks: []string{".qweight"}, parts: []string{".qzeros", ".scales"},
	open: func(w *stored, s Scheme) (*Matrix, error) {
		qweight, err := w.matrix(".qweight", safetensors.I32)
		if err != nil {
			return nil, err
		}
		if s.Bits != 4 {
			return nil, fmt.Errorf("%w: bits %d (known: 4)", ErrConfig, s.Bits)
		}

		t := &transposed{bits: 4, in: qweight.rows(), out: 8 * qweight.cols(), step: 1}
		if err := t.openScales(w, s); err != nil {
			return nil, err
		}
		if err := t.openGroups(w, s); err != nil {
			return nil, err
		}

		qzeros, err := w.part(".qzeros", safetensors.I32)
		if err != nil {
			return nil, err
		}
		if err := qzeros.expect(int64(t.n), int64(qweight.cols())); err != nil {
			return nil, err
		}

		number := func(p part, row, column int) byte {
			at := row*p.cols() + column/8
			return byte(binary.LittleEndian.Uint32(p.data[4*at:]) >> (4 * awqOrder[column%8]) & 15)
		}
		t.zero = func(group, column int) int { return int(number(qzeros, group, column)) }

		t.step = awqStep
		t.read = func(q []byte, first, column int) {
			at := 4 * (first*qweight.cols() + column/8)
			shift := 4 * awqOrder[column%8]
			for i := range q {
				q[i] = byte(binary.LittleEndian.Uint32(qweight.data[at+4*i*qweight.cols():]) >> shift & 15)
			}
		}
		if t.eights() {
			t.eight = func(q []uint32, from, first int) { awqEight(q, qweight, from, first) }
		}

		return t.matrix(), nil
	},
}

// awqEight turns the words of eight inputs, each of which has eight columns, into a word for each column.
func awqEight(q []uint32, p part, from, first int) {
	for j := 0; j < len(q); {
		column := first + j
		words := eightNibbles(p, from, column/8)
		for i := column % 8; i < 8 && j < len(q); i++ {
			q[j] = words[awqOrder[i]]
			j++
		}
	}
}

// eightNibbles transposes 8×8 numbers of four bits: nibble i of word k becomes nibble k of word i.
func eightNibbles(p part, from, column int) (w [8]uint32) {
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(p.data[4*((from+i)*p.cols()+column):])
	}

	// Squares of 1, 2 and 4 nibbles trade places across the diagonal.
	for _, step := range []struct {
		n     int
		mask  uint32
		shift int
	}{{4, 0x0000ffff, 16}, {2, 0x00ff00ff, 8}, {1, 0x0f0f0f0f, 4}} {
		for i := range 8 {
			if i&step.n != 0 {
				continue
			}
			a, b := w[i], w[i+step.n]
			w[i] = a&step.mask | b&step.mask<<step.shift
			w[i+step.n] = a>>step.shift&step.mask | b&^step.mask
		}
	}

	return w
}

// awqStep is how many inputs of a column are read at once, so that what is written fills cache lines.
const awqStep = 16

// transposed is a matrix that is stored by input, then by output.
type transposed struct {
	bits    int
	in, out int
	step    int // inputs that are read at once

	read   func(q []byte, first, column int) // at most step numbers of a column, from a multiple of it on
	zero   func(group, column int) int
	scales part
	scale  func(b []byte, i int) float32
	// eight gives the numbers of eight inputs, from a multiple of eight on, of each of some columns: the first in the
	// lowest four bits. nil where that does not fit the groups.
	eight func(q []uint32, from, first int)

	n      int     // groups
	groups []int32 // of each input
}

func (t *transposed) openScales(w *stored, s Scheme) error {
	scales, err := w.matrix(".scales", floats...)
	if err != nil {
		return err
	}

	t.scales = scales
	t.scale = number(scales.DType)
	t.n = scales.rows()
	if scales.cols() != t.out {
		return scales.misfit("%d columns", t.out)
	}
	if size := s.Group; size > 0 && ceil(t.in, size) != t.n {
		return scales.misfit("%d groups of %d inputs", ceil(t.in, size), size)
	}

	return nil
}

func (t *transposed) openGroups(w *stored, s Scheme) (err error) {
	if t.groups, err = permutation(w, ".g_idx", t.in, t.n, false); err != nil || t.groups != nil {
		return err
	}

	t.groups = make([]int32, t.in)
	size := s.Group
	if size <= 0 {
		size = ceil(t.in, t.n)
	}
	for i := range t.groups {
		t.groups[i] = int32(i / size)
	}

	return nil
}

// eights reports whether all groups are whole eights of inputs that follow each other.
func (t *transposed) eights() bool {
	if t.in%8 != 0 {
		return false
	}
	for i, g := range t.groups {
		if g != t.groups[i/8*8] {
			return false
		}
	}
	return true
}

// band is how many rows share the tables of values that they are decoded by.
const band = 16

func (t *transposed) matrix() *Matrix {
	m := &Matrix{Rows: t.out, Cols: t.in, DType: t.scales.DType, Band: band}
	m.decode = func(dst []float32, first, n int) error {
		for n > 0 {
			k := min(n, band-first%band)
			if err := t.decode(dst[:k*t.in], first, k); err != nil {
				return err
			}
			dst = dst[k*t.in:]
			first += k
			n -= k
		}
		return nil
	}

	size := 0 // of a group
	for size < t.in && t.groups[size] == t.groups[0] {
		size++
	}
	if inOrder(t.groups, size) && ceil(t.in, size) == t.n {
		g := t.grouped(size)
		m.kernel = g.kernel()
		m.codes = g.codes
	}

	return m
}

// grouped is how kernels have the matrix.
func (t *transposed) grouped(size int) *grouped {
	g := &grouped{bits: t.bits, cols: t.in, group: size, groups: t.n, bandRows: band}
	g.scale = func(r, group int) (float32, error) {
		s := t.scale(t.scales.data, group*t.out+r)
		if s-s != 0 {
			return 0, fmt.Errorf("%w: row %d, group %d", ErrNotFinite, r, group)
		}
		return s, nil
	}
	g.zero = func(r, group int) int { return t.zero(group, r) }

	g.row = func(dst []byte, r int) {
		for from := 0; from < t.in; from += t.step {
			t.read(dst[from:min(from+t.step, t.in)], from, r)
		}
	}
	if t.eight != nil && t.bits == 4 { // a word for each row is four bytes of it
		g.writeBands = func(dst []byte, width, first, n int) {
			var words [band]uint32
			for from := 0; from < t.in; from += 8 {
				t.eight(words[:n], from, first)
				for j, q := range words[:n] {
					binary.LittleEndian.PutUint32(dst[j*width+from/2:], q)
				}
			}
		}
	}

	return g
}

// decode writes n rows. For up to 4 bits, the values of all numbers of every group are worked out first, which are
// fewer than the elements.
func (t *transposed) decode(dst []float32, first, n int) error {
	scales, err := t.groupScales(first, n)
	if err != nil {
		return err
	}

	if t.bits > 4 {
		t.decodeDirect(dst, first, n, scales)
		return nil
	}

	per := 1 << t.bits
	values := make([]float32, 0, len(scales)*per)
	for _, s := range scales {
		for v := range per {
			values = append(values, float32(v-s.zero)*s.scale)
		}
	}
	round(values, t.scales.DType)

	if t.eight != nil {
		t.decodeEights(dst, first, n, values)
		return nil
	}

	q := make([]byte, t.step)
	for from := 0; from < t.in; from += t.step {
		q = q[:min(t.step, t.in-from)]
		groups := t.groups[from:][:len(q)]
		for j := range n {
			t.read(q, from, first+j)
			out := dst[j*t.in+from:][:len(q)]
			for i, v := range q {
				out[i] = values[(int(groups[i])*n+j)*per+int(v)]
			}
		}
	}

	return nil
}

// decodeDirect is for numbers of which there are more than elements in a group.
func (t *transposed) decodeDirect(dst []float32, first, n int, scales []scaleAndZero) {
	q := make([]byte, t.step)
	for from := 0; from < t.in; from += t.step {
		q = q[:min(t.step, t.in-from)]
		groups := t.groups[from:][:len(q)]
		for j := range n {
			t.read(q, from, first+j)
			out := dst[j*t.in+from:][:len(q)]
			for i, v := range q {
				s := scales[int(groups[i])*n+j]
				out[i] = float32(int(v)-s.zero) * s.scale
			}
		}
	}

	round(dst, t.scales.DType)
}

// decodeEights is for 4 bits, where the groups follow each other and are multiples of eight.
func (t *transposed) decodeEights(dst []float32, first, n int, values []float32) {
	var words [band]uint32
	for from := 0; from < t.in; from += 8 {
		t.eight(words[:n], from, first)
		tables := values[int(t.groups[from])*n*16:]
		for j, q := range words[:n] {
			table := (*[16]float32)(tables[j*16:])
			out := (*[8]float32)(dst[j*t.in+from:])
			out[0] = table[q&15]
			out[1] = table[q>>4&15]
			out[2] = table[q>>8&15]
			out[3] = table[q>>12&15]
			out[4] = table[q>>16&15]
			out[5] = table[q>>20&15]
			out[6] = table[q>>24&15]
			out[7] = table[q>>28]
		}
	}
}

// scaleAndZero is what numbers are decoded by.
type scaleAndZero struct {
	scale float32
	zero  int
}

// groupScales has the scale and zero point of every group for each of n rows.
func (t *transposed) groupScales(first, n int) ([]scaleAndZero, error) {
	list := make([]scaleAndZero, 0, t.n*n)
	for group := range t.n {
		for row := first; row < first+n; row++ {
			s := t.scale(t.scales.data, group*t.out+row)
			if s-s != 0 {
				return nil, fmt.Errorf("%w: row %d, group %d", ErrNotFinite, row, group)
			}
			list = append(list, scaleAndZero{s, t.zero(group, row)})
		}
	}
	return list, nil
}
