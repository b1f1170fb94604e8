package layer

import "github.com/modelcompress/compress/kernels"

// Multi-head latent attention (DeepSeek-V2, 2024), for the normed stream h [tokens, hidden]; the widths are those of
// arch.Config:
//
//	q = h·Wqᵀ                            or norm(h·Wqaᵀ)·Wqbᵀ, where queries have a latent
//	[c, r] = h·Wkvaᵀ                     c: the latent of keys and values; r: rotated channels that all heads share
//	[k, v] of each head = norm(c)·Wkvbᵀ
//	Q = [q unrotated, rotated], K = [k, r rotated]
//
// followed by softmax attention over keys and values of all heads. A head's channels of queries, keys and values are
// as many as the wider of keys and values has (HeadDim), the rest being zeros, so that the kernels of plain attention
// do it; the cache holds what they read. What is kept for the backward pass are the latents, before and behind their
// norms.

// latentHeads computes queries, keys and values.
func (p *Pass) latentHeads(b *Block, h kernels.Mat) (q, k, v heads, err error) {
	c := p.Config
	d, qk := c.HeadDim, c.NopeDim+c.RopeDim
	q = heads{p.mat(sQ, h.Rows, c.Heads*d), d}
	k, v = p.keys(b, sK, h.Rows), p.values(b, sV, h.Rows)

	raw := p.rawQueries(h.Rows)
	if err := p.latentQueries(b, raw, h); err != nil {
		return q, k, v, err
	}

	low := p.mat(sKVLow, h.Rows, c.KVRank+c.RopeDim)
	if err := p.linear(low, h, b.KVA, false); err != nil {
		return q, k, v, err
	}

	latent := p.mat(sKVLowNormed, h.Rows, c.KVRank)
	p.Norm(latent, low.ColRange(0, c.KVRank), b.KVANorm)
	both := p.mat(sKVUp, h.Rows, c.Heads*(c.NopeDim+c.VDim))
	if err := p.linear(both, latent, b.KVB, false); err != nil {
		return q, k, v, err
	}

	// One rotation of the shared channels, then a copy for each head.
	shared := low.ColRange(c.KVRank, low.Cols)
	p.turn(b, shared, 1, c.RopeDim, false)
	if err := p.padding(q.mat, k.mat, v.mat); err != nil {
		return q, k, v, err
	}

	for i := range c.Heads {
		if qk < d {
			p.ops.Convert(q.mat.ColRange(i*d, i*d+qk), raw.ColRange(i*qk, (i+1)*qk))
		}
		nope, value := p.upHead(both, i)
		p.ops.Convert(k.mat.ColRange(i*d, i*d+c.NopeDim), nope)
		p.ops.Convert(k.mat.ColRange(i*d+c.NopeDim, i*d+qk), shared)
		p.ops.Convert(v.mat.ColRange(i*d, i*d+c.VDim), value)
	}

	p.turn(b, q.mat.ColRange(c.NopeDim, q.mat.Cols), c.Heads, d, false)
	return q, k, v, nil
}

// upHead views the key channels and the values of a head in what the latent expands to.
func (p *Pass) upHead(both kernels.Mat, i int) (nope, value kernels.Mat) {
	c := p.Config
	at := i * (c.NopeDim + c.VDim)
	return both.ColRange(at, at+c.NopeDim), both.ColRange(at+c.NopeDim, at+c.NopeDim+c.VDim)
}

// rawQueries is where queries go: their final place, unless heads are wider there.
func (p *Pass) rawQueries(rows int) kernels.Mat {
	c := p.Config
	slot := sQ
	if c.NopeDim+c.RopeDim < c.HeadDim {
		slot = sQRaw
	}
	return p.mat(slot, rows, c.Heads*(c.NopeDim+c.RopeDim))
}

// latentQueries computes the queries of all heads into dst.
func (p *Pass) latentQueries(b *Block, dst, h kernels.Mat) error {
	if b.QA == nil {
		return p.linear(dst, h, b.Q, false)
	}

	low := p.mat(sQLow, h.Rows, p.Config.QRank)
	if err := p.linear(low, h, b.QA, false); err != nil {
		return err
	}
	normed := p.norm(sQLowNormed, b.QANorm, low)
	return p.linear(dst, normed, b.QB, false)
}

// padding writes zeros where heads are wider than what they hold.
func (p *Pass) padding(q, k, v kernels.Mat) error {
	c := p.Config
	wide := []kernels.Mat{v}
	if c.NopeDim+c.RopeDim < c.HeadDim {
		wide = []kernels.Mat{q, k}
	} else if c.VDim == c.HeadDim {
		return nil
	}

	for _, x := range wide {
		if err := p.Zero(x); err != nil {
			return err
		}
	}

	return nil
}

// turn rotates the first channels of heads that lie stride apart in x.
func (p *Pass) turn(b *Block, x kernels.Mat, count, stride int, inverse bool) {
	of := p.Config.RopeOf[b.Index]
	if of < 0 {
		return
	}

	rope := p.Config.Ropes[of]
	at := 0
	for _, s := range p.rotations[of] {
		r := kernels.Rope{
			Heads: count, HeadDim: rope.Dim, HeadStride: stride, Dim: rope.Dim, Interleaved: rope.Interleaved,
			Inverse: inverse, Cos: s.table.cos, Sin: s.table.sin, Pos: s.pos[p.from:],
		}
		end := at + len(r.Pos)
		p.ops.RoPE(x.RowRange(at, end), r)
		at = end
	}
}

