//go:build linux && (amd64 || arm64)

package cuda

import "github.com/modelcompress/compress/kernels"

// mapArgs mirrors MapArgs of map.cu.
type mapArgs struct {
	d, e, a, b, c mat
	scale         float32
	vec           int32
}

// mapping runs an element-wise kernel: results d and e (or none), operands a, b, c (or none).
func (d *Device) mapping(op, kernel string, scale float32, dst, dst2, a, b, c kernels.Mat) {
	if dst.Len() == 0 {
		return
	}

	d.operate(op, func() {
		v := [5]view{d.of(dst), d.of(dst2), d.of(a), d.of(b), d.of(c)}
		flat(&v[0], &v[1], &v[2], &v[3], &v[4])
		vec := v[0].cols%4 == 0
		for _, m := range v {
			vec = vec && (m.p == 0 || m.aligned())
		}

		per := 1024
		if vec {
			per = 4096
		}

		args := mapArgs{v[0].mat(), v[1].mat(), v[2].mat(), v[3].mat(), v[4].mat(), scale, flag(vec)}
		launch(d, "map."+kernel, plane(v[0].rows, v[0].cols, per), &args)
	}, []kernels.Mat{dst, dst2}, a, b, c)

	changed(dst, dst2)
}

var activations = [...]string{
	kernels.SiLU: "silu", kernels.GELU: "gelu", kernels.GELUTanh: "gelutanh",
	kernels.ReLU: "relu",
}

// activation is the name of a function in the names of kernels.
func activation(f kernels.Activation) string {
	need(int(f) < len(activations) && activations[f] != "", "cuda: unknown activation")
	return activations[f]
}

func (d *Device) activate(dst, x kernels.Mat, f kernels.Activation) {
	need(same(dst, x), "cuda: Activate: shapes do not agree")
	d.mapping("Activate", "activate_"+activation(f), 0, dst, kernels.Mat{}, x, kernels.Mat{}, kernels.Mat{})
}

func (d *Device) gate(dst, gate, up kernels.Mat, f kernels.Activation) {
	need(same(dst, gate, up), "cuda: Gate: shapes do not agree")
	d.mapping("Gate", "gate_"+activation(f), 0, dst, kernels.Mat{}, gate, up, kernels.Mat{})
}

func (d *Device) add(dst, a, b kernels.Mat, scale float32) {
	need(same(dst, a, b), "cuda: Add: shapes do not agree")
	d.mapping("Add", "add", scale, dst, kernels.Mat{}, a, b, kernels.Mat{})
}

func (d *Device) softcap(dst, x kernels.Mat, limit float32) {
	need(same(dst, x), "cuda: Softcap: shapes do not agree")
	need(limit != 0, "cuda: Softcap: cap is 0")
	d.mapping("Softcap", "softcap", limit, dst, kernels.Mat{}, x, kernels.Mat{}, kernels.Mat{})
}

func (d *Device) activateBackward(dx, dy, x kernels.Mat, f kernels.Activation) {
	need(same(dx, dy, x), "cuda: ActivateBackward: shapes do not agree")
	d.mapping("ActivateBackward", "activate_back_"+activation(f), 0, dx, kernels.Mat{}, dy, x, kernels.Mat{})
}

func (d *Device) gateBackward(dgate, dup, dy, gate, up kernels.Mat, f kernels.Activation) {
	need(same(dgate, dup, dy, gate, up), "cuda: GateBackward: shapes do not agree")
	d.mapping("GateBackward", "gate_back_"+activation(f), 0, dgate, dup, dy, gate, up)
}

func (d *Device) softcapBackward(dx, dy, y kernels.Mat, limit float32) {
	need(same(dx, dy, y), "cuda: SoftcapBackward: shapes do not agree")
	need(limit != 0, "cuda: SoftcapBackward: cap is 0")
	d.mapping("SoftcapBackward", "softcap_back", limit, dx, kernels.Mat{}, dy, y, kernels.Mat{})
}

func (d *Device) addSquare(acc, x kernels.Mat, scale float32) {
	need(same(acc, x), "cuda: AddSquare: shapes do not agree")
	d.mapping("AddSquare", "add_square", scale, acc, kernels.Mat{}, acc, x, kernels.Mat{})
}

