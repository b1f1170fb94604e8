package kerneltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// quantised is a quantised weight with equal contents on both devices.
type quantised struct {
	format              kernels.QuantFormat
	cols, group         int
	data, scales, zeros *operand
}

// at is the weight on the device that a call runs on.
func (q quantised) at(m view) kernels.Quantised {
	return kernels.Quantised{
		Format: q.format, Cols: q.cols, Group: q.group, Data: m(q.data), Scales: m(q.scales), Zeros: m(q.zeros),
	}
}

// encoding is how a weight is quantised.
type encoding struct {
	format kernels.QuantFormat
	group  int           // of formats whose scales lie beside the codes; 0 is the whole row
	zeros  kernels.DType // the element type of the zeros there; 0 without
}

// String gives the encoding as labels need it.
func (e encoding) String() string {
	if !e.format.Grouped() {
		return e.format.String()
	}
	if e.zeros == 0 {
		return fmt.Sprintf("%s-g%d", e.format, e.group)
	}
	return fmt.Sprintf("%s-g%d-%s", e.format, e.group, e.zeros)
}

// encodings are all formats, and the grouped ones with every kind of zeros and with groups of widths that vectors
// divide and that they don't.
var encodings = []encoding{
	{format: kernels.Q8_0},
	{format: kernels.Q4_0},
	{format: kernels.Q4_1},
	{format: kernels.Q5_0},
	{format: kernels.Q5_1},
	{format: kernels.Q4_K},
	{format: kernels.Q5_K},
	{format: kernels.Q6_K},
	{format: kernels.Int4, group: 32},
	{format: kernels.Int4, group: 128, zeros: kernels.U8},
	{format: kernels.Int4, group: 64, zeros: kernels.F32},
	{format: kernels.Int4, group: 7},
	{format: kernels.Int4},
	{format: kernels.Int8},
	{format: kernels.Int8, group: 128},
	{format: kernels.Int8, group: 32, zeros: kernels.U8},
	{format: kernels.Int8, zeros: kernels.F32},
	{format: kernels.Int8, group: 5, zeros: kernels.U8},
}

// scaleBytes are where the F16 numbers of a block are.
var scaleBytes = map[kernels.QuantFormat][]int{
	kernels.Q8_0: {0}, kernels.Q4_0: {0}, kernels.Q4_1: {0, 2}, kernels.Q5_0: {0}, kernels.Q5_1: {0, 2},
	kernels.Q4_K: {0, 2}, kernels.Q5_K: {0, 2}, kernels.Q6_K: {208},
}

// whole rounds a number of columns up to whole blocks of the format.
func whole(f kernels.QuantFormat, cols int) int {
	elements, _ := f.Block()
	if f.Grouped() {
		return cols
	}
	return (cols + elements - 1) / elements * elements
}

// largest is about the largest value that random codes stand for, with scales of 1.
var largest = map[kernels.QuantFormat]float64{
	kernels.Q8_0: 128, kernels.Q4_0: 8, kernels.Q4_1: 16, kernels.Q5_0: 16, kernels.Q5_1: 32, kernels.Q4_K: 64 * 16,
	kernels.Q5_K: 64 * 32, kernels.Q6_K: 128 * 32, kernels.Int4: 16, kernels.Int8: 256,
}

// fillBlocks writes random bytes to a row of data, and scales of f, divided by the largest code.
func fillBlocks(rng *rand.Rand, format kernels.QuantFormat, row []byte, f fill) {
	for i := range row {
		row[i] = byte(rng.Uint32())
	}

	_, bytes := format.Block()
	for at := 0; at < len(row) && !format.Grouped(); at += bytes {
		for _, o := range scaleBytes[format] {
			v := f(rng) / largest[format]
			if o == 2 && format != kernels.Q4_K && format != kernels.Q5_K { // Q4_1's m, which multiplies nothing
				v = f(rng)
			}
			binary.LittleEndian.PutUint16(row[at+o:], kernels.ToF16(float32(v)))
		}
	}
}