// latentBackward computes the gradients of latentHeads for those of queries, keys and values; that of h in dh, or added
// to it, unless it is absent.
func (p *Pass) latentBackward(b *Block, dh, h kernels.Mat, d [3]heads, accumulate bool) error {
	if err := p.latentQueriesBackward(b, dh, h, d[0].mat, accumulate); err != nil {
		return err
	}

	c := p.Config
	width, qk := c.HeadDim, c.NopeDim+c.RopeDim
	dlow := p.work(gKVLow, h.Rows, c.KVRank+c.RopeDim)
	if err := p.Zero(dlow); err != nil {
		return err
	}

	dboth := p.work(gKVUp, h.Rows, c.Heads*(c.NopeDim+c.VDim))
	dshared := dlow.ColRange(c.KVRank, dlow.Cols)
	for i := range c.Heads {
		nope, value := p.upHead(dboth, i)
		p.ops.Convert(nope, d[1].mat.ColRange(i*width, i*width+c.NopeDim))
		// The rotated part of a key is the same for all heads, so its gradients add up.
		p.ops.Add(dshared, dshared, d[1].mat.ColRange(i*width+c.NopeDim, i*width+qk), 1)
		p.ops.Convert(value, d[2].mat.ColRange(i*width, i*width+c.VDim))
	}

	// Turned back after the sum: one rotation instead of one for each head.
	p.turn(b, dshared, 1, c.RopeDim, true)
	latent := p.mat(sKVLowNormed, h.Rows, c.KVRank)
	dlatent := p.work(gKVLowNormed, h.Rows, c.KVRank)
	if err := p.linearBackward(dlatent, dboth, latent, b.KVB, false); err != nil {
		return err
	}

	low := p.mat(sKVLow, h.Rows, c.KVRank+c.RopeDim)
	p.NormBackward(dlow.ColRange(0, c.KVRank), dlatent, low.ColRange(0, c.KVRank), b.KVANorm)
	// Added: the queries have written dh before.
	return p.linearBackward(dh, dlow, h, b.KVA, true)
}

// latentQueriesBackward computes the gradients of the queries' matrices from dq, in which heads have their final width.
func (p *Pass) latentQueriesBackward(b *Block, dh, h, dq kernels.Mat, accumulate bool) error {
	c := p.Config
	width, qk := c.HeadDim, c.NopeDim+c.RopeDim
	p.turn(b, dq.ColRange(c.NopeDim, dq.Cols), c.Heads, width, true)
	// Heads were widened so that queries, keys and values have one width; the rest has no gradient.
	if qk < width {
		narrow := p.work(gQRaw, dq.Rows, c.Heads*qk)
		for i := range c.Heads {
			p.ops.Convert(narrow.ColRange(i*qk, (i+1)*qk), dq.ColRange(i*width, i*width+qk))
		}
		dq = narrow
	}

	if b.QA == nil {
		return p.linearBackward(dh, dq, h, b.Q, accumulate)
	}

	low, normed := p.mat(sQLow, h.Rows, c.QRank), p.mat(sQLowNormed, h.Rows, c.QRank)
	dlow, dnormed := p.work(gQLow, h.Rows, c.QRank), p.work(gQLowNormed, h.Rows, c.QRank)
	if err := p.linearBackward(dnormed, dq, normed, b.QB, false); err != nil {
		return err
	}
	if err := p.Zero(dlow); err != nil {
		return err
	}

	p.NormBackward(dlow, dnormed, low, b.QANorm)
	return p.linearBackward(dh, dlow, h, b.QA, accumulate)
}

// values of heads that are narrower than the kernels have them: what the output projection reads of out.
func (p *Pass) narrow(out kernels.Mat) kernels.Mat {
	c := p.Config
	if c.KVRank == 0 || c.VDim == c.HeadDim {
		return out
	}

	n := p.mat(sAttnNarrow, out.Rows, c.Heads*c.VDim)
	for i := range c.Heads {
		p.ops.Convert(n.ColRange(i*c.VDim, (i+1)*c.VDim), out.ColRange(i*c.HeadDim, i*c.HeadDim+c.VDim))
	}

	return n
}

// wide is the backward pass of narrow: it gives the place for the gradient of the narrow output, and a function that
// writes it to dout.
func (p *Pass) wide(dout kernels.Mat) (dn kernels.Mat, widen func() error) {
	c := p.Config
	if c.KVRank == 0 || c.VDim == c.HeadDim {
		return dout, func() error { return nil }
	}

	dn = p.work(gAttnNarrow, dout.Rows, c.Heads*c.VDim)
	return dn, func() error {
		if err := p.Zero(dout); err != nil {
			return err
		}
		for i := range c.Heads {
			p.ops.Convert(dout.ColRange(i*c.HeadDim, i*c.HeadDim+c.VDim), dn.ColRange(i*c.VDim, (i+1)*c.VDim))
		}
		return nil
	}
}
