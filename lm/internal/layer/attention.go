package layer

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// The attention branch of a decoder layer (Vaswani et al., 2017; grouped key/value heads: Ainslie et al., 2023), for
// the normed stream h [tokens, hidden]:
//
//	Q, K, V = h·Wqᵀ, h·Wkᵀ, h·Wvᵀ      separate or one fused matrix; project
//	Q, K = norm(Q), norm(K)             where the architecture does; normHeads
//	Q, K, V = clamp(…, ±ClipQKV)        where the architecture does; clampHeads
//	Q, K = rotated by their positions   rotate
//	O = softmax(scale·QKᵀ + mask)·V     sequence by sequence; attend, the kernel of kernels.Ops
//	branch = O·Woᵀ                      linear
//
// The backward pass takes the same steps in reverse order. Each function stands next to its backward one.
//
// Architectures with latent attention have other projections (latent.go), some have sinks (sinks.go). Grouped heads of
// a fused projection apart (groupedQueries), no step copies heads into a layout of its own: kernels take a stride
// between heads (type heads), so that queries, keys and values are used where the projection wrote them, be it a fused
// matrix whose heads are interleaved (split), or the rows of the cache of the only sequence, in which case nothing is
// copied to the cache afterwards (cached).
//
// What is kept for the backward pass: Q, K, V as attention saw them, O, and the logarithm of the sum of exponentials of
// every row and head (sLSE), from which the kernel computes the weights again; the values before norms and clamps where
// there are some. A rotation is orthogonal, so that its backward pass is the inverse rotation of the gradients.

// heads is a view of queries, keys or values: the heads of a token lie stride apart.
type heads struct {
	mat    kernels.Mat
	stride int
}

// attention computes the attention branch of h, or adds it to dst.
func (p *Pass) attention(b *Block, dst, h kernels.Mat, accumulate bool) error {
	q, k, v, err := p.project(b, h)
	if err != nil {
		return err
	}

	q, k = p.normHeads(b, q, k)
	if err := p.clampHeads(q, k, v); err != nil {
		return err
	}

	p.rotate(b, q, k, false)
	if p.KVBytes && p.Past == nil { // others are rounded where they are kept
		p.roundHeads(k)
		p.roundHeads(v)
	}

	out := p.mat(sAttn, h.Rows, p.Config.Heads*p.Config.HeadDim)
	if err := p.attend(b, out, q, k, v); err != nil {
		return err
	}
	if err := p.sink(b, out); err != nil {
		return err
	}

	return p.linear(dst, p.narrow(out), b.O, accumulate)
}

// attentionBackward computes the gradients of the attention branch for the gradient dy of its result; that of
// its input h in dh, or added to it, unless dh is absent.
func (p *Pass) attentionBackward(b *Block, dh, dy, h kernels.Mat, accumulate bool) error {
	out := p.mat(sAttn, h.Rows, p.Config.Heads*p.Config.HeadDim)
	seen := out
	if p.Config.KVRank > 0 && p.Config.VDim < p.Config.HeadDim {
		seen = p.mat(sAttnNarrow, out.Rows, p.Config.Heads*p.Config.VDim)
	}
	if dh.IsZero() && !p.trainsHeads(b) {
		return p.linearBackward(kernels.Mat{}, dy, seen, b.O, false)
	}

	dout := p.work(gAttn, out.Rows, out.Cols)
	dseen, widen := p.wide(dout)
	if err := p.linearBackward(dseen, dy, seen, b.O, false); err != nil {
		return err
	}
	if err := widen(); err != nil {
		return err
	}
	if err := p.sinkBackward(b, dout, out); err != nil {
		return err
	}

	// With rows left out, queries have gradients from the first that is left on; keys and values from the beginning,
	// since all rows see the earlier ones.
	dq, dk, dv := p.gradHeads(b, p.from+h.Rows)
	dq = p.late(dq)
	if err := p.attendBackward(b, [3]heads{dq, dk, dv}, dout, out); err != nil {
		return err
	}

	// Only now: the queries that are left see keys of rows that are left out, so the kernel needed these.
	dk, dv = p.late(dk), p.late(dv)
	p.rotate(b, dq, dk, true)
	if err := p.clampHeadsBackward(dq, dk, dv); err != nil {
		return err
	}

	dq, dk, err := p.normHeadsBackward(b, dq, dk)
	if err != nil {
		return err
	}

	return p.projectBackward(b, dh, h, [3]heads{dq, dk, dv}, accumulate)
}

