package kerneltest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
)

// sparse is a sparse weight with equal contents on both devices.
type sparse struct {
	cols                  int
	mask, values, offsets *operand
}

// at is the weight on the device that a call runs on.
func (s sparse) at(m view) kernels.Sparse {
	return kernels.Sparse{Cols: s.cols, Mask: m(s.mask), Values: m(s.values), Offsets: m(s.offsets)}
}

// stored says which elements of a row are stored.
type stored func(g *rand.Rand, row, col int) bool

// share stores that share of the elements.
func share(p float64) stored {
	return func(g *rand.Rand, _, _ int) bool { return g.Float64() < p }
}

// storedCases are masks of every kind: random ones, rows without and with all elements, and two in every four.
var storedCases = []struct {
	name string
	f    stored
}{
	{"half", share(0.5)},
	{"few", share(0.05)},
	{"most", share(0.9)},
	{"rows", func(_ *rand.Rand, row, _ int) bool { return row%3 != 1 }},
	{"none", share(0)},
	{"all", share(1)},
	{"2:4", func(_ *rand.Rand, row, col int) bool { return (col+row/2)%4 < 2 }},
}

// sparse makes a sparse weight as an operand: a view of some rows of a larger one, so that offsets do not start
// at zero, with gaps between the rows of the mask, and values that end with the last one.
func (r *run) sparse(t kernels.DType, rows, cols int, f stored, v fill) sparse {
	before := r.rng.IntN(3) * 7
	mask := r.mat(kernels.U8, rows, (cols+7)/8, func(*rand.Rand) float64 { return 0 })

	bytes := wrap(kernels.U8, mask.before)
	offsets := wrap(kernels.I64, make([]byte, 8*(rows+2)))
	count := before
	for i := range rows {
		offsets.I64()[1+i] = int64(count)
		row := bytes.U8()[mask.at.Off+i*mask.at.Stride:]
		for j := range cols {
			if f(r.rng, i, j) {
				row[j/8] |= 1 << (j % 8)
				count++
			}
		}
	}

	r.replace(mask, bytes)
	values := wrap(t, make([]byte, count*t.Size()))
	for i := range count {
		set(values, i, v(r.rng))
	}

	return sparse{
		cols: cols, mask: mask,
		values:  r.place(kernels.Mat{Buf: values, Rows: 1, Cols: count, Stride: count}),
		offsets: r.place(kernels.Mat{Buf: offsets, Off: 1, Rows: 1, Cols: rows, Stride: rows}),
	}
}

func expand(r *run) {
	for i, s := range shapes() {
		for j, c := range storedCases {
			t := weights[(i+j)%len(weights)]
			r.begin("%v %s %s", s, t, c.name)
			w, dst := r.sparse(t, s[0], s[1], c.f, special), r.mat(t, s[0], s[1], uniform)
			r.do(func(o *kernels.Ops, m view) { o.Expand(m(dst), w.at(m)) }, dst)
			r.check(dst, exact)
		}
	}

	r.begin("bad shape")
	w := r.sparse(kernels.BF16, 3, 17, share(0.5), uniform)
	narrow, other := r.mat(kernels.BF16, 3, 16, uniform), r.f32(3, 17)
	r.panics("a destination of another shape", func(o *kernels.Ops, m view) { o.Expand(m(narrow), w.at(m)) })
	r.panics("a destination of another type", func(o *kernels.Ops, m view) { o.Expand(m(other), w.at(m)) })

	dst := r.mat(kernels.BF16, 3, 25, uniform)
	w.cols = 25
	r.panics("a mask too narrow", func(o *kernels.Ops, m view) { o.Expand(m(dst), w.at(m)) })
}

// special fills with ordinary values and now and then a zero of either sign, a NaN or an infinity.
func special(r *rand.Rand) float64 {
	if r.IntN(10) > 0 {
		return uniform(r)
	}
	return []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1)}[r.IntN(5)]
}

