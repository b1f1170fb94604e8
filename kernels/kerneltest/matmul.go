package kerneltest

import (
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
)

// product is the common form of the three matrix products: it makes operands for m×n×k and calls the operation.
type product struct {
	left, right func(m, n, k int) (rows, cols int)
	call        func(o *kernels.Ops) func(dst, a, b kernels.Mat, opt kernels.MatMul)
	types       []kernels.DType
	bias        bool
	rounds      bool // Fast may round both factors
}

func matMulNT(r *run) {
	r.products(product{
		left:  func(m, _, k int) (int, int) { return m, k },
		right: func(_, n, k int) (int, int) { return n, k },
		call:  func(o *kernels.Ops) func(dst, a, b kernels.Mat, opt kernels.MatMul) { return o.MatMulNT },
		types: weights, bias: true,
	})
}

func matMulNN(r *run) {
	r.products(product{
		left:  func(m, _, k int) (int, int) { return m, k },
		right: func(_, n, k int) (int, int) { return k, n },
		call:  func(o *kernels.Ops) func(dst, a, b kernels.Mat, opt kernels.MatMul) { return o.MatMulNN },
		types: weights, bias: true,
	})
}

func matMulTN(r *run) {
	r.products(product{
		left:  func(m, _, k int) (int, int) { return k, m },
		right: func(_, n, k int) (int, int) { return k, n },
		call:  func(o *kernels.Ops) func(dst, a, b kernels.Mat, opt kernels.MatMul) { return o.MatMulTN },
		types: []kernels.DType{kernels.F32}, rounds: true,
	})
	r.gram()
}

// gram runs what the Hessian of a layer's inputs is made of: XᵀX of columns in the middle of something wider,
// one matrix being both factors, into a buffer that is used again without clearing, and added up in F64 batch
// by batch with no wait in between. Inputs have a common part and scales that differ by 2¹², as activations do:
// elements are held to the rounding of their own products, so that one plane of a factor, a stale batch or a
// lost one shows (the third plane is 2^-16 of a factor).
func (r *run) gram() {
	const n, batches = 67, 3
	r.begin("Gram matrices of %d batches", batches)
	column := 0
	scaled := func(rng *rand.Rand) float64 {
		column++
		return float64(float32((0.5 + rng.NormFloat64()) * math.Ldexp(1, column%n%13-6)))
	}

	var list []*operand
	for _, k := range []int{40, 300, 7} {
		column = 0
		list = append(list, r.mat(kernels.F32, k, n, scaled))
	}

	sum, product := r.mat(kernels.F64, 1, n*n, func(*rand.Rand) float64 { return 0 }), r.f32(1, n*n)
	r.do(func(o *kernels.Ops, m view) {
		for _, x := range list {
			o.MatMulTN(m(product).Reshape(n, n), m(x), m(x), kernels.MatMul{})
			o.ColSum(m(sum), m(product))
		}
	}, sum, product)

	norms := make([]float64, n)
	for _, x := range list {
		host := wrap(kernels.F32, x.before)
		for i := range x.at.Rows {
			for j := range n {
				v := get(host, x.at.Off+i*x.at.Stride+j)
				norms[j] += v * v
			}
		}
	}

	r.checkEach(sum, func(_, at int) tolerance {
		// A float32 sum of k terms that grows evenly is off by √(k/3)·0.3·2^-23 in the mean square; the largest
		// of 4,489 by four times that.
		return tolerance{abs: 32 * 0x1p-24 * math.Sqrt(norms[at/n]*norms[at%n])}
	})
}

// products runs shapes around the sizes of register tiles, skinny ones and blocks of several cache sizes.
func (r *run) products(p product) {
	sizes := [][3]int{{0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {1, 1, 1}, {70, 130, 600}, {33, 1025, 67}, {130, 96, 256}}
	for i, w := range widths {
		sizes = append(sizes, [3]int{1 + i%18, w, widths[(i*7+3)%len(widths)]}, [3]int{w, 1 + i*5%37, 1 + i*11%70})
	}

	for i, s := range sizes {
		for _, t := range p.types {
			opt := kernels.MatMul{Accumulate: i%3 == 1, Precision: kernels.Precision(i / 2 % 2)}
			r.product(p, s, t, opt, p.bias && i%2 == 0, uniform)
		}
	}

	for _, t := range p.types {
		r.product(p, [3]int{5, 37, 70}, t, kernels.MatMul{}, false, sometimes(0.01, math.NaN()))
		r.product(p, [3]int{19, 37, 70}, t, kernels.MatMul{}, false, sometimes(0.01, math.Inf(1)))
	}

	r.begin("bad shape")
	a := r.f32(3, 5)
	b := r.f32(3, 6)
	dst := r.f32(4, 4)
	r.panics("a product of disagreeing shapes", func(o *kernels.Ops, m view) {
		p.call(o)(m(dst), m(a), m(b),
			kernels.MatMul{})
	})
}

// sometimes fills with v now and then, otherwise uniformly.
func sometimes(p, v float64) fill {
	return func(r *rand.Rand) float64 {
		if r.Float64() < p {
			return v
		}
		return uniform(r)
	}
}

func (r *run) product(p product, s [3]int, t kernels.DType, opt kernels.MatMul, bias bool, f fill) {
	r.tb.Helper()
	m := s[0]
	n := s[1]

	k := s[2]
	r.begin("m=%d n=%d k=%d %s accumulate=%t bias=%t %s", m, n, k, t, opt.Accumulate, bias, opt.Precision)
	ar, ac := p.left(m, n, k)
	br, bc := p.right(m, n, k)
	a := r.mat(kernels.F32, ar, ac, f)
	b := r.mat(t, br, bc, uniform)

	dst := r.f32(m, n)
	var row *operand
	if bias {
		row = r.mat(t, 1, n, uniform)
	}

	r.do(func(o *kernels.Ops, at view) {
		opt := opt
		opt.Bias = at(row)
		p.call(o)(at(dst), at(a), at(b), opt)
	}, dst)

	tol := productTolerance(k, t, opt.Precision)
	if p.rounds && opt.Precision == kernels.Fast { // two roundings of 2^-9 in every product
		tol.abs += 8 * 0x1p-9 * math.Sqrt(float64(k))
	}

	r.check(dst, tol)
}

// productTolerance: a float32 sum of k products of values below 1, taken in order, makes k roundings of partial
// sums that grow like √k; the largest error among many thousand sums is near k·2^-24 (the bound for the worst
// case is k²/4·2^-24). Fast may round an activation to 8 bits where the weight is BF16: k independent errors of
// up to 2^-9.
func productTolerance(k int, t kernels.DType, p kernels.Precision) tolerance {
	tol := tolerance{abs: 2*0x1p-24*float64(k) + 0x1p-22, rel: 0x1p-23}
	if p == kernels.Fast && t == kernels.BF16 {
		tol.abs += 4 * 0x1p-9 * math.Sqrt(float64(k))
	}
	return tol
}
