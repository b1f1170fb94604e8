// Package quant keeps matrices in 8 or 4 bits an element, in blocks of 64 consecutive elements with one scale
// each, and widens them again when they are multiplied. It is what a frozen base needs while an adapter is
// trained on it.
//
// A scale is the largest magnitude of its block, rounded up to BF16. With 8 bits a code is the nearest of 255
// equal steps from -1 to 1; with 4 bits it is the nearest of the 16 levels of NormalFloat (Dettmers et al.,
// arXiv 2305.14314), which are quantiles of a normal distribution with an exact 0. An element takes 8.25 or
// 4.25 bits.
package quant

import (
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Block is how many elements share a scale.
const Block = 64

// ErrBits: a number of bits that is not supported.
var ErrBits = errors.New("a matrix can be kept in 8 or 4 bits an element")

// Matrix is a matrix in few bits.
type Matrix struct {
	Rows, Cols int
	Bits       int
	DType      kernels.DType // of what it is widened to: that of the original
	codes      []byte
	scales     []uint16 // BF16
}

// Check reports, by a nil error, whether a number of bits is supported; 0 means none.
func Check(bits int) error {
	if bits == 0 || bits == 4 || bits == 8 {
		return nil
	}
	return fmt.Errorf("%w, not %d", ErrBits, bits)
}

// Bytes is the memory that the matrix takes.
func (m *Matrix) Bytes() int64 { return int64(len(m.codes)) + 2*int64(len(m.scales)) }

// New quantises a matrix in host memory without gaps between rows.
func New(x kernels.Mat, bits, threads int) *Matrix {
	n := x.Len()
	m := &Matrix{
		Rows: x.Rows, Cols: x.Cols, Bits: bits, DType: x.DType(), codes: make([]byte, (n*bits+7)/8),
		scales: make([]uint16, (n+Block-1)/Block),
	}
	m.parallel(threads, func(lo, hi int) {
		var wide [Block]float32
		for b := lo; b < hi; b++ {
			from := b * Block
			row := wide[:min(Block, n-from)]
			widen(row, x, from)
			m.encode(b, row)
		}
	})

	return m
}

// parallel splits the blocks among goroutines; results do not depend on how many.
func (m *Matrix) parallel(threads int, f func(lo, hi int)) {
	n := len(m.scales)
	mmapsafe.Split(max(1, min(threads, n/1024)), n, f)
}

// encode writes the codes of a block.
func (m *Matrix) encode(b int, x []float32) {
	most := float32(0)
	for _, v := range x {
		most = max(most, float32(math.Abs(float64(v))))
	}

	scale := kernels.ToBF16(most)
	if kernels.FromBF16(scale) < most {
		scale++
	}

	m.scales[b] = scale
	inverse := float32(0)
	if s := kernels.FromBF16(scale); s > 0 {
		inverse = 1 / s
	}

	if m.Bits == 8 {
		for i, v := range x {
			m.codes[b*Block+i] = byte(int8(math.RoundToEven(float64(v * inverse * 127))))
		}
		return
	}

	for i, v := range x {
		at := (b*Block + i) / 2
		m.codes[at] = m.codes[at]&(0xf0>>(4*(i%2))) | nearest(v*inverse)<<(4*(i%2))
	}
}

// nearest is the code of the level that is nearest to v.
func nearest(v float32) byte {
	code := byte(0)
	for code < 15 && v > middles[code] {
		code++
	}
	return code
}

// levels are the 16 values of a code of 4 bits, middles what lies half way between two.
var levels, middles = normalFloat()

func normalFloat() (l [16]float32, m [15]float32) {
	quantile := func(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }
	const offset = 0.9677083 // as published: half the way between 1 - 1/(2·15) and 1 - 1/(2·16)
	top := quantile(offset)
	for i := range 8 { // from 0 up to 1
		l[8+i] = float32(quantile(0.5+(offset-0.5)*float64(i+1)/8) / top)
	}
	for i := range 7 { // from -1 up to 0
		l[i] = float32(-quantile(offset-(offset-0.5)*float64(i)/7) / top)
	}
	for i := range m {
		m[i] = (l[i] + l[i+1]) / 2
	}

	return l, m
}

// Expand writes the matrix to dst, of its shape and type, in host memory without gaps between rows.
func (m *Matrix) Expand(dst kernels.Mat, threads int) {
	n := m.Rows * m.Cols
	m.parallel(threads, func(lo, hi int) {
		var wide [Block]float32
		for b := lo; b < hi; b++ {
			row := wide[:min(Block, n-b*Block)]
			m.decode(b, row)
			narrow(dst, b*Block, row)
		}
	})

	dst.Buf.Changed()
}

// decode widens a block.
func (m *Matrix) decode(b int, x []float32) {
	s := kernels.FromBF16(m.scales[b])
	if m.Bits == 8 {
		s /= 127
		for i, c := range m.codes[b*Block:][:len(x)] {
			x[i] = float32(int8(c)) * s
		}
		return
	}

	var table [16]float32
	for i, l := range levels {
		table[i] = l * s
	}

	codes := m.codes[b*Block/2:]
	for i := 0; i+1 < len(x); i += 2 {
		c := codes[i/2]
		x[i], x[i+1] = table[c&15], table[c>>4]
	}

	if len(x)%2 != 0 {
		x[len(x)-1] = table[codes[len(x)/2]&15]
	}
}

// widen reads elements from a position on.
func widen(dst []float32, x kernels.Mat, from int) {
	from += x.Off
	switch x.DType() {
	case kernels.F32:
		copy(dst, x.Buf.F32()[from:])
	case kernels.BF16:
		for i, h := range x.Buf.U16()[from:][:len(dst)] {
			dst[i] = kernels.FromBF16(h)
		}
	default:
		for i, h := range x.Buf.U16()[from:][:len(dst)] {
			dst[i] = kernels.FromF16(h)
		}
	}
}

// narrow writes elements from a position on.
func narrow(dst kernels.Mat, from int, x []float32) {
	from += dst.Off
	switch dst.DType() {
	case kernels.F32:
		copy(dst.Buf.F32()[from:], x)
	case kernels.BF16:
		to := dst.Buf.U16()[from:]
		for i, v := range x {
			to[i] = kernels.ToBF16(v)
		}
	default:
		to := dst.Buf.U16()[from:]
		for i, v := range x {
			to[i] = kernels.ToF16(v)
		}
	}
}
