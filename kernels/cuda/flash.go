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

// flash computes attention on tensor cores: the keys and values that are seen are packed, for as many heads at a time as the scratch memory
// holds.
func (d *Device) flash(args attentionArgs, q, k, v, out, lse view) {
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
		pk := d.pack(factor{view: k.colRange(from, to), planes: 3})
		pv := d.pack(factor{view: v.colRange(from, to), planes: 3, transposed: true})
		part := flashArgs{
			q: q.colRange(lo*rep*args.qs, (hi*rep-1)*args.qs+dim).mat(), out: out.colRange(lo*rep*dim, hi*rep*dim).mat(),
			k: pk.p, v: pv.p, planeK: pk.plane, planeV: pv.plane, strideK: pk.stride, strideV: pv.stride, qs: args.qs, ks: args.ks,
			rep: args.rep, dim: args.dim, pos: args.pos, window: args.window, first: int32(first), keys: int32(k.rows), scale: args.scale, limit: args.limit,
		}
		if lse.p != 0 {
			part.lse = lse.colRange(lo*rep, hi*rep).mat()
		}
		width := "64"
		if dim > 64 {
			width = "128"
		}
		launch(d, "flash.flash_"+width, grid{x: (q.rows + flashTileQ - 1) / flashTileQ, y: (hi - lo) * rep, threads: 128}, &part)
		d.unpack(pk)
		d.unpack(pv)
	}
}
