//go:build linux && (amd64 || arm64)

package cuda

import "github.com/modelcompress/compress/kernels"

// packArgs mirrors PackArgs of matmul.cu.
type packArgs struct {
	x                              mat
	d                              uintptr
	plane, width                   int
	t, planes, transposed, rounded int32
}

// gemmArgs mirrors GemmArgs of matmul.cu.
type gemmArgs struct {
	d                                mat
	a, b, bias                       uintptr
	pairs                            uint64
	planeA, planeB, strideA, strideB int
	k, count, biasType, add          int32
}

// fewArgs mirrors FewArgs of matmul.cu.
type fewArgs struct {
	d, x, w               mat
	bias                  uintptr
	biasType, add, k, vec int32
}

// factor is one factor of a product: a matrix with the summed index along its rows, or along its columns if transposed.
type factor struct {
	view
	transposed bool
	planes     int  // of bfloat16
	rounded    bool // to one plane
}

// outer and inner are the lengths of the kept and of the summed index.
func (f factor) outer() int {
	if f.transposed {
		return f.cols
	}
	return f.rows
}

func (f factor) inner() int {
	if f.transposed {
		return f.rows
	}
	return f.cols
}

// part views indices [lo, hi) of the kept index.
func (f factor) part(lo, hi int) factor {
	if f.transposed {
		f.view = f.colRange(lo, hi)
	} else {
		f.view = f.rowRange(lo, hi)
	}
	return f
}

// direct reports whether the tensor cores can read the factor as it is.
func (f factor) direct() bool {
	return f.t == kernels.BF16 && !f.transposed && f.aligned() && f.stride%8 == 0 && f.cols%8 == 0
}

// planesOf is how many bfloat16 numbers an element is the sum of.
func planesOf(t kernels.DType) int {
	switch t {
	case kernels.BF16:
		return 1
	case kernels.F16:
		return 2
	}
	return 3
}

// packed is a factor as planes.
type packed struct {
	p             uintptr
	plane, stride int
	own           bool // in scratch memory
}

// budget is the most scratch memory for the planes of one factor: less on a device that is small.
func (d *Device) budget() int { return min(256<<20, int(d.memory.total/16)) }

// batch is how many of n kept indices are packed at once, into so much memory.
func (f factor) batch(budget int) int {
	if f.direct() {
		return f.outer()
	}
	rows := max(budget/(2*f.planes*(f.inner()+8))/128*128, 128)
	return min(f.outer(), rows)
}

// pack writes the planes of a factor.
func (d *Device) pack(f factor) packed {
	if f.direct() {
		return packed{p: f.p, stride: f.stride}
	}

	n, width := f.outer(), (f.inner()+7)/8*8
	p := packed{p: d.scratch(2 * f.planes * n * width), plane: n * width, stride: width, own: true}

	args := packArgs{f.mat(), p.p, p.plane, width, int32(f.t), int32(f.planes), flag(f.transposed), flag(f.rounded)}
	if f.transposed {
		launch(d, "matmul.pack_transposed", grid{x: (n + 31) / 32, y: min((width+31)/32, maxY), threads: 256}, &args)
	} else {
		launch(d, "matmul.pack", plane(n, width, 512), &args)
	}

	return p
}

func (d *Device) unpack(p packed) {
	if p.own {
		d.drop(p.p)
	}
}

// pairs lists the planes whose products are summed, those with the smallest products first: all whose numbers add up to
// less than three. What is left out is below 2^-24 of the product.
func pairs(a, b int) (list uint64, count int32) {
	for sum := min(a+b-2, 2); sum >= 0; sum-- {
		for i := min(sum, a-1); i >= 0; i-- {
			if j := sum - i; j < b {
				list |= uint64(i|j<<2) << (4 * count)
				count++
			}
		}
	}
	return list, count
}

