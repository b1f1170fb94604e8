package lm

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// norm is a normalisation's parameters; w is nil where there is none.
type norm struct{ w, b *param }

func (n *norm) set(p *param) {
	if p.bias {
		n.b = p
	} else {
		n.w = p
	}
}

// linear is a matrix with its bias and what is attached to it.
type linear struct {
	Linear
	w, b   *param
	deltas []Delta
}

// mlp is a plain or gated feed-forward network: up or gate and up (apart or in one), then down.
type mlp struct{ gate, up, gateUp, down *linear }

// block is one layer of the model: attention and MLP with their norms.
type block struct {
	index  int
	params group

	attnNorm, mlpNorm, attnPost, mlpPost, qNorm, kNorm norm

	q, k, v, qkv, o *linear

	experts      []mlp // one for a plain MLP
	mixture      bool
	router       *param
	shared       *mlp // nil without a shared expert
	sharedRouter *param

	linears []*linear // in order of use
}

func newBlock(l int, c *Config) *block {
	b := &block{index: l, experts: make([]mlp, 1), mixture: c.Mixture[l]}
	if b.mixture {
		b.experts = make([]mlp, c.Experts)
	}
	return b
}

// place puts a parameter where the block uses it.
func (b *block) place(p *param) {
	b.params = append(b.params, p)
	norms := map[arch.Role]*norm{
		arch.AttnNorm: &b.attnNorm, arch.MLPNorm: &b.mlpNorm, arch.AttnPostNorm: &b.attnPost, arch.MLPPostNorm: &b.mlpPost,
		arch.QNorm: &b.qNorm, arch.KNorm: &b.kNorm,
	}
	switch n := norms[p.role]; {
	case n != nil:
		n.set(p)
	case p.role == arch.Router:
		b.router = p
	case p.role == arch.SharedRouter:
		b.sharedRouter = p
	default:
		b.placeLinear(b.slot(p.role, max(p.expert, 0)), p)
	}
}

// slot is where the block keeps the matrix of a role.
func (b *block) slot(r arch.Role, expert int) **linear {
	switch r {
	case arch.Q:
		return &b.q
	case arch.K:
		return &b.k
	case arch.V:
		return &b.v
	case arch.QKV:
		return &b.qkv
	case arch.O:
		return &b.o
	case arch.SharedGate, arch.SharedUp, arch.SharedDown:
		if b.shared == nil {
			b.shared = &mlp{}
		}
		return b.shared.slot(map[arch.Role]arch.Role{
			arch.SharedGate: arch.Gate, arch.SharedUp: arch.Up, arch.SharedDown: arch.Down,
		}[r])
	}
	return b.experts[expert].slot(r)
}

func (f *mlp) slot(r arch.Role) **linear {
	switch r {
	case arch.Gate:
		return &f.gate
	case arch.Up:
		return &f.up
	case arch.GateUp:
		return &f.gateUp
	case arch.Down:
		return &f.down
	}
	panic("lm: architecture table names a role that blocks do not have")
}

func (b *block) placeLinear(at **linear, p *param) {
	if p.bias {
		(*at).b = p
		return
	}
	in, out := p.cols, p.rows
	if p.transposed { // the file has it the other way round
		in, out = out, in
	}
	*at = &linear{w: p, Linear: Linear{
		Name: p.name, Block: b.index, Role: p.role, Expert: p.expert, In: in, Out: out, Transposed: p.transposed,
	}}
}

// finish lists the linears in order of use, which is expert by expert in a mixture.
func (b *block) finish() {
	add := func(ls ...*linear) {
		for _, l := range ls {
			if l != nil {
				b.linears = append(b.linears, l)
			}
		}
	}
	add(b.q, b.k, b.v, b.qkv, b.o)
	for _, f := range b.experts {
		add(f.gate, f.up, f.gateUp, f.down)
	}
	if f := b.shared; f != nil {
		add(f.gate, f.up, f.down)
	}
}

// run computes the block on x [rows, C] in place.
func (p *pass) block(b *block, x kernels.Mat) error {
	h := p.norm(sNorm, b.attnNorm, x)
	if p.m.config.Parallel {
		h2 := h
		if b.mlpNorm.w != nil {
			h2 = p.norm(sNorm2, b.mlpNorm, x)
		}
		if err := p.attention(b, x, h, true); err != nil {
			return err
		}
		return p.mlp(b, x, h2, true)
	}
	if err := p.branch(b, x, h, b.attnPost, p.attention); err != nil {
		return err
	}
	return p.branch(b, x, p.norm(sNorm, b.mlpNorm, x), b.mlpPost, p.mlp)
}

// branch adds what f computes from h to x: directly, or normed first.
func (p *pass) branch(b *block, x, h kernels.Mat, post norm, f func(b *block, dst, h kernels.Mat, accumulate bool) error) error {
	if post.w == nil {
		return f(b, x, h, true)
	}
	t := p.mat(sBranch, x.Rows, x.Cols)
	if err := f(b, t, h, false); err != nil {
		return err
	}
	p.normTo(t, t, post)
	p.ops.Add(x, x, t, 1)
	return nil
}

// norm applies a norm into a scratch matrix.
func (p *pass) norm(slot int, n norm, x kernels.Mat) kernels.Mat {
	dst := p.mat(slot, x.Rows, x.Cols)
	p.normTo(dst, x, n)
	return dst
}

func (p *pass) normTo(dst, x kernels.Mat, n norm) {
	c := p.m.config
	if c.Arch.Norm != arch.LayerNorm {
		p.ops.RMSNorm(dst, x, n.w.mat, c.Eps, c.Arch.Norm == arch.RMSPlusOne)
		return
	}
	p.ops.LayerNorm(dst, x, n.w.mat, n.b.value(), c.Eps)
}

// value is the parameter's matrix, or the absent matrix for nil.
func (p *param) value() kernels.Mat {
	if p == nil {
		return kernels.Mat{}
	}
	return p.mat
}

// linear computes dst = W x + b, or adds it, with hooks and deltas.
func (p *pass) linear(dst, x kernels.Mat, l *linear, accumulate bool) error {
	if p.hooks != nil && p.hooks.LinearInput != nil {
		p.hooks.LinearInput(l.Linear, x)
	}
	if len(l.deltas) == 0 {
		p.multiply(dst, x, l, accumulate)
		return nil
	}
	y := dst
	if accumulate {
		y = p.mat(sDelta, x.Rows, l.Out)
	}
	p.multiply(y, x, l, false)
	for _, d := range l.deltas {
		if err := d.Forward(l.Linear, x, y); err != nil {
			return err
		}
	}
	if accumulate {
		p.ops.Add(dst, dst, y, 1)
	}
	return nil
}

func (p *pass) multiply(dst, x kernels.Mat, l *linear, accumulate bool) {
	o := kernels.MatMul{Bias: l.b.value(), Accumulate: accumulate, Precision: p.m.opts.Precision}
	if l.Transposed {
		p.ops.MatMulNN(dst, x, l.w.mat, o)
	} else {
		p.ops.MatMulNT(dst, x, l.w.mat, o)
	}
}