// pairArgs mirrors PairArgs of map.cu.
type pairArgs struct{ d, x mat }

func (d *Device) pair(op, kernel string, dst, x kernels.Mat) {
	if dst.Len() == 0 {
		return
	}
	d.operate(op, func() {
		a, b := d.of(dst), d.of(x)
		flat(&a, &b)
		launch(d, "map."+kernel, plane(a.rows, a.cols, 1024), &pairArgs{a.mat(), b.mat()})
	}, []kernels.Mat{dst}, x)
	changed(dst)
}

func (d *Device) convert(dst, x kernels.Mat) {
	need(same(dst, x), "cuda: Convert: shapes do not agree")
	need(dst.DType().IsFloat() && x.DType().IsFloat(), "cuda: Convert: element type is not a floating-point type")
	d.pair("Convert", "convert_"+typeName(dst.DType())+"_"+typeName(x.DType()), dst, x)
}

func (d *Device) applyMask(w, mask kernels.Mat) {
	need(same(w, mask), "cuda: ApplyMask: shapes do not agree")
	d.pair("ApplyMask", "apply_mask_"+typeName(w.DType()), w, mask)
}

// countArgs mirrors CountArgs of map.cu.
type countArgs struct {
	x   mat
	out uintptr
}

// count runs a kernel that changes a number, and returns the number. After a failure it is start.
func (d *Device) count(op, kernel string, x kernels.Mat, start uint64) uint64 {
	if x.Len() == 0 {
		return start
	}

	result := make([]uint64, 1)
	result[0] = start
	d.operate(op, func() {
		v := d.of(x)
		flat(&v)
		out := sent(d, result)
		launch(d, "map."+kernel, plane(min(v.rows, 4096), v.cols, 4096), &countArgs{v.mat(), out})
		if d.err == nil && d.lost == nil {
			d.fail(d.small.receive(d, bytesOf(result), out))
		}
		d.drop(out)
	}, nil, x)

	return result[0]
}

func (d *Device) nonFinite(x kernels.Mat) int {
	return int(int64(d.count("NonFinite", "non_finite_"+typeName(x.DType()), x, 1<<64-1)))
}

func (d *Device) countZero(x kernels.Mat) int {
	return int(d.count("CountZero", "count_zero_"+typeName(x.DType()), x, 0))
}

// rowsArgs mirrors RowsArgs of map.cu.
type rowsArgs struct {
	d, x        mat
	ids, scales uintptr
	scale       float32
	t           int32
}

// inside reports whether all ids are rows of m.
func inside(ids []int32, m kernels.Mat) bool {
	for _, id := range ids {
		if id < 0 || int(id) >= m.Rows {
			return false
		}
	}
	return true
}

func (d *Device) gather(dst, src kernels.Mat, ids []int32, scale float32) {
	need(dst.Rows == len(ids) && dst.Cols == src.Cols, "cuda: Gather: shapes do not agree")
	need(inside(ids, src), "cuda: Gather: row id outside src")
	if dst.Len() == 0 {
		return
	}

	d.operate("Gather", func() {
		list := d.ints(ids)
		args := rowsArgs{d: d.of(dst).mat(), x: d.of(src).mat(), ids: list, scale: scale, t: int32(src.DType())}
		launch(d, "map.gather", plane(dst.Rows, dst.Cols, 512), &args)
		d.drop(list)
	}, []kernels.Mat{dst}, src)

	changed(dst)
}

func (d *Device) scatterAdd(dst, src kernels.Mat, ids []int32, scale []float32) {
	need(src.Rows == len(ids) && len(scale) == len(ids) && dst.Cols == src.Cols,
		"cuda: ScatterAdd: shapes do not agree")
	need(inside(ids, dst), "cuda: ScatterAdd: row id outside dst")

	if src.Len() == 0 {
		changed(dst)
		return
	}

	d.operate("ScatterAdd", func() {
		list, factors := d.ints(ids), d.floats(scale)
		launch(d, "map.scatter_add", plane(src.Rows, src.Cols, 512),
			&rowsArgs{d: d.of(dst).mat(), x: d.of(src).mat(), ids: list, scales: factors})
		d.drop(list)
		d.drop(factors)
	}, []kernels.Mat{dst}, src)

	changed(dst)
}