// product computes dst[m,n] = Σ a[m,·]·b[n,·], with bias and old contents as the options say. A bias is given
// by its view.
func (d *Device) product(dst view, a, b factor, bias view, add bool) {
	list, count := pairs(a.planes, b.planes)
	// Packed parts of both fit into the scratch memory together, so the sizes of the factors are no limit.
	for lo := 0; lo < b.outer(); {
		hi := min(lo+b.batch(d.budget()), b.outer())
		pb := d.pack(b.part(lo, hi))
		for top := 0; top < a.outer(); {
			end := min(top+a.batch(d.budget()), a.outer())
			pa := d.pack(a.part(top, end))
			args := gemmArgs{
				d: dst.rowRange(top, end).colRange(lo, hi).mat(), a: pa.p, b: pb.p, pairs: list, count: count,
				planeA: pa.plane, planeB: pb.plane,
				strideA: pa.stride, strideB: pb.stride, k: int32((a.inner() + 7) / 8 * 8), add: flag(add),
			}

			if bias.p != 0 {
				args.bias, args.biasType = bias.colRange(lo, hi).p, int32(bias.t)
			}

			d.multiply(args)
			d.unpack(pa)
			top = end
		}

		d.unpack(pb)
		lo = hi
	}
}

// multiply multiplies packed factors: with cuBLASLt, or with our own tensor-core kernel.
func (d *Device) multiply(args gemmArgs) {
	if d.vendor(args) {
		return
	}

	g := grid{x: (int(args.d.cols) + 127) / 128, y: (int(args.d.rows) + 127) / 128, threads: 256}
	for g.y > maxY { // rows beyond the grid in further launches
		part := args
		part.d.rows = maxY * 128
		launch(d, "matmul.gemm", grid{x: g.x, y: maxY, threads: 256}, &part)
		args.d.p += uintptr(maxY * 128 * args.d.stride * 4)
		args.a += uintptr(maxY * 128 * args.strideA * 2)
		args.d.rows -= maxY * 128
		g.y -= maxY
	}

	launch(d, "matmul.gemm", g, &args)
}

// fewRows is the most rows of x for which the weight is read once for every four of them instead of being packed.
const fewRows = 8

// few computes a product with few rows in x, straight from a weight w: [n,k], or [k,n] if nn.
func (d *Device) few(dst, x, w view, nn bool, bias view, add bool) {
	for lo := 0; lo < x.rows; lo += 4 {
		hi := min(lo+4, x.rows)
		part := x.rowRange(lo, hi)
		args := fewArgs{
			d: dst.rowRange(lo, hi).mat(), x: part.mat(), w: w.mat(), bias: bias.p, biasType: int32(bias.t),
			add: flag(add), k: int32(x.cols),
			vec: flag(x.cols%8 == 0 && part.aligned() && w.aligned()),
		}

		if nn {
			launch(d, "matmul.few_nn_"+typeName(w.t), grid{x: (dst.cols + 31) / 32, y: 1, threads: 256}, &args)
		} else {
			launch(d, "matmul.few_nt_"+typeName(w.t), grid{x: (dst.cols + 7) / 8, y: 1, threads: 256}, &args)
		}
	}
}

// weighted computes x·wᵀ, or x·w if nn, in the cheapest way.
func (d *Device) weighted(dst, x, w view, nn bool, bias view, o kernels.MatMul) {
	switch {
	case x.cols == 0:
		args := fewArgs{d: dst.mat(), bias: bias.p, biasType: int32(bias.t), add: flag(o.Accumulate)}
		launch(d, "matmul.no_product", plane(dst.rows, dst.cols, 256), &args)
	case x.rows <= fewRows:
		d.few(dst, x, w, nn, bias, o.Accumulate)
	default:
		a := factor{view: x, planes: 3}
		if o.Precision == kernels.Fast && w.t == kernels.BF16 {
			a.planes, a.rounded = 1, true
		}
		d.product(dst, a, factor{view: w, transposed: nn, planes: planesOf(w.t)}, bias, o.Accumulate)
	}
}

