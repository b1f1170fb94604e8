//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// attentionArgs mirrors AttentionArgs of attention.cu.
type attentionArgs struct {
	q, k, v, out, lse, dout, dq, dk, dv mat
	mean                                uintptr
	qs, ks                              int
	heads, rep, dim, pos, window        int32
	scale, limit                        float32
	part, parts, _                      int32
}

// widest is the most channels of a head.
const widest = 256

// ErrWideHead is the error, at Sync, of attention with heads of more channels than there are kernels for.
var ErrWideHead = errors.New("a head has more than 256 channels")

// WidestHead is the most channels of a head that Attention and AttentionBackward serve; wider ones are
// [ErrWideHead]. [device.Complete] leaves those to the reference backend.
//
// [device.Complete]: https://pkg.go.dev/github.com/modelcompress/compress/kernels/device#Complete
func (d *Device) WidestHead() int { return widest }

// attentionOf fills the head strides in and checks the shapes.
func attentionOf(dst, q, k, v kernels.Mat, a kernels.Attention) attentionArgs {
	if a.QHeadStride == 0 {
		a.QHeadStride = a.HeadDim
	}
	if a.KVHeadStride == 0 {
		a.KVHeadStride = a.HeadDim
	}

	need(a.Heads > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads == 0,
		"cuda: Attention: heads are not a multiple of key/value heads")
	need(dst.Rows == q.Rows && dst.Cols == a.Heads*a.HeadDim, "cuda: Attention: dst is not [tq, Heads·HeadDim]")
	need((a.Heads-1)*a.QHeadStride+a.HeadDim <= q.Cols, "cuda: Attention: q is narrower than its heads")
	need((a.KVHeads-1)*a.KVHeadStride+a.HeadDim <= min(k.Cols, v.Cols),
		"cuda: Attention: k or v is narrower than its heads")
	need(a.Pos >= 0 && a.Window >= 0 && a.Pos+q.Rows <= min(k.Rows, v.Rows),
		"cuda: Attention: fewer keys than positions")
	need(a.LSE.IsZero() || (a.LSE.Rows == q.Rows && a.LSE.Cols == a.Heads), "cuda: Attention: LSE is not [tq, Heads]")
	if a.Window >= a.Pos+q.Rows {
		a.Window = 0 // every query sees all before it; kernels add to a window in 32 bits
	}

	return attentionArgs{
		qs: a.QHeadStride, ks: a.KVHeadStride,
		heads: int32(a.Heads), rep: int32(a.Heads / a.KVHeads), dim: int32(a.HeadDim), pos: int32(a.Pos),
		window: int32(a.Window),
		scale:  a.Scale, limit: a.Softcap,
	}
}

// serves reports whether there is a kernel for the heads; otherwise Sync tells.
func (d *Device) serves(a kernels.Attention) bool {
	if a.HeadDim <= widest {
		return true
	}
	d.fail(fmt.Errorf("cuda:%d: %s: %w: %d", d.index, d.op, ErrWideHead, a.HeadDim))
	return false
}

// place fills the addresses in.
func (d *Device) place(args *attentionArgs, dst, q, k, v kernels.Mat, a kernels.Attention) {
	args.q, args.k, args.v, args.out, args.lse = d.of(q).mat(), d.of(k).mat(), d.of(v).mat(), d.of(dst).mat(),
		d.of(a.LSE).mat()
}

// room is the width of the kernel that serves heads of a number of channels.
func room(dim int) string {
	switch {
	case dim <= 64:
		return "64"
	case dim <= 128:
		return "128"
	}
	return "256"
}

// tiles is a grid with a block for every 64 rows and every head.
func tiles(rows, heads int) grid { return grid{x: (rows + 63) / 64, y: heads, threads: 256} }

func (d *Device) attention(dst, q, k, v kernels.Mat, a kernels.Attention) {
	args := attentionOf(dst, q, k, v, a)
	if dst.Len() == 0 {
		return
	}

	d.operate("Attention", func() {
		if !d.serves(a) {
			return
		}

		d.place(&args, dst, q, k, v, a)

		if q.Rows <= fewQueries {
			d.attendFew(args, q.Rows)
			return
		}

		if flashes(args, q.Rows) {
			d.flash(args, d.of(q), d.of(k), d.of(v), d.of(dst), d.of(a.LSE))
			return
		}

		launch(d, "attention.attention_"+room(a.HeadDim), tiles(q.Rows, a.Heads), &args)
	}, []kernels.Mat{dst, a.LSE}, q, k, v)

	changed(dst, a.LSE)
}

// fewQueries is the most queries for which keys are cut into parts, so that one query fills the device, and
// partKeys the keys of a part.
const (
	fewQueries = 8
	partKeys   = 256
)

// attendFew computes attention of few queries part by part.
func (d *Device) attendFew(args attentionArgs, queries int) {
	keys := int(args.pos) + queries
	if args.window > 0 {
		keys = min(keys, int(args.window))
	}

	args.part = max(partKeys, int32((keys+1023)/1024))
	args.parts = int32((keys + int(args.part) - 1) / int(args.part))
	args.mean = d.scratch(4 * queries * int(args.heads*args.parts*(args.dim+2)))
	launch(d, "attention.attention_few", grid{x: int(args.parts), y: int(args.heads), z: queries, threads: 128}, &args)
	launch(d, "attention.attention_join", grid{x: 1, y: int(args.heads), z: queries, threads: 128}, &args)
	d.drop(args.mean)
}

func (d *Device) attentionBackward(dq, dk, dv, dout, q, k, v, out kernels.Mat, a kernels.Attention) {
	args := attentionOf(out, q, k, v, a)
	need(same(dq, q) && same(dk, k) && same(dv, v) && same(dout, out), "cuda: AttentionBackward: shapes do not agree")
	need(!a.LSE.IsZero(), "cuda: AttentionBackward: LSE is not [tq, Heads]")
	if a.HeadDim == 0 {
		return
	}

	d.operate("AttentionBackward", func() {
		if !d.serves(a) {
			return
		}

		d.place(&args, out, q, k, v, a)
		args.dq, args.dk, args.dv, args.dout = d.of(dq).mat(), d.of(dk).mat(), d.of(dv).mat(), d.of(dout).mat()
		w := room(a.HeadDim)
		if q.Rows > 0 {
			args.mean = d.scratch(4 * q.Rows * a.Heads)
			launch(d, "attention.attention_mean", grid{x: (q.Rows*a.Heads + 7) / 8, y: 1, threads: 256}, &args)

			if flashesBack(args, q.Rows) {
				d.flashBack(args, gradient{
					d.of(q), d.of(k), d.of(v), d.of(dout), d.of(dq), d.of(dk), d.of(dv), d.of(a.LSE),
					view{args.mean, a.Heads, q.Rows, a.Heads, kernels.F32},
				})
				d.drop(args.mean)
				return
			}

			launch(d, "attention.attention_dq_"+w, tiles(q.Rows, a.Heads), &args)
		}

		if k.Rows > 0 {
			launch(d, "attention.attention_dk_"+w, tiles(k.Rows, a.KVHeads), &args)
		}
		if v.Rows > 0 {
			launch(d, "attention.attention_dv_"+w, tiles(v.Rows, a.KVHeads), &args)
		}

		d.drop(args.mean)
	}, []kernels.Mat{dq, dk, dv}, dout, q, k, v, out, a.LSE)

	changed(dq, dk, dv)
}