// groupArgs mirrors GroupArgs of map.cu.
type groupArgs struct {
	d, x                   mat
	targets, starts, order uintptr
	groups                 int32
	scale                  float32
}

// groups lists the distinct ids in the order in which they come first, where the rows of each start, and the
// rows of one id after those of another, in their order.
func groups(ids []int32) (targets, starts, order []int32) {
	index, size := map[int32]int32{}, []int32{}
	for _, id := range ids {
		g, ok := index[id]
		if !ok {
			g = int32(len(targets))
			index[id] = g
			targets, size = append(targets, id), append(size, 0)
		}
		size[g]++
	}

	starts = make([]int32, len(size)+1)
	for g, n := range size {
		starts[g+1] = starts[g] + n
	}

	// Grouped by target, one thread adds up each element: no atomics, and the same order in every run.
	at := append([]int32(nil), starts...)
	order = make([]int32, len(ids))
	for i, id := range ids {
		g := index[id]
		order[at[g]] = int32(i)
		at[g]++
	}

	return targets, starts, order
}

func (d *Device) gatherBackward(dtable, dy kernels.Mat, ids []int32, scale float32) {
	need(dy.Rows == len(ids) && dy.Cols == dtable.Cols, "cuda: GatherBackward: shapes do not agree")
	need(inside(ids, dtable), "cuda: GatherBackward: row id outside dtable")

	if dy.Len() == 0 {
		changed(dtable)
		return
	}

	d.operate("GatherBackward", func() {
		targets, starts, order := groups(ids)
		t := d.ints(targets)
		s := d.ints(starts)
		o := d.ints(order)
		args := groupArgs{d.of(dtable).mat(), d.of(dy).mat(), t, s, o, int32(len(targets)), scale}
		launch(d, "map.gather_back", plane(len(targets), dy.Cols, 256), &args)
		d.drop(t)
		d.drop(s)
		d.drop(o)
	}, []kernels.Mat{dtable}, dy)

	changed(dtable)
}

// ropeArgs mirrors RopeArgs of map.cu.
type ropeArgs struct {
	x, cos, sin               mat
	pos                       uintptr
	headStride                int
	heads, half, second, step int32
	sign                      float32
}

func (d *Device) rope(x kernels.Mat, r kernels.Rope) {
	stride := r.HeadStride
	if stride == 0 {
		stride = r.HeadDim
	}

	half := r.Dim / 2
	need(r.Dim >= 0 && r.Dim%2 == 0 && r.Dim <= r.HeadDim,
		"cuda: RoPE: rotated channels are odd or more than a head has")
	need(len(r.Pos) == x.Rows && (r.Heads == 0 || (r.Heads-1)*stride+r.HeadDim <= x.Cols),
		"cuda: RoPE: shapes do not agree")
	need(half == 0 || (r.Cos.Cols == half && same(r.Cos, r.Sin)), "cuda: RoPE: tables are not [positions, Dim/2]")
	need(half == 0 || inside(r.Pos, r.Cos), "cuda: RoPE: position outside the tables")

	if half == 0 || r.Heads == 0 || x.Rows == 0 {
		changed(x)
		return
	}

	args := ropeArgs{
		headStride: stride, heads: int32(r.Heads), half: int32(half), second: int32(half), step: 1,
		sign: 1,
	}
	if r.Interleaved {
		args.second, args.step = 1, 2
	}
	if r.Inverse {
		args.sign = -1
	}

	d.operate("RoPE", func() {
		args.x, args.cos, args.sin, args.pos = d.of(x).mat(), d.of(r.Cos).mat(), d.of(r.Sin).mat(), d.ints(r.Pos)
		launch(d, "map.rope", plane(x.Rows, r.Heads*half, 256), &args)
		d.drop(args.pos)
	}, []kernels.Mat{x}, r.Cos, r.Sin)

	changed(x)
}
