//go:build linux && (amd64 || arm64)

package cuda

// flashArgs mirrors FlashArgs of flash.cu.
type flashArgs struct {
	q, out, lse                        mat
	k, v                               uintptr
	planeK, planeV, strideK, strideV   int
	qs, ks                             int
	rep, dim, pos, window, first, keys int32
	scale, limit                       float32
}

// Attention runs on tensor cores from so many queries on, for heads of so many channels.
const (
	flashQueries = 17
	flashDim     = 128
	flashTileQ   = 64
	flashTileK   = 32
)

// flashes reports whether the tensor-core kernel serves a shape: chunks of 8 channels start at 16 bytes there.
func flashes(args attentionArgs, queries int) bool {
	return queries >= flashQueries && args.dim <= flashDim && args.dim%8 == 0 && args.ks%8 == 0
}

// flash computes attention on tensor cores: the keys and values that are seen are packed, for as many heads at
// a time as the scratch memory holds.
func (d *Device) flash(args attentionArgs, q, k, v, out, lse view) {
	// Keys before the window of the first query are seen by none; tiles begin at whole tiles.
	first := 0
	if args.window > 0 {
		first = max(0, int(args.pos-args.window)+1) / flashTileK * flashTileK
	}

	end, rep, dim := int(args.pos)+q.rows, int(args.rep), int(args.dim)
	k, v = k.rowRange(first, end), v.rowRange(first, end)
	kvHeads := int(args.heads) / rep
	batch := min(max(d.budget()/(6*(k.rows+8)*max(args.ks, 8)), 1), kvHeads)
	for lo := 0; lo < kvHeads; lo += batch {
		hi := min(lo+batch, kvHeads)
		from, to := lo*args.ks, (hi-1)*args.ks+dim
		// Three planes of BF16 hold a float32 to its last bit, so that tensor cores don't cost precision.
		pk := d.pack(factor{view: k.colRange(from, to), planes: 3})
		pv := d.pack(factor{view: v.colRange(from, to), planes: 3, transposed: true})
		part := flashArgs{
			q:   q.colRange(lo*rep*args.qs, (hi*rep-1)*args.qs+dim).mat(),
			out: out.colRange(lo*rep*dim, hi*rep*dim).mat(),
			k:   pk.p, v: pv.p, planeK: pk.plane, planeV: pv.plane, strideK: pk.stride, strideV: pv.stride, qs: args.qs,
			ks:  args.ks,
			rep: args.rep, dim: args.dim, pos: args.pos, window: args.window, first: int32(first), keys: int32(k.rows),
			scale: args.scale, limit: args.limit,
		}

		if lse.p != 0 {
			part.lse = lse.colRange(lo*rep, hi*rep).mat()
		}

		width := "64"
		if dim > 64 {
			width = "128"
		}

		launch(d, "flash.flash_"+width,
			grid{x: (q.rows + flashTileQ - 1) / flashTileQ, y: (hi - lo) * rep, threads: 128}, &part)
		d.unpack(pk)
		d.unpack(pv)
	}
}

// flashBackArgs mirrors BackArgs of flashback.cu.
type flashBackArgs struct {
	x, y, dx, dy, lse, mean            mat
	s, t                               uintptr
	planeS, planeT, strideS, strideT   int
	xs, ys, ss, ts                     int
	rep, dim, pos, window, first, rows int32
	scale, limit                       float32
}

// gradient is the operands of attention's backward pass, and for every query and head the LSE and the mean of dout·out.
type gradient struct{ q, k, v, dout, dq, dk, dv, lse, mean view }

