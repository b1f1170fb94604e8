package quantized

import (
	"fmt"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// coder gives rows of a matrix in its bits; see [Matrix.Codes].
type coder func(first, n int) (w kernels.Quantised, view bool, err error)

// Kernel is the format of package kernels in which rows of the matrix can be had in their bits; 0: no kernel multiplies
// with them, and they are decoded.
func (m *Matrix) Kernel() kernels.QuantFormat { return m.kernel }

// Codes gives n rows from first on in the format of [Matrix.Kernel], which is not 0. view reports that the codes are a
// view of what the matrix is stored in, which must stay; otherwise all is a copy. The error wraps [ErrNotFinite] and
// names the weight.
func (m *Matrix) Codes(first, n int) (w kernels.Quantised, view bool, err error) {
	if m.kernel == 0 || first < 0 || n < 0 || first > m.Rows-n {
		panic("quantized: rows outside the matrix, or that no kernel multiplies with")
	}
	if w, view, err = m.codes(first, n); err != nil {
		return kernels.Quantised{}, false, fmt.Errorf("tensor %q: %w", m.Name, err)
	}
	return w, view, nil
}

// CodedBy gives a matrix that other code describes its codes in a format whose blocks carry their scales: f gives the
// blocks of some rows, and whether they are a view.
func (m *Matrix) CodedBy(k kernels.QuantFormat, f func(first, n int) (data []byte, view bool, err error)) *Matrix {
	m.kernel = k
	m.codes = func(first, n int) (w kernels.Quantised, view bool, err error) {
		data, view, err := f(first, n)
		if err != nil {
			return w, false, err
		}
		if err := checkBlocks(k.String(), data); err != nil {
			return w, false, err
		}

		buf, err := kernels.Wrap(kernels.U8, data)
		if err == nil {
			w, err = kernels.NewQuantised(k, n, m.Cols, 0, buf, nil, nil)
		}
		return w, view, err
	}
	return m
}

// BlockKernel is the format of package kernels that has the values of one of GGUF's types, by its name there, in blocks
// that [KernelBlocks] gives; 0: none.
func BlockKernel(name string) kernels.QuantFormat {
	if name == IQ4_NL.Name {
		return kernels.Q8_0
	}
	for _, k := range kernels.QuantFormats() {
		if !k.Grouped() && k.String() == name {
			return k
		}
	}
	return 0
}

// KernelBlocks gives blocks of one of GGUF's types, which has a [BlockKernel], as blocks of that: as they are or, of
// IQ4_NL, a copy. view reports which.
func KernelBlocks(name string, data []byte) (blocks []byte, view bool, err error) {
	if name != IQ4_NL.Name {
		return data, true, nil
	}
	if err := checkBlocks(name, data); err != nil {
		return nil, false, err
	}

	// Both have a float16 for 32 elements, and what the codes stand for are signed bytes: every value stays.
	const piece = 1 << 14 // blocks that one thread makes
	n := len(data) / IQ4_NL.Bytes
	blocks = make([]byte, n*Q8_0.Bytes)
	mmapsafe.Each(0, ceil(n, piece), func(i int) {
		for b := i * piece; b < min((i+1)*piece, n); b++ {
			from, to := data[b*IQ4_NL.Bytes:][:IQ4_NL.Bytes], blocks[b*Q8_0.Bytes:][:Q8_0.Bytes]
			copy(to, from[:2])
			for p, codes := range from[2:] {
				to[2+p] = byte(iq4Values[codes&15])
				to[18+p] = byte(iq4Values[codes>>4])
			}
		}
	})
	return blocks, false, nil
}

// checkBlocks refuses blocks whose scales are no numbers: kernels trust them.
func checkBlocks(name string, data []byte) error {
	f, ok := BlockNamed(name)
	if !ok {
		return fmt.Errorf("%w: %s", ErrNotDecodable, name)
	}

	const piece = 1 << 14 // blocks that are looked at by one thread
	blocks := len(data) / f.Bytes
	bad := make([]int, ceil(blocks, piece))
	mmapsafe.Each(0, len(bad), func(i int) {
		bad[i] = -1
		for b := i * piece; b < min((i+1)*piece, blocks) && bad[i] < 0; b++ {
			if !f.finite(data[b*f.Bytes:][:f.Bytes]) {
				bad[i] = b
			}
		}
	})

	for _, b := range bad {
		if b >= 0 {
			return fmt.Errorf("%w: the block of %s from element %d on", ErrNotFinite, name, b*f.Elements)
		}
	}
	return nil
}

// grouped makes codes with scales beside them.
type grouped struct {
	bits       int // of a code: up to 4 become Int4, others Int8
	cols       int
	group      int // columns that share a scale
	groups     int // scales of a row
	row        func(dst []byte, r int)
	scale      func(r, group int) (float32, error)
	zero       func(r, group int) int // what is subtracted from codes; nil: the middle of their range
	whole      []byte                 // rows of bytes as the kernels have them already; nil without
	bandRows   int                    // rows that are best written together; 0: one
	writeBands func(dst []byte, width, first, n int)
}

// kernel is the format that the codes become.
func (g *grouped) kernel() kernels.QuantFormat {
	if g.bits <= 4 {
		return kernels.Int4
	}
	return kernels.Int8
}

// codes implements [coder].
func (g *grouped) codes(first, n int) (w kernels.Quantised, view bool, err error) {
	scales, zeros, err := g.beside(first, n)
	if err != nil {
		return w, false, err
	}

	k := g.kernel()
	width := k.RowBytes(g.cols)
	view = g.whole != nil
	var data *kernels.Buffer
	if view {
		data, err = kernels.Wrap(kernels.U8, g.whole[first*width:][:n*width])
		if err != nil {
			return w, false, err
		}
	} else {
		data = kernels.NewHost(kernels.U8, n*width)
		g.write(data.U8(), width, first, n)
	}

	w, err = kernels.NewQuantised(k, n, g.cols, g.group, data, scales, zeros)
	return w, view, err
}

// write fills the rows of a copy.
func (g *grouped) write(dst []byte, width, first, n int) {
	step := max(g.bandRows, 1)
	steps := ceil(first%step+n, step)
	mmapsafe.EachWith(0, steps, func() *[]byte { row := make([]byte, g.cols); return &row }, func(row *[]byte, i int) {
		lo := max((first/step+i)*step, first)
		hi := min((first/step+i+1)*step, first+n)
		if g.writeBands != nil {
			g.writeBands(dst[(lo-first)*width:][:(hi-lo)*width], width, lo, hi-lo)
			return
		}

		for r := lo; r < hi; r++ {
			g.row(*row, r)
			g.pack(dst[(r-first)*width:][:width], *row)
		}
	})
}

// pack writes the codes of a row.
func (g *grouped) pack(dst, row []byte) {
	if g.bits > 4 {
		turnOver := byte(1) << (g.bits - 1) // from 0 on, to around 0
		for i, v := range row {
			dst[i] = v - turnOver
		}
		return
	}

	for i := range dst {
		dst[i] = row[2*i]
		if 2*i+1 < len(row) {
			dst[i] |= row[2*i+1] << 4
		}
	}
}

// beside gives the scales of some rows, and their zero points unless all are what their absence means.
func (g *grouped) beside(first, n int) (scales, zeros *kernels.Buffer, err error) {
	scales = kernels.NewHost(kernels.F32, n*g.groups)
	to := scales.F32()
	for i := range to {
		if to[i], err = g.scale(first+i/g.groups, i%g.groups); err != nil {
			return nil, nil, err
		}
	}
	if g.zero == nil && g.bits > 3 {
		return scales, nil, nil // the middle: 8 of 16, and 0 of signed bytes
	}

	// The zero point of a code around 0 is that much less, too.
	shift, usual := 0, 8
	if g.bits > 4 {
		shift = 1 << (g.bits - 1)
		usual = 0
	}

	zeros = kernels.NewHost(kernels.U8, n*g.groups)
	z := zeros.U8()
	needed := false
	for i := range z {
		v := 1 << (g.bits - 1)
		if g.zero != nil {
			v = g.zero(first+i/g.groups, i%g.groups)
		}
		z[i] = byte(v - shift)
		needed = needed || v-shift != usual
	}
	if !needed {
		return scales, nil, nil
	}

	return scales, zeros, nil
}

// inOrder reports whether groups of columns follow each other, each of the same size but the last.
func inOrder(groups []int32, size int) bool {
	for i, g := range groups {
		if int(g) != i/size {
			return false
		}
	}
	return true
}