// trainsHeads reports whether a gradient is wanted that needs those of queries, keys or values.
func (p *Pass) trainsHeads(b *Block) bool {
	return p.trains(b.Q, b.K, b.V, b.QKV, b.QA, b.QB, b.KVA, b.KVB) ||
		p.wants(b.QNorm, b.KNorm, b.QANorm, b.KVANorm, Norm{W: b.Sinks})
}

// project computes queries, keys and values. With a cache, keys and values are rows of it.
func (p *Pass) project(b *Block, h kernels.Mat) (q, k, v heads, err error) {
	if b.KVA != nil {
		return p.latentHeads(b, h)
	}
	if b.QKV == nil {
		q, k, v = p.rawHeads(b, h.Rows)
		for _, s := range []struct {
			dst kernels.Mat
			l   *Linear
		}{{q.mat, b.Q}, {k.mat, b.K}, {v.mat, b.V}} {
			if err := p.linear(s.dst, h, s.l, false); err != nil {
				return q, k, v, err
			}
		}

		return q, k, v, nil
	}

	y := p.fused(h.Rows)
	if err := p.linear(y, h, b.QKV, false); err != nil {
		return q, k, v, err
	}

	// Heads of one fused matrix can't be written to the cache by the product itself.
	q, k, v = split(p.Config, y)
	if grouped(p.Config) {
		q = heads{p.mat(sQ, h.Rows, p.Config.Heads*p.Config.HeadDim), p.Config.HeadDim}
		p.groupedQueries(q.mat, y, false)
	}
	if p.cached() {
		ck, cv := p.keys(b, sK, h.Rows), p.values(b, sV, h.Rows)
		p.copyHeads(ck, k)
		p.copyHeads(cv, v)
		k, v = ck, cv
	}

	return q, k, v, nil
}

// projectBackward computes the gradients of project.
func (p *Pass) projectBackward(b *Block, dh, h kernels.Mat, d [3]heads, accumulate bool) error {
	if b.KVA != nil {
		return p.latentBackward(b, dh, h, d, accumulate)
	}
	if b.QKV != nil {
		dy := p.work(gQKV, p.from+h.Rows, b.QKV.Out).RowRange(p.from, p.from+h.Rows)
		if grouped(p.Config) {
			p.groupedQueries(d[0].mat, dy, true)
		}
		return p.linearBackward(dh, dy, h, b.QKV, accumulate)
	}

	// All three see h, so their gradients of it add up.
	for i, l := range []*Linear{b.Q, b.K, b.V} {
		if err := p.linearBackward(dh, d[i].mat, h, l, accumulate || i > 0); err != nil {
			return err
		}
	}

	return nil
}

// rawHeads is where separate projections go: before the norms of queries and keys where there are some.
func (p *Pass) rawHeads(b *Block, rows int) (q, k, v heads) {
	c := p.Config
	qSlot, kSlot := sQ, sK
	if c.QKNorm != "" {
		qSlot, kSlot = sQRaw, sKRaw
	}
	return heads{p.mat(qSlot, rows, c.Heads*c.HeadDim), c.HeadDim}, p.keys(b, kSlot, rows), p.values(b, sV, rows)
}

// fused is where a fused projection goes.
func (p *Pass) fused(rows int) kernels.Mat {
	c := p.Config
	return p.mat(sQKV, rows, (c.Heads+2*c.KVHeads)*c.HeadDim)
}

// gradHeads is where the gradients of queries, keys and values go. They lie as these do.
func (p *Pass) gradHeads(b *Block, rows int) (q, k, v heads) {
	c := p.Config
	d := c.HeadDim
	if b.QKV != nil {
		q, k, v = split(c, p.work(gQKV, rows, b.QKV.Out))
		if grouped(c) {
			q = heads{p.work(gQ, rows, c.Heads*d), d}
		}
		return q, k, v
	}
	return heads{p.work(gQ, rows, c.Heads*d), d}, heads{p.work(gK, rows, c.KVHeads*d), d},
		heads{p.work(gV, rows, c.KVHeads*d), d}
}