// checkBias checks a bias.
func checkBias(dst kernels.Mat, o kernels.MatMul) {
	need(o.Bias.IsZero() || (o.Bias.Rows == 1 && o.Bias.Cols == dst.Cols),
		"cuda: MatMul: bias is not one row of dst's width")
}

func (d *Device) matMulNT(dst, x, w kernels.Mat, o kernels.MatMul) {
	need(x.Rows == dst.Rows && w.Rows == dst.Cols && x.Cols == w.Cols, "cuda: MatMulNT: shapes do not agree")
	checkBias(dst, o)
	if dst.Len() == 0 {
		return
	}
	d.operate("MatMulNT", func() { d.weighted(d.of(dst), d.of(x), d.of(w), false, d.of(o.Bias), o) },
		[]kernels.Mat{dst}, x, w, o.Bias)
	changed(dst)
}

func (d *Device) matMulNN(dst, x, w kernels.Mat, o kernels.MatMul) {
	need(x.Rows == dst.Rows && w.Cols == dst.Cols && x.Cols == w.Rows, "cuda: MatMulNN: shapes do not agree")
	checkBias(dst, o)
	if dst.Len() == 0 {
		return
	}
	d.operate("MatMulNN", func() { d.weighted(d.of(dst), d.of(x), d.of(w), true, d.of(o.Bias), o) }, []kernels.Mat{dst},
		x, w, o.Bias)
	changed(dst)
}

// addLowRank multiplies rows that follow each other with the same factors together.
func (d *Device) addLowRank(dst, x kernels.Mat, pairs []kernels.LowRank) {
	need(dst.Rows == x.Rows && len(pairs) == x.Rows, "cuda: AddLowRank: shapes do not agree")
	most := 0
	for _, p := range pairs {
		if !p.A.IsZero() {
			need(p.A.Rows == p.B.Rows && p.A.Cols == x.Cols && p.B.Cols == dst.Cols,
				"cuda: AddLowRank: shapes do not agree")
			most = max(most, p.A.Rows)
		}
	}
	if most == 0 || dst.Len() == 0 {
		changed(dst)
		return
	}

	buf, err := d.Alloc(kernels.F32, most*x.Rows)
	if err != nil {
		d.operate("AddLowRank", func() { d.fail(err) }, nil)
		return
	}
	defer buf.Free()

	for lo := 0; lo < len(pairs); {
		hi := lo + 1
		for hi < len(pairs) && pairs[hi] == pairs[lo] {
			hi++
		}
		if p := pairs[lo]; !p.A.IsZero() {
			t := kernels.MatOf(buf, hi-lo, p.A.Rows)
			d.matMulNT(t, x.RowRange(lo, hi), p.A, kernels.MatMul{})
			d.matMulNN(dst.RowRange(lo, hi), t, p.B, kernels.MatMul{Accumulate: true})
		}
		lo = hi
	}
}

func (d *Device) matMulTN(dst, a, b kernels.Mat, o kernels.MatMul) {
	need(a.Cols == dst.Rows && b.Cols == dst.Cols && a.Rows == b.Rows, "cuda: MatMulTN: shapes do not agree")
	checkBias(dst, o)
	if dst.Len() == 0 {
		return
	}

	d.operate("MatMulTN", func() {
		bias := d.of(o.Bias)
		// A sum of nothing is zero, but bias and old contents still count.
		if a.Rows == 0 {
			d.weighted(d.of(dst), view{}, view{}, false, bias, o)
			return
		}

		// Along rows both factors are stored the wrong way round for the product's kernel, which packing corrects.
		x, y := factor{view: d.of(a), transposed: true, planes: 3}, factor{view: d.of(b), transposed: true, planes: 3}
		if o.Precision == kernels.Fast {
			x.planes = 1
			x.rounded = true
			y.planes = 1
			y.rounded = true
		}

		d.product(d.of(dst), x, y, bias, o.Accumulate)
	}, []kernels.Mat{dst}, a, b, o.Bias)

	changed(dst)
}