// quantised makes a quantised weight as an operand, of values about as large as those of f.
func (r *run) quantised(e encoding, rows, cols int, f fill) quantised {
	q := quantised{format: e.format, cols: cols}
	q.data = r.mat(kernels.U8, rows, e.format.RowBytes(cols), func(*rand.Rand) float64 { return 0 })
	bytes := wrap(kernels.U8, q.data.before)
	for i := range rows {
		fillBlocks(r.rng, e.format, bytes.U8()[q.data.at.Off+i*q.data.at.Stride:][:q.data.at.Cols], f)
	}
	r.replace(q.data, bytes)

	if !e.format.Grouped() {
		return q
	}

	q.group = e.group
	if q.group == 0 {
		q.group = max(cols, 1)
	}

	groups := (cols + q.group - 1) / q.group
	q.scales = r.mat(kernels.F32, rows, groups, func(g *rand.Rand) float64 { return f(g) / largest[e.format] })
	zero := spread(8)
	switch {
	case e.zeros == kernels.U8 && e.format == kernels.Int4:
		zero = func(g *rand.Rand) float64 { return float64(g.IntN(17)) }
	case e.zeros == kernels.U8:
		zero = func(g *rand.Rand) float64 { return float64(g.IntN(256)) }
	}

	if e.zeros != 0 {
		q.zeros = r.mat(e.zeros, rows, groups, zero)
	}

	return q
}

func expandQuantised(r *run) {
	for i, s := range shapes() {
		for j, e := range encodings {
			if s[1] > 10000 && j%5 != 0 {
				continue
			}

			t := weights[(i+j)%len(weights)]
			cols := whole(e.format, s[1])
			r.begin("%v %s to %s", s, e, t)
			w, dst := r.quantised(e, s[0], cols, special), r.mat(t, s[0], cols, uniform)
			r.do(func(o *kernels.Ops, m view) { o.ExpandQuantised(m(dst), w.at(m)) }, dst)
			r.check(dst, exact)
		}
	}

	r.begin("bad shape")
	w := r.quantised(encoding{format: kernels.Int4, group: 8}, 3, 17, uniform)
	narrow := r.mat(kernels.BF16, 3, 16, uniform)
	other := r.mat(kernels.F64, 3, 17, uniform)
	dst := r.f32(3, 17)
	r.panics("a destination of another shape", func(o *kernels.Ops, m view) { o.ExpandQuantised(m(narrow), w.at(m)) })
	r.panics("a destination of another type", func(o *kernels.Ops, m view) { o.ExpandQuantised(m(other), w.at(m)) })
	w.group = 9
	r.panics("too many groups", func(o *kernels.Ops, m view) { o.ExpandQuantised(m(dst), w.at(m)) })
}

func gatherQuantised(r *run) {
	for i, s := range shapes() {
		e := encodings[i%len(encodings)]
		cols := whole(e.format, s[1])
		r.begin("%v %s", s, e)
		w, dst := r.quantised(e, 9, cols, special), r.f32(s[0], cols)
		ids := make([]int32, s[0])
		for i := range ids {
			ids[i] = int32(r.rng.IntN(9))
		}

		scale := []float32{1, 1.7}[i%2]
		r.do(func(o *kernels.Ops, m view) { o.GatherQuantised(m(dst), w.at(m), ids, scale) }, dst)
		r.check(dst, exact) // one product, rounded once
	}

	r.begin("bad ids")
	w, dst := r.quantised(encodings[0], 4, 64, uniform), r.f32(2, 64)
	for _, ids := range [][]int32{{0, 4}, {-1, 0}, {1}} {
		r.panics(fmt.Sprintf("ids %v of 4 rows", ids), func(o *kernels.Ops, m view) {
			o.GatherQuantised(m(dst), w.at(m), ids, 1)
		})
	}
}

