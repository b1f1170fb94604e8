package lm

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// heads is a view of queries, keys or values: the heads of a token lie stride apart.
type heads struct {
	mat    kernels.Mat
	stride int
}

// attention computes the attention branch of h, or adds it to dst.
func (p *pass) attention(b *block, dst, h kernels.Mat, accumulate bool) error {
	q, k, v, err := p.project(b, h)
	if err != nil {
		return err
	}
	p.normHeads(b, q, k)
	if clip := p.m.config.ClipQKV; clip > 0 {
		for _, x := range []heads{q, k, v} {
			if err := p.clamp(x.mat, clip); err != nil {
				return err
			}
		}
	}
	p.rotate(q, k)
	out := p.mat(sAttn, h.Rows, p.m.config.Heads*p.m.config.HeadDim)
	p.attend(b, out, q, k, v)
	return p.linear(dst, out, b.o, accumulate)
}

// project computes queries, keys and values. With a cache, keys and values are rows of it.
func (p *pass) project(b *block, h kernels.Mat) (q, k, v heads, err error) {
	c := p.m.config
	d := c.HeadDim
	if b.qkv == nil {
		q = heads{p.mat(sQ, h.Rows, c.Heads*d), d}
		k, v = p.keys(b, sK, h.Rows), p.values(b, sV, h.Rows)
		for _, s := range []struct {
			dst kernels.Mat
			l   *linear
		}{{q.mat, b.q}, {k.mat, b.k}, {v.mat, b.v}} {
			if err := p.linear(s.dst, h, s.l, false); err != nil {
				return q, k, v, err
			}
		}
		return q, k, v, nil
	}
	y := p.mat(sQKV, h.Rows, (c.Heads+2*c.KVHeads)*d)
	if err := p.linear(y, h, b.qkv, false); err != nil {
		return q, k, v, err
	}
	q, k, v = split(c, y)
	if p.cache != nil {
		ck, cv := p.keys(b, sK, h.Rows), p.values(b, sV, h.Rows)
		p.copyHeads(ck, k)
		p.copyHeads(cv, v)
		k, v = ck, cv
	}
	return q, k, v, nil
}

// split views queries, keys and values in the output of a fused projection.
func split(c *Config, y kernels.Mat) (q, k, v heads) {
	d := c.HeadDim
	if c.Arch.QKV == arch.HeadBlocks {
		w := y.Cols - 2*d
		return heads{y.ColRange(0, w), 3 * d}, heads{y.ColRange(d, d+w), 3 * d}, heads{y.ColRange(2*d, 2*d+w), 3 * d}
	}
	nq, nk := c.Heads*d, c.KVHeads*d
	return heads{y.ColRange(0, nq), d}, heads{y.ColRange(nq, nq+nk), d}, heads{y.ColRange(nq+nk, nq+2*nk), d}
}

// copyHeads copies key/value heads to a dense matrix.
func (p *pass) copyHeads(dst, src heads) {
	c := p.m.config
	if src.stride == dst.stride {
		p.ops.Convert(dst.mat, src.mat)
		return
	}
	for h := range c.KVHeads {
		d := c.HeadDim
		p.ops.Convert(dst.mat.ColRange(h*d, h*d+d), src.mat.ColRange(h*src.stride, h*src.stride+d))
	}
}

// normHeads norms queries and keys where the architecture does.
func (p *pass) normHeads(b *block, q, k heads) {
	c := p.m.config
	switch c.Arch.QKNorm {
	case arch.PerRow:
		p.normTo(q.mat, q.mat, b.qNorm)
		p.normTo(k.mat, k.mat, b.kNorm)
	case arch.PerHead:
		p.normPerHead(q.mat, b.qNorm, c.Heads)
		p.normPerHead(k.mat, b.kNorm, c.KVHeads)
	}
}

func (p *pass) normPerHead(x kernels.Mat, n norm, count int) {
	rows := x.Reshape(x.Rows*count, x.Cols/count)
	p.normTo(rows, rows, n)
}

// clamp limits x to ±limit, on the host: no operation does it.
func (p *pass) clamp(x kernels.Mat, limit float32) error {
	return p.onHost(x, func(row []float32) {
		for i, v := range row {
			row[i] = min(max(v, -limit), limit)
		}
	})
}

// rotate applies the rotary positions to queries and keys.
func (p *pass) rotate(q, k heads) {
	c := p.m.config
	if c.Rope == nil {
		return
	}
	at := 0
	for _, s := range p.rotations {
		r := kernels.Rope{
			HeadDim: c.HeadDim, Dim: c.Rope.Dim, Interleaved: c.Rope.Interleaved, Cos: s.table.cos, Sin: s.table.sin, Pos: s.pos,
		}
		end := at + len(s.pos)
		r.Heads, r.HeadStride = c.Heads, q.stride
		p.ops.RoPE(q.mat.RowRange(at, end), r)
		r.Heads, r.HeadStride = c.KVHeads, k.stride
		p.ops.RoPE(k.mat.RowRange(at, end), r)
		at = end
	}
}

// attend computes softmax attention sequence by sequence.
func (p *pass) attend(b *block, out kernels.Mat, q, k, v heads) {
	c := p.m.config
	a := kernels.Attention{
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, QHeadStride: q.stride, KVHeadStride: k.stride,
		Window: c.Windows[b.index], Scale: c.AttnScales[b.index], Softcap: c.AttnSoftcap,
	}
	if p.cache != nil {
		layer := &p.cache.layers[b.index]
		a.Pos = layer.rows
		p.ops.Attention(out, q.mat, layer.keys.RowRange(0, layer.rows+q.mat.Rows), layer.values.RowRange(0, layer.rows+q.mat.Rows), a)
		return
	}
	at := 0
	for _, n := range p.lens {
		if n > 0 {
			end := at + n
			p.ops.Attention(out.RowRange(at, end), q.mat.RowRange(at, end), k.mat.RowRange(at, end), v.mat.RowRange(at, end), a)
			at = end
		}
	}
}

// keys is where the keys of a pass go: a scratch matrix, or new rows of the cache.
func (p *pass) keys(b *block, slot, rows int) heads {
	d := p.m.config.HeadDim
	if p.cache != nil {
		layer := &p.cache.layers[b.index]
		return heads{layer.keys.RowRange(layer.rows, layer.rows+rows), d}
	}
	return heads{p.mat(slot, rows, p.m.config.KVHeads*d), d}
}

// values is the same for values.
func (p *pass) values(b *block, slot, rows int) heads {
	d := p.m.config.HeadDim
	if p.cache != nil {
		layer := &p.cache.layers[b.index]
		return heads{layer.values.RowRange(layer.rows, layer.rows+rows), d}
	}
	return heads{p.mat(slot, rows, p.m.config.KVHeads*d), d}
}