func matMulSparse(r *run) {
	sizes := [][3]int{
		{0, 3, 4},
		{3, 0, 4},
		{3, 4, 0},
		{1, 1, 1},
		{70, 130, 600},
		{33, 1025, 67},
		{130, 96, 256},
		{1, 300, 1031},
		{4, 131, 2080},
		{9, 70, 1056},
	}
	for i, w := range widths {
		sizes = append(sizes, [3]int{1 + i%18, w, widths[(i*7+3)%len(widths)]}, [3]int{w, 1 + i*5%37, 1 + i*11%70},
			[3]int{1 + i%5, 1 + i, w})
	}

	for i, s := range sizes {
		for j, t := range weights {
			opt := kernels.MatMul{Accumulate: i%3 == 1, Precision: kernels.Precision(i / 2 % 2)}
			r.sparseProduct(s, t, opt, i%2 == 0, storedCases[(i+j)%len(storedCases)].f, uniform, uniform)
		}
	}

	for _, t := range weights {
		for _, m := range []int{1, 2, 3, 4, 5, 19, 40} {
			r.sparseProduct([3]int{m, 37, 96}, t, kernels.MatMul{}, false, share(0.5), sometimes(0.01, math.NaN()),
				uniform)
			r.sparseProduct([3]int{m, 37, 70}, t, kernels.MatMul{}, false, share(0.5), uniform,
				sometimes(0.01, math.Inf(1)))
		}
	}

	r.begin("bad shape")
	w := r.sparse(kernels.F32, 4, 6, share(0.5), uniform)
	x := r.f32(3, 5)
	dst := r.f32(3, 4)
	r.panics("a product of disagreeing shapes", func(o *kernels.Ops, m view) {
		o.MatMulSparse(m(dst), m(x), w.at(m),
			kernels.MatMul{})
	})
}

// sparseProduct is one product with x filled by f and the stored elements by v.
func (r *run) sparseProduct(s [3]int, t kernels.DType, opt kernels.MatMul, bias bool, is stored, f, v fill) {
	r.tb.Helper()
	m := s[0]
	n := s[1]

	k := s[2]
	r.begin("m=%d n=%d k=%d %s accumulate=%t bias=%t %s", m, n, k, t, opt.Accumulate, bias, opt.Precision)
	x := r.mat(kernels.F32, m, k, f)
	w := r.sparse(t, n, k, is, v)
	dst := r.f32(m, n)
	var row *operand
	if bias {
		row = r.mat(t, 1, n, uniform)
	}

	r.do(func(o *kernels.Ops, at view) {
		opt := opt
		opt.Bias = at(row)
		o.MatMulSparse(at(dst), at(x), w.at(at), opt)
	}, dst)

	r.check(dst, productTolerance(k, t, opt.Precision))
}

// sparse is a weight of which a share is stored, and its size in bytes.
func (b bench) sparse(t kernels.DType, rows, cols int, share float64) kernels.Sparse {
	width := (cols + 7) / 8
	mask, offsets := kernels.NewHost(kernels.U8, rows*width), kernels.NewHost(kernels.I64, rows)
	n := 0
	for i := range rows {
		offsets.I64()[i] = int64(n)

		for j := range cols {
			if b.rng.Float64() < share {
				mask.U8()[i*width+j/8] |= 1 << (j % 8)
				n++
			}
		}
	}

	return kernels.Sparse{
		Cols: cols, Mask: b.upload(mask, rows, width), Values: b.mat(t, 1, n),
		Offsets: b.upload(offsets, 1, rows),
	}
}

// sparseBytes is the size of a sparse weight about.
func sparseBytes(t kernels.DType, rows, cols int, share float64) float64 {
	return float64(rows*cols) * (share*float64(t.Size()) + 1.0/8)
}

// sparseLoads are a prompt's product and a single row with two fifths of the weight stored, for every type.
func sparseLoads() []workload {
	var list []workload
	for _, t := range weights {
		for _, s := range [][3]int{{256, 512, 512}, {1, 2048, 2048}} {
			m := s[0]
			n := s[1]
			k := s[2]
			list = append(list, workload{
				name:  fmt.Sprintf("%s-%dx%dx%d", t, m, n, k),
				bytes: sparseBytes(t, n, k, 0.4) + float64(4*m*(n+k)), flops: 2 * float64(m*n*k),
				setup: func(b bench) func(o *kernels.Ops) {
					dst := b.f32(m, n)
					x := b.f32(m, k)
					w := b.sparse(t, n, k, 0.4)
					return func(o *kernels.Ops) { o.MatMulSparse(dst, x, w, kernels.MatMul{}) }
				},
			})
		}
	}

	return list
}

func expandLoads() []workload {
	var list []workload
	for _, t := range weights {
		list = append(list, workload{
			name: t.String(), bytes: sparseBytes(t, 1024, 1024, 0.4) + float64(t.Size()<<20),
			setup: func(b bench) func(o *kernels.Ops) {
				dst, w := b.mat(t, 1024, 1024), b.sparse(t, 1024, 1024, 0.4)
				return func(o *kernels.Ops) { o.Expand(dst, w) }
			},
		})
	}

	return list
}