func matMulQuantised(r *run) {
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
		for j, e := range encodings {
			if (i+j)%3 != 1 { // every encoding meets a third of the sizes
				continue
			}
			opt := kernels.MatMul{Accumulate: i%4 == 1, Precision: kernels.Precision((i + j) / 2 % 2)}
			r.quantisedProduct(s, e, opt, (i+j)%2 == 0, uniform, uniform)
		}
	}

	for _, e := range encodings {
		for i, m := range []int{1, 2, 3, 4, 5, 19, 40} {
			opt := kernels.MatMul{Precision: kernels.Precision(i % 2)}
			r.quantisedProduct([3]int{m, 37, 512}, e, opt, false, sometimes(0.002, math.NaN()), uniform)
			r.quantisedProduct([3]int{m, 37, 256}, e, opt, false, sometimes(0.002, math.Inf(1)), uniform)
			r.quantisedProduct([3]int{m, 37, 512}, e, opt, false, uniform, sometimes(0.01, math.NaN()))
			r.quantisedProduct([3]int{m, 21, 512}, e, opt, false, spiky, uniform)
			r.quantisedProduct([3]int{m, 5, 256}, e, opt, false, func(*rand.Rand) float64 { return 0 }, uniform)
		}
	}

	r.begin("bad shape")
	w := r.quantised(encoding{format: kernels.Int8}, 4, 6, uniform)
	x := r.f32(3, 5)
	dst := r.f32(3, 4)
	r.panics("a product of disagreeing shapes", func(o *kernels.Ops, m view) {
		o.MatMulQuantised(m(dst), m(x), w.at(m), kernels.MatMul{})
	})
}

// spiky fills with small values and now and then a large one, as activations are.
func spiky(r *rand.Rand) float64 {
	if r.IntN(100) == 0 {
		return spread(100)(r)
	}
	return uniform(r)
}

// quantisedProduct is one product with x filled by f and the scales by v.
func (r *run) quantisedProduct(s [3]int, e encoding, opt kernels.MatMul, bias bool, f, v fill) {
	r.tb.Helper()
	m := s[0]
	n := s[1]

	k := whole(e.format, s[2])
	r.begin("m=%d n=%d k=%d %s accumulate=%t bias=%t %s", m, n, k, e, opt.Accumulate, bias, opt.Precision)
	x := r.mat(kernels.F32, m, k, f)
	w := r.quantised(e, n, k, v)
	dst := r.f32(m, n)
	var row *operand
	if bias {
		row = r.mat(weights[n%len(weights)], 1, n, uniform)
	}

	r.do(func(o *kernels.Ops, at view) {
		opt := opt
		opt.Bias = at(row)
		o.MatMulQuantised(at(dst), at(x), w.at(at), opt)
	}, dst)

	bounds := r.productBounds(x, w, opt.Precision)
	r.checkEach(dst, func(i, j int) tolerance { return bounds(i, j) })
}

// productBounds gives how far each element of a product may be off: a float32 sum of k products in any order, of parts
// as large as the row's largest element, since codes and what is subtracted from them may be summed apart; and under
// Fast the rounding of activations, scale/2 of each at most, which is worst where all of them have one sign.
func (r *run) productBounds(x *operand, w quantised, p kernels.Precision) func(i, j int) tolerance {
	rows, k := x.at.Rows, x.at.Cols
	wide := kernels.MatOf(kernels.NewHost(kernels.F32, w.data.at.Rows*k), w.data.at.Rows, k)
	host := func(o *operand) kernels.Mat {
		if o == nil {
			return kernels.Mat{}
		}
		m := o.at
		m.Buf = wrap(m.DType(), o.before)
		return m
	}
	ref.New().Ops().ExpandQuantised(wide, w.at(host))

	values := host(x)
	steps := make([]float64, rows*k) // how far an activation may be rounded
	for i := range rows {
		row := values.RowF32(i)
		span := blockOf(w.format, k)
		for lo := 0; lo < k; lo += span {
			peak := 0.0
			for _, v := range row[lo:min(lo+span, k)] {
				peak = max(peak, math.Abs(float64(v)))
			}
			for p := lo; p < min(lo+span, k); p++ {
				steps[i*k+p] = peak / 127 / 2
			}
		}
	}

	return func(i, j int) tolerance {
		peak := 0.0
		total := 0.0
		rounded := 0.0
		for p, v := range wide.RowF32(j) {
			peak = max(peak, math.Abs(float64(v)))
			total += math.Abs(float64(values.RowF32(i)[p]))
			rounded += math.Abs(float64(v)) * steps[i*k+p]
		}

		tol := tolerance{abs: 2*0x1p-24*math.Sqrt(float64(k)+16)*peak*total + 0x1p-22, rel: 0x1p-23}
		if p == kernels.Fast {
			tol.abs += 1.001 * rounded
		}
		return tol
	}
}

