package cpu

import (
	"sync"

	"github.com/modelcompress/compress/kernels"
)

// layers holds the operations around the matrix products: how they are cut into pieces, and the vector loops inside.
type layers struct {
	d *Device
	v *loops
}

// loops is the table of vector loops; every instruction set has its own. Slices of one call have equal lengths unless
// said otherwise; a destination may be one of the operands.
type loops struct {
	add        func(dst, a, b []float32, scale float32)        // dst = a + scale·b
	scale      func(dst, x []float32, scale float32)           // dst = x · scale
	widenBF16  func(dst []float32, x []uint16)                 // exact
	widenF16   func(dst []float32, x []uint16)                 // exact
	narrowBF16 func(dst []uint16, x []float32)                 // nearest, ties to even
	narrowF16  func(dst []uint16, x []float32)                 // nearest, ties to even
	act        [kernels.ReLU + 1]func(dst, x []float32)        // dst = f(x)
	gate       [kernels.ReLU + 1]func(dst, g, u []float32)     // dst = f(g) · u
	tanh       func(dst, x []float32, pre, post float32)       // dst = post · tanh(x · pre)
	sum        func(x []float32) float64                       // Σ x
	sumSq      func(x []float32) float64                       // Σ x²
	sumSqDev   func(x []float32, mean float64) float64         // Σ (x - mean)²
	norm       func(dst, x, w []float32, r, one float32)       // dst = x · r · (w + one)
	affine     func(dst, x, w, b []float32, m0, m1, r float32) // dst = (x - m0 - m1) · r · w + b
	top        func(x []float32) float32                       // max x; NaN may be passed over
	exp        func(dst, x []float32, top float32) float64     // dst = exp(x - top), and their sum
	expSum     func(x []float32, top float32) float64          // Σ exp(x - top)
	// rope rotates, in every head of a row, the pairs (i, i+len(cos)), and ropePairs the pairs (2i, 2i+1), by
	// cos[i] and sin[i].
	rope, ropePairs func(x, cos, sin []float32, heads, stride int)
	dots            func(s, q, k []float32, stride int)                // s[j] = Σ_c q[c] · k[j·stride + c]
	weigh           func(o, p, v []float32, stride int, carry float32) // o[c] = o[c]·carry + Σ_j p[j] · v[j·stride + c]

	lanes laneLoops
}

// layerOps fills in the operations around the matrix products.
func (d *Device) layerOps(o *kernels.Ops) {
	l := &layers{d: d, v: vectorLoops(d.isa)}
	o.Gather, o.ScatterAdd = l.gather, l.scatterAdd
	o.AddLowRank = l.addLowRank
	o.RMSNorm, o.LayerNorm = l.rmsNorm, l.layerNorm
	o.RoPE, o.Attention = l.rope, l.attention

	o.Activate = l.activate
	o.Gate = l.gate
	o.Add = l.add
	o.Softcap = l.softcap
	o.Softmax = l.softmax
	o.CrossEntropy = l.crossEntropy
	o.Convert = l.convert
}

// pieceSize is how many elements a piece of element-wise work covers: enough to be worth handing to a thread, and few
// enough to stay in its cache.
const pieceSize = 16 << 10

// must panics when a precondition of an operation does not hold, which is a bug of the caller.
func must(ok bool, msg string) {
	if !ok {
		panic(msg)
	}
}

func sameShape(m, o kernels.Mat) bool { return m.Rows == o.Rows && m.Cols == o.Cols }

// each runs f(i) for i in [0, n), where all calls together touch the given number of elements: on this goroutine if
// that is little, on the device's threads otherwise, several calls to a piece.
func (l *layers) each(n, elements int, f func(i int)) {
	if elements <= 2*pieceSize || n <= 1 {
		for i := range n {
			f(i)
		}
		return
	}

	step := max(1, pieceSize/(elements/n+1))
	l.d.parallel((n+step-1)/step, func(p int) {
		for i := p * step; i < min(n, (p+1)*step); i++ {
			f(i)
		}
	})
}

// pieces runs f(row, lo, hi) for column ranges that together cover a rows×cols matrix; dense says that all operands are
// dense, so that the matrix can be cut like one row.
func (l *layers) pieces(rows, cols int, dense bool, f func(row, lo, hi int)) {
	if rows*cols <= 2*pieceSize {
		for i := range rows {
			f(i, 0, cols)
		}
		return
	}

	if dense {
		rows, cols = 1, rows*cols
	}

	perRow := (cols + pieceSize - 1) / pieceSize
	l.each(rows*perRow, rows*cols, func(i int) {
		lo := i % perRow * pieceSize
		f(i/perRow, lo, min(lo+pieceSize, cols))
	})
}

// span is columns [lo, hi) of row i of an F32 matrix; hi may pass the end of the row when the matrix is dense.
func span(m kernels.Mat, i, lo, hi int) []float32 {
	o := m.Off + i*m.Stride
	return m.Buf.F32()[o+lo : o+hi : o+hi]
}

// span16 is the same for a BF16 or F16 matrix.
func span16(m kernels.Mat, i, lo, hi int) []uint16 {
	o := m.Off + i*m.Stride
	return m.Buf.U16()[o+lo : o+hi : o+hi]
}

// floats lends float32 memory to operations.
var floats = sync.Pool{New: func() any { return new([]float32) }}

// lend returns n elements with arbitrary contents, and their owner to give back to floats.
func lend(n int) ([]float32, *[]float32) {
	p := floats.Get().(*[]float32)
	if cap(*p) < n {
		*p = make([]float32, n)
	}
	return (*p)[:n], p
}

// wide is row i of a weight as float32. The memory is borrowed when the weight is not F32; give owner back if not nil.
func (l *layers) wide(m kernels.Mat, i int) (row []float32, owner *[]float32) {
	if m.DType() == kernels.F32 {
		return m.RowF32(i), nil
	}
	row, owner = lend(m.Cols)
	l.widen(row, m, i)
	return row, owner
}

// widen converts row i of a BF16 or F16 weight.
func (l *layers) widen(dst []float32, m kernels.Mat, i int) {
	if m.DType() == kernels.F16 {
		l.v.widenF16(dst, m.RowU16(i))
		return
	}
	l.v.widenBF16(dst, m.RowU16(i))
}

// giveBack returns borrowed memory; nil is allowed.
func giveBack(owner *[]float32) {
	if owner != nil {
		floats.Put(owner)
	}
}