// split views queries, keys and values in the output of a fused projection.
func split(c *arch.Config, y kernels.Mat) (q, k, v heads) {
	d := c.HeadDim
	if c.Arch.QKV == arch.HeadBlocks { // q, k and v of the first head, of the second, …
		w := y.Cols - 2*d
		return heads{y.ColRange(0, w), 3 * d}, heads{y.ColRange(d, d+w), 3 * d}, heads{y.ColRange(2*d, 2*d+w), 3 * d}
	}
	nq, nk := c.Heads*d, c.KVHeads*d
	if grouped(c) { // queries have no one stride; see groupedQueries
		group := c.Heads / c.KVHeads * d
		w := y.Cols - group - d
		stride := group + 2*d
		return heads{}, heads{y.ColRange(group, group+w), stride}, heads{y.ColRange(group+d, group+d+w), stride}
	}
	return heads{y.ColRange(0, nq), d}, heads{y.ColRange(nq, nq+nk), d}, heads{y.ColRange(nq+nk, nq+2*nk), d}
}

// grouped reports whether the heads of a fused projection lie in groups, each of a key/value head.
func grouped(c *arch.Config) bool { return c.Arch.QKV == arch.Groups && c.KVHeads > 1 }

// groupedQueries copies the queries of all groups from a fused projection y to q, or back.
func (p *Pass) groupedQueries(q, y kernels.Mat, back bool) {
	c := p.Config
	group := c.Heads / c.KVHeads * c.HeadDim
	for i := range c.KVHeads {
		at := i * (group + 2*c.HeadDim)
		from, to := y.ColRange(at, at+group), q.ColRange(i*group, (i+1)*group)
		if back {
			from, to = to, from
		}
		p.ops.Convert(to, from)
	}
}

// copyHeads copies key/value heads.
func (p *Pass) copyHeads(dst, src heads) {
	c := p.Config
	if src.stride == dst.stride {
		p.ops.Convert(dst.mat, src.mat)
		return
	}
	for h := range c.KVHeads {
		d := c.HeadDim
		p.ops.Convert(dst.mat.ColRange(h*dst.stride, h*dst.stride+d), src.mat.ColRange(h*src.stride, h*src.stride+d))
	}
}

// normHeads norms queries and keys where the architecture does. Its tables do so only where projections are separate.
func (p *Pass) normHeads(b *Block, q, k heads) (nq, nk heads) {
	c := p.Config
	if c.QKNorm == "" {
		return q, k
	}
	nq, nk = heads{p.mat(sQ, q.mat.Rows, q.mat.Cols), q.stride}, p.keys(b, sK, k.mat.Rows)
	if c.QKNorm == arch.OwnHead {
		p.normOwn(nq.mat, q.mat, b.QNorm)
		p.normOwn(nk.mat, k.mat, b.KNorm)
		return nq, nk
	}
	p.Norm(p.perHead(nq.mat, c.Heads), p.perHead(q.mat, c.Heads), b.QNorm)
	p.Norm(p.perHead(nk.mat, c.KVHeads), p.perHead(k.mat, c.KVHeads), b.KNorm)
	return nq, nk
}

// normHeadsBackward gives the gradients of what normHeads got.
func (p *Pass) normHeadsBackward(b *Block, dq, dk heads) (rq, rk heads, err error) {
	c := p.Config
	if c.QKNorm == "" {
		return dq, dk, nil
	}

	q, k, _ := p.rawHeads(b, dq.mat.Rows)
	rq = heads{p.work(gQRaw, q.mat.Rows, q.mat.Cols), q.stride}
	rk = heads{p.work(gKRaw, k.mat.Rows, k.mat.Cols), k.stride}
	for _, s := range []struct {
		dx, dy, x kernels.Mat
		n         Norm
		count     int
	}{{rq.mat, dq.mat, q.mat, b.QNorm, c.Heads}, {rk.mat, dk.mat, k.mat, b.KNorm, c.KVHeads}} {
		if err := p.Zero(s.dx); err != nil { // a norm's gradient is added
			return rq, rk, err
		}
		if c.QKNorm == arch.OwnHead {
			p.normOwnBackward(s.dx, s.dy, s.x, s.n)
			continue
		}
		p.NormBackward(p.perHead(s.dx, s.count), p.perHead(s.dy, s.count), p.perHead(s.x, s.count), s.n)
	}

	return rq, rk, nil
}