// blockOf is how many activations may share a scale.
func blockOf(f kernels.QuantFormat, k int) int {
	switch f {
	case kernels.Int8:
		return max(k, 1)
	case kernels.Q4_K, kernels.Q5_K, kernels.Q6_K:
		return 256
	}
	return 32
}

// quantised is a weight in random codes, about as large as uniform values.
func (b bench) quantised(e encoding, rows, cols int) kernels.Quantised {
	host := kernels.NewHost(kernels.U8, rows*e.format.RowBytes(cols))
	fillBlocks(b.rng, e.format, host.U8(), uniform)
	w := kernels.Quantised{Format: e.format, Cols: cols, Data: b.upload(host, rows, e.format.RowBytes(cols))}
	if e.format.Grouped() {
		w.Group = e.group
		if e.group == 0 {
			w.Group = cols
		}
		w.Scales = b.fill(rows, w.Groups(), 1/largest[e.format])
	}
	return w
}

// benchEncodings are those that have loads: every format, in the groups that files use.
var benchEncodings = []encoding{
	{format: kernels.Q8_0},
	{format: kernels.Q4_0},
	{format: kernels.Q4_1},
	{format: kernels.Q5_0},
	{format: kernels.Q5_1},
	{format: kernels.Q4_K},
	{format: kernels.Q5_K},
	{format: kernels.Q6_K},
	{format: kernels.Int4, group: 128},
	{format: kernels.Int8},
}

// quantisedLoads are a prompt's product and a single row, for every format and precision. The single row's weight is
// larger than caches are.
func quantisedLoads() []workload {
	var list []workload
	for _, e := range benchEncodings {
		for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
			for _, s := range [][3]int{{512, 1536, 1536}, {1, 16384, 4096}} {
				m := s[0]
				n := s[1]
				k := s[2]
				list = append(list, workload{
					name:  fmt.Sprintf("%s-%s-%dx%dx%d", e, p, m, n, k),
					bytes: float64(n*e.format.RowBytes(k) + 4*m*(n+k)), flops: 2 * float64(m*n*k),
					setup: func(b bench) func(o *kernels.Ops) {
						dst := b.f32(m, n)
						x := b.f32(m, k)
						w := b.quantised(e, n, k)
						return func(o *kernels.Ops) { o.MatMulQuantised(dst, x, w, kernels.MatMul{Precision: p}) }
					},
				})
			}
		}
	}

	return list
}

func gatherQuantisedLoads() []workload {
	return quantisedRows(func(b bench, w kernels.Quantised, dst kernels.Mat) func(o *kernels.Ops) {
		ids := make([]int32, 1024)
		for i := range ids {
			ids[i] = int32(b.rng.IntN(1024))
		}
		return func(o *kernels.Ops) { o.GatherQuantised(dst, w, ids, 1) }
	})
}

func expandQuantisedLoads() []workload {
	return quantisedRows(func(_ bench, w kernels.Quantised, dst kernels.Mat) func(o *kernels.Ops) {
		return func(o *kernels.Ops) { o.ExpandQuantised(dst, w) }
	})
}

// quantisedRows are loads that read a weight of every format and write as many numbers.
func quantisedRows(call func(b bench, w kernels.Quantised, dst kernels.Mat) func(o *kernels.Ops)) []workload {
	var list []workload
	for _, e := range benchEncodings {
		list = append(list, workload{
			name: e.String(), bytes: float64(1024*e.format.RowBytes(1024) + 4<<20),
			setup: func(b bench) func(o *kernels.Ops) {
				return call(b, b.quantised(e, 1024, 1024), b.f32(1024, 1024))
			},
		})
	}
	return list
}