// heads views the key/value heads [lo, hi) and their queries.
func (g gradient) heads(args attentionArgs, lo, hi int) gradient {
	rep, dim := int(args.rep), int(args.dim)
	for _, m := range []*view{&g.q, &g.dq} {
		*m = m.colRange(lo*rep*args.qs, (hi*rep-1)*args.qs+dim)
	}
	for _, m := range []*view{&g.k, &g.v, &g.dk, &g.dv} {
		*m = m.colRange(lo*args.ks, (hi-1)*args.ks+dim)
	}

	g.dout = g.dout.colRange(lo*rep*dim, hi*rep*dim)
	g.lse, g.mean = g.lse.colRange(lo*rep, hi*rep), g.mean.colRange(lo*rep, hi*rep)
	return g
}

// flashesBack reports whether the tensor-core kernels serve a shape.
func flashesBack(args attentionArgs, queries int) bool {
	return flashes(args, queries) && args.qs%8 == 0
}

// flashBack computes the gradients on tensor cores, for as many heads at a time as the scratch memory holds the
// planes of.
func (d *Device) flashBack(args attentionArgs, all gradient) {
	kvHeads, width := int(args.heads/args.rep), "64"
	if args.dim > 64 {
		width = "128"
	}

	group := max(args.ks*all.k.rows, int(args.rep)*max(args.qs, int(args.dim))*all.q.rows) // elements of one factor
	batch := min(max(d.budget()/(6*(group+8*max(all.k.rows, all.q.rows))), 1), kvHeads)
	for lo := 0; lo < kvHeads; lo += batch {
		hi := min(lo+batch, kvHeads)
		g := all.heads(args, lo, hi)
		d.backQueries(args, g, hi-lo, width)
		d.backKeys(args, g, hi-lo, width)
	}
}

// backArgs is what both kernels share.
func backArgs(args attentionArgs, g gradient, s, t packed) flashBackArgs {
	return flashBackArgs{
		lse: g.lse.mat(), mean: g.mean.mat(), s: s.p, t: t.p, planeS: s.plane, planeT: t.plane, strideS: s.stride,
		strideT: t.stride,
		rep:     args.rep, dim: args.dim, pos: args.pos, window: args.window, scale: args.scale, limit: args.limit,
	}
}

// backQueries gives dq of some key/value heads' queries.
func (d *Device) backQueries(args attentionArgs, g gradient, kvHeads int, width string) {
	first := 0
	if args.window > 0 {
		first = max(0, int(args.pos-args.window)+1) / flashTileK * flashTileK
	}

	end := int(args.pos) + g.q.rows
	k, v := d.pack(factor{view: g.k.rowRange(first, end), planes: 3}),
		d.pack(factor{view: g.v.rowRange(first, end), planes: 3})
	part := backArgs(args, g, k, v)
	part.x, part.y, part.dx, part.first, part.rows = g.q.mat(), g.dout.mat(), g.dq.mat(), int32(first), int32(end-first)
	part.xs = args.qs

	part.ys = int(args.dim)
	part.ss = args.ks
	part.ts = args.ks

	launch(d, "flashback.flash_dq_"+width,
		grid{x: (g.q.rows + flashTileQ - 1) / flashTileQ, y: kvHeads * int(args.rep), threads: 128}, &part)
	d.unpack(k)
	d.unpack(v)
}

// backKeys gives dk and dv of some key/value heads.
func (d *Device) backKeys(args attentionArgs, g gradient, kvHeads int, width string) {
	q, o := d.pack(factor{view: g.q, planes: 3}), d.pack(factor{view: g.dout, planes: 3})
	part := backArgs(args, g, q, o)
	part.x, part.y, part.dx, part.dy, part.rows = g.k.mat(), g.v.mat(), g.dk.mat(), g.dv.mat(), int32(g.q.rows)
	part.xs = args.ks
	part.ys = args.ks
	part.ss = args.qs
	part.ts = int(args.dim)

	launch(d, "flashback.flash_dkv_"+width,
		grid{x: (max(g.k.rows, g.v.rows) + flashTileQ - 1) / flashTileQ, y: kvHeads, threads: 128}, &part)
	d.unpack(q)
	d.unpack(o)
}