// normOwn norms heads with weights of their own, the rows of the norm's.
func (p *Pass) normOwn(dst, x kernels.Mat, n Norm) {
	d := p.Config.HeadDim
	for h := range x.Cols / d {
		w, row := n.ofHead(h)
		p.normRows(dst.ColRange(h*d, (h+1)*d), x.ColRange(h*d, (h+1)*d), w.Value.RowRange(row, row+1), kernels.Mat{},
			p.eps(n))
	}
}

func (p *Pass) normOwnBackward(dx, dy, x kernels.Mat, n Norm) {
	d := p.Config.HeadDim
	for h := range x.Cols / d {
		w, row := n.ofHead(h)
		g := p.grad(w)
		if !g.IsZero() {
			g = g.RowRange(row, row+1)
		}
		p.normRowsBackward(dx.ColRange(h*d, (h+1)*d), g, kernels.Mat{}, dy.ColRange(h*d, (h+1)*d),
			x.ColRange(h*d, (h+1)*d), w.Value.RowRange(row, row+1), p.eps(n))
	}
}

// ofHead finds the weights of a head: a row of one matrix, or a vector of its own.
func (n *Norm) ofHead(h int) (w *Weight, row int) {
	if h > 0 && len(n.Rest) > 0 {
		return n.Rest[h-1], 0
	}
	if len(n.Rest) > 0 {
		return n.W, 0
	}
	return n.W, h
}

// perHead makes rows of heads where each is normed by itself.
func (p *Pass) perHead(x kernels.Mat, count int) kernels.Mat {
	if p.Config.QKNorm == arch.PerRow {
		return x
	}
	return x.Reshape(x.Rows*count, x.Cols/count)
}

// clampHeads limits queries, keys and values, on the host: no operation does it.
func (p *Pass) clampHeads(q, k, v heads) error {
	limit := p.Config.ClipQKV
	if limit == 0 {
		return nil
	}

	for i, x := range []heads{q, k, v} {
		p.keep(sQOpen+i, x.mat)
		err := p.onHost(func(rows [][]float32) {
			for j, u := range rows[0] {
				rows[0][j] = min(max(u, -limit), limit)
			}
		}, x.mat)
		if err != nil {
			return err
		}
	}

	return nil
}

// clampHeadsBackward stops the gradient where a limit was exceeded.
func (p *Pass) clampHeadsBackward(dq, dk, dv heads) error {
	limit := p.Config.ClipQKV
	if limit == 0 {
		return nil
	}

	// From the values before the limit: after it, one that was cut and one that was there by itself look the same.
	for i, d := range []heads{dq, dk, dv} {
		open := p.mat(sQOpen+i, d.mat.Rows, d.mat.Cols)
		err := p.onHost(func(rows [][]float32) {
			for j, u := range rows[1] {
				if u < -limit || u > limit {
					rows[0][j] = 0
				}
			}
		}, d.mat, open)
		if err != nil {
			return err
		}
	}

	return nil
}

// rotate applies the rotary positions to queries and keys; the inverse is what its backward pass does to their
// gradients.
func (p *Pass) rotate(b *Block, q, k heads, inverse bool) {
	c := p.Config
	of := c.RopeOf[b.Index]
	if of < 0 || b.KVA != nil { // latent attention rotates channels of its own
		return
	}

	at := 0
	rope := c.Ropes[of]
	for _, s := range p.rotations[of] {
		r := kernels.Rope{
			HeadDim: c.HeadDim, Dim: rope.Dim, Interleaved: rope.Interleaved, Inverse: inverse,
			Cos: s.table.cos, Sin: s.table.sin, Pos: s.pos[p.from:],
		}

		end := at + len(r.Pos)
		r.Heads, r.HeadStride = c.Heads, q.stride
		p.ops.RoPE(q.mat.RowRange(at, end), r)
		r.Heads, r.HeadStride = c.KVHeads, k.stride
		p.ops.RoPE(k.mat.RowRange(at, end), r)
		at = end
	}
}

