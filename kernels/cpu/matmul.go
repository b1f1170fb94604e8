package cpu

import "github.com/modelcompress/compress/kernels"

// The products of a model: Y = X·Wᵀ (linear layers), X·W (gradients of inputs) and AᵀB (gradients of weights). X is
// float32 and is one row per token, W is F32, BF16 or F16, sums are float32.
//
// A product takes one of three ways, by the number of rows of X (the tokens):
//
//	up to 16   matmul_skinny.go: generation reads all of W for a few tokens, so memory is the limit. W is read
//	           once, as it lies, four rows at a time; nothing is packed, the sums stay in registers. With AVX2, 8 rows
//	           and more, 4 of 16 bits, go by blocks of k that fit the first-level cache (matmul_few.go), with the same
//	           bits.
//	up to 32   matmul_direct.go: the same with AMX, whose tiles can be loaded from a BF16 W without packing.
//	more       matmul_panels.go: prompts and training are limited by arithmetic. The scheme is Goto and van de
//	           Geijn's ("Anatomy of High-Performance Matrix Multiplication", 2008): both operands are cut into
//	           blocks of the inner size k, packed into panels that the micro-kernel reads front to back
//	           (matmul_pack.go), and the micro-kernel (matmul_kernels.go) keeps one tile of sums in registers
//	           over the whole block.
//
// The kernels themselves are generated assembly (kernels/_gen); portableTile in matmul_portable.go says in Go what a
// micro-kernel computes. The files here decide shapes and order.
//
// Two precisions. Fast rounds X to bfloat16 where W is bfloat16, and both factors of AᵀB, if the processor multiplies
// bfloat16. Exact carries float32 accuracy: with AMX, which only knows bfloat16, a float32 x is cut into three parts
// of 8 bits each, x = x₀ + x₁ + x₂, whose products are exact in float32; of the nine products of two such sums the
// six with i + j ≤ 2 are taken, and what is left out is below 2^-24 of an element's largest.
//
// Invariant: every element of a product is computed by one kernel, in one order of summation over k, and both depend on
// the shapes, the types, the precision and the values alone. Threads and the bounds of pieces do not show in the
// result.

// matmuls are the matrix products of one device.
type matmuls struct {
	d  *Device
	ks kernelSet
}

// matmulOps fills in the matrix products.
func (d *Device) matmulOps(o *kernels.Ops) {
	m := d.matmuls()
	o.MatMulNT = m.nt
	o.MatMulNN = m.nn
	o.MatMulTN = m.tn
}

// matmuls picks the kernels of the products.
func (d *Device) matmuls() *matmuls {
	m := &matmuls{d: d, ks: matmulKernels(d.isa)}
	m.ks.add = vectorLoops(d.isa).add
	return m
}

// nt computes dst[i,j] = Σ_p x[i,p]·w[j,p] (+ bias[j], + dst[i,j]).
func (m *matmuls) nt(dst, x, w kernels.Mat, o kernels.MatMul) {
	checkMatMul(dst, o, x.Rows, w.Rows, x.Cols, w.Cols)
	checkTypes(dst, x, w)

	switch {
	case dst.Len() == 0:
	case x.Cols == 0:
		emptyProduct(dst, o)
	case m.canDirect(x, w) && m.directNT(dst, x, w, o):
	case x.Rows <= skinnyRows:
		m.skinnyNT(dst, x, w, o)
	default:
		m.panels(dst, operand{Mat: x}, operand{Mat: w}, x.Cols, o)
	}

	dst.Buf.Changed()
}

// nn computes dst[i,j] = Σ_p x[i,p]·w[p,j] (+ bias[j], + dst[i,j]).
func (m *matmuls) nn(dst, x, w kernels.Mat, o kernels.MatMul) {
	checkMatMul(dst, o, x.Rows, w.Cols, x.Cols, w.Rows)
	checkTypes(dst, x, w)

	switch {
	case dst.Len() == 0:
	case x.Cols == 0:
		emptyProduct(dst, o)
	case x.Rows <= skinnyRows:
		m.skinnyNN(dst, x, w, o)
	default:
		m.panels(dst, operand{Mat: x}, operand{Mat: w, kMajor: true}, x.Cols, o)
	}

	dst.Buf.Changed()
}

// tn computes dst[i,j] = Σ_p a[p,i]·b[p,j] (+ bias[j], + dst[i,j]).
func (m *matmuls) tn(dst, a, b kernels.Mat, o kernels.MatMul) {
	checkMatMul(dst, o, a.Cols, b.Cols, a.Rows, b.Rows)
	checkTypes(dst, a, b)

	switch {
	case dst.Len() == 0:
	case a.Rows == 0:
		emptyProduct(dst, o)
	default:
		m.panels(dst, operand{Mat: a, kMajor: true}, operand{Mat: b, kMajor: true}, a.Rows, o)
	}

	dst.Buf.Changed()
}

// emptyProduct is a product over an inner size of zero.
func emptyProduct(dst kernels.Mat, o kernels.MatMul) {
	for i := range dst.Rows {
		row := dst.RowF32(i)
		if !o.Accumulate {
			clear(row)
		}
		addBias(row, o.Bias, 0)
	}
}

// addBias adds elements j, j+1, … of a bias, which may be absent, to row.
func addBias(row []float32, bias kernels.Mat, j int) {
	if bias.IsZero() {
		return
	}
	for i := range row {
		row[i] += weightAt(bias, 0, j+i)
	}
}

func weightAt(w kernels.Mat, i, j int) float32 {
	switch w.DType() {
	case kernels.F32:
		return w.RowF32(i)[j]
	case kernels.BF16:
		return kernels.FromBF16(w.RowU16(i)[j])
	}
	return kernels.FromF16(w.RowU16(i)[j])
}

func checkMatMul(dst kernels.Mat, o kernels.MatMul, m, n, kx, kw int) {
	if kx != kw {
		panic("cpu: matrix product of different inner sizes")
	}
	if dst.Rows != m || dst.Cols != n {
		panic("cpu: destination of a matrix product has the wrong shape")
	}
	if o.Bias.IsZero() {
		return
	}
	if o.Bias.Rows != 1 || o.Bias.Cols != n {
		panic("cpu: bias of a matrix product has the wrong shape")
	}

	checkWeight(o.Bias)
}

func checkTypes(dst, x, w kernels.Mat) {
	if dst.DType() != kernels.F32 || x.DType() != kernels.F32 {
		panic("cpu: activations of a matrix product are not F32")
	}
	checkWeight(w)
	checkInside(dst)
	checkInside(x)
}

func checkWeight(w kernels.Mat) {
	if t := w.DType(); t != kernels.F32 && t != kernels.BF16 && t != kernels.F16 {
		panic("cpu: weight is not F32, BF16 or F16")
	}
	checkInside(w)
}

// checkInside guards the kernels, which do not check bounds, against a view that leaves its buffer.
func checkInside(m kernels.Mat) {
	if m.Rows == 0 || m.Cols == 0 {
		return
	}
	if m.Off < 0 || m.Cols < 0 || m.Rows < 0 || m.Rows > 1 && m.Stride < m.Cols ||
		m.Off+(m.Rows-1)*m.Stride+m.Cols > m.Buf.Len {
		panic("cpu: matrix view leaves its buffer")
	}
}