// expandArgs mirrors ExpandArgs of sparse.cu.
type expandArgs struct {
	d, mask         mat
	values, offsets uintptr
	size, _         int32
}

// dense writes rows [lo, lo+dst.rows) of a sparse weight.
func (d *Device) dense(dst view, w kernels.Sparse, lo int) {
	mask := d.of(w.Mask)
	args := expandArgs{
		d: dst.mat(), mask: mask.rowRange(lo, lo+dst.rows).mat(), values: d.of(w.Values).p,
		offsets: d.of(w.Offsets).p + uintptr(8*lo),
		size:    int32(dst.t.Size()),
	}
	launch(d, "sparse.expand", lines(dst.rows), &args)
}

func (d *Device) expand(dst kernels.Mat, w kernels.Sparse) {
	need(w.Consistent(), "cuda: Expand: parts of the sparse weight do not fit together")
	need(dst.Rows == w.Rows() && dst.Cols == w.Cols && dst.DType() == w.DType(),
		"cuda: Expand: destination has another shape or type")
	if dst.Len() == 0 {
		return
	}
	d.operate("Expand", func() { d.dense(d.of(dst), w, 0) }, []kernels.Mat{dst}, w.Mask, w.Values, w.Offsets)
	changed(dst)
}

// matMulSparse expands as many rows of the weight as the scratch memory holds, and multiplies: what crosses the
// memory bus twice is a part that stays in the cache.
func (d *Device) matMulSparse(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	need(w.Consistent(), "cuda: MatMulSparse: parts of the sparse weight do not fit together")
	need(x.Rows == dst.Rows && w.Rows() == dst.Cols && x.Cols == w.Cols, "cuda: MatMulSparse: shapes do not agree")
	checkBias(dst, o)
	if dst.Len() == 0 {
		return
	}

	d.operate("MatMulSparse", func() {
		p := panels{rows: w.Rows(), cols: w.Cols, t: w.DType(), write: func(part view, lo int) { d.dense(part, w, lo) }}
		d.byPanels(d.of(dst), d.of(x), p, d.of(o.Bias), o)
	}, []kernels.Mat{dst}, x, w.Mask, w.Values, w.Offsets, o.Bias)

	changed(dst)
}

// panels is a weight that is written some rows at a time: rows [lo, lo+part.rows).
type panels struct {
	rows, cols int
	t          kernels.DType
	write      func(part view, lo int)
	rough      bool // x is rounded to one plane, and the weight cut to two, which is nothing beside that
}

// byPanels computes x·wᵀ for a weight that is written to scratch memory some rows at a time.
func (d *Device) byPanels(out, left view, p panels, bias view, o kernels.MatMul) {
	size := p.t.Size()
	stride := (p.cols + 7) / 8 * 8
	// Whole tiles of 128 rows, within what stays in the cache.
	batch := min(max(min(expandBudget, d.budget())/(stride*size+1)/128*128, 128), p.rows)
	room := d.scratch(batch * stride * size)
	for lo := 0; lo < p.rows; lo += batch {
		hi := min(lo+batch, p.rows)
		part := view{room, stride, hi - lo, p.cols, p.t}
		if p.cols > 0 {
			p.write(part, lo)
		}

		b := bias
		if b.p != 0 {
			b = b.colRange(lo, hi)
		}

		if p.rough && p.cols > 0 {
			x := factor{view: left, planes: 1, rounded: true}
			d.product(out.colRange(lo, hi), x, factor{view: part, planes: 2}, b, o.Accumulate)
		} else {
			d.weighted(out.colRange(lo, hi), left, part, false, b, o)
		}
	}

	d.drop(room)
}

// expandBudget is the scratch memory for the expanded rows of a sparse weight: a part of the cache of a large device.
const expandBudget = 24 << 20