// attend computes softmax attention sequence by sequence.
func (p *Pass) attend(b *Block, out kernels.Mat, q, k, v heads) error {
	if p.Past != nil {
		return p.attendPast(b, out, q, k, v)
	}

	a := p.shape(b, q.stride, k.stride)
	p.sequences(func(lo, hi int) {
		if p.t.full || b.Sinks != nil {
			a.LSE = p.mat(sLSE, q.mat.Rows, p.Config.Heads).RowRange(lo, hi)
		}
		p.ops.Attention(out.RowRange(lo, hi), q.mat.RowRange(lo, hi), k.mat.RowRange(lo, hi), v.mat.RowRange(lo, hi), a)
	})

	return nil
}

// attendBackward computes the gradients of queries, keys and values.
func (p *Pass) attendBackward(b *Block, d [3]heads, dout, out kernels.Mat) error {
	if p.Past != nil {
		return p.attendPastBackward(b, d, dout, out)
	}

	// With rows left out, what the tape gives starts at the first that is left. Keys and values are needed from the
	// beginning.
	from := p.from
	p.from = 0
	q, k, v := p.recordedHeads(b, from+out.Rows)
	p.from = from

	q = p.late(q)
	a := p.shape(b, q.stride, k.stride)
	a.Pos = from
	lse := p.mat(sLSE, out.Rows, p.Config.Heads)
	p.sequences(func(lo, hi int) {
		end := hi - from
		a.LSE = lse.RowRange(lo, end)
		p.ops.AttentionBackward(d[0].mat.RowRange(lo, end), d[1].mat.RowRange(lo, hi), d[2].mat.RowRange(lo, hi),
			dout.RowRange(lo, end),
			q.mat.RowRange(lo, end), k.mat.RowRange(lo, hi), v.mat.RowRange(lo, hi), out.RowRange(lo, end), a)
	})

	return nil
}

// late is a view of the rows that are not left out.
func (p *Pass) late(h heads) heads { return heads{h.mat.RowRange(p.from, h.mat.Rows), h.stride} }

// recordedHeads is what attention saw.
func (p *Pass) recordedHeads(b *Block, rows int) (q, k, v heads) {
	c := p.Config
	if b.QKV != nil {
		q, k, v = split(c, p.fused(rows))
		if grouped(c) {
			q = heads{p.mat(sQ, rows, c.Heads*c.HeadDim), c.HeadDim}
		}
		return q, k, v
	}
	return heads{p.mat(sQ, rows, c.Heads*c.HeadDim), c.HeadDim}, p.keys(b, sK, rows), p.values(b, sV, rows)
}

// shape describes the block's attention.
func (p *Pass) shape(b *Block, qStride, kvStride int) kernels.Attention {
	c := p.Config
	return kernels.Attention{
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, QHeadStride: qStride, KVHeadStride: kvStride,
		Window: c.Windows[b.Index], Scale: c.AttnScales[b.Index], Softcap: c.AttnSoftcap,
	}
}

// sequences calls f with the rows of every sequence that has some.
func (p *Pass) sequences(f func(lo, hi int)) {
	at := 0
	for _, n := range p.lens {
		if n > 0 {
			f(at, at+n)
		}
		at += n
	}
}

// cached reports whether keys and values are written where they stay: behind those of the only sequence.
func (p *Pass) cached() bool {
	return len(p.Past) == 1 && p.Past[0].Pages == nil && !p.t.full && !p.KVBytes
}

// keys is where the keys of a pass go: a matrix of the tape, or new rows of the cache of the only sequence.
func (p *Pass) keys(b *Block, slot, rows int) heads {
	d := p.Config.HeadDim
	if p.cached() {
		kv, at := p.Past[0].at(b)
		return heads{kv.Keys.RowRange(at, at+rows), d}
	}
	return heads{p.mat(slot, rows, p.Config.KVHeads*d), d}
}

// values is the same for values.
func (p *Pass) values(b *Block, slot, rows int) heads {
	d := p.Config.HeadDim
	if p.cached() {
		kv, at := p.Past[0].at(b)
		return heads{kv.Values.RowRange(at, at+rows), d}
	}
	return heads{p.mat(slot, rows, p.Config.KVHeads*d), d}
}
