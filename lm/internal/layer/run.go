package layer

import "github.com/modelcompress/compress/kernels"

// Run computes the block on x [rows, C] in place.
func (p *Pass) Run(b *Block, x kernels.Mat) error {
	p.t, p.replay = &p.scratch.plain, false
	return p.run(b, x)
}

// RunInside computes what the matrices of a block see, for Input and Expert, and not the block's output: x ends as
// something on the way there.
func (p *Pass) RunInside(b *Block, x kernels.Mat) error {
	p.peeks = true
	defer func() { p.peeks = false }()
	return p.Run(b, x)
}

// RunAttention computes the attention of a block alone: dst gets what it gives for h, both [rows, C].
func (p *Pass) RunAttention(b *Block, dst, h kernels.Mat) error {
	p.t, p.replay = &p.scratch.plain, false
	return p.attention(b, dst, h, false)
}

// RunMLP does the same for the feed-forward branch.
func (p *Pass) RunMLP(b *Block, dst, h kernels.Mat) error {
	p.t, p.replay = &p.scratch.plain, false
	return p.mlp(b, dst, h, false)
}

// Record does the same as Run and keeps on the tape what the block's backward pass needs.
func (p *Pass) Record(b *Block, x kernels.Mat, t *Tape) error {
	if err := p.open(b, t); err != nil {
		return err
	}
	p.replay = false
	t.in = p.stream(sIn)
	p.ops.Convert(t.in, x)
	return p.run(b, x)
}

// Replay records a block again from its input in, which must stay as it is until the backward pass is done. The
// block's output is not computed, and Input is not called again.
func (p *Pass) Replay(b *Block, in kernels.Mat, t *Tape) error {
	if err := p.open(b, t); err != nil {
		return err
	}

	p.replay = true
	t.in = in

	// The branches write to x, and in must stay. With parallel branches the only thing that is written to x is the
	// block's output, which a replay leaves out.
	x := in
	switch {
	case p.Config.PostNorm:
		x = p.stream(sSum2)
	case !p.Config.Parallel:
		x = p.stream(sMiddle)
	}

	if x != in {
		p.ops.Convert(x, in)
	}

	return p.run(b, x)
}

// open makes a tape ready for a block.
func (p *Pass) open(b *Block, t *Tape) error {
	if err := p.reserveTape(t, b, p.rows); err != nil {
		return err
	}
	p.t = t
	return nil
}

// run computes the block on x; in a replay, x ends as the last intermediate result that the backward pass needs.
func (p *Pass) run(b *Block, x kernels.Mat) error {
	switch {
	case p.Config.PostNorm:
		return p.runPostNorm(b, x)
	case p.Config.Parallel:
		return p.runParallel(b, x)
	}

	if err := p.branch(b, x, p.before(sNorm, b.AttnNorm, x), b.AttnPost, sBranch, p.attention); err != nil {
		return err
	}

	p.keep(sMiddle, x)
	return p.branch(b, p.last(x), p.before(sNorm2, b.MLPNorm, x), b.MLPPost, sBranch2, p.mlp)
}

// runBackward turns d, the gradient of what leaves the block, into that of what enters it. The residual connections
// hand d on as it is, and each branch adds what reaches its input: NormBackward adds to d.
func (p *Pass) runBackward(b *Block, d kernels.Mat, below bool) error {
	attn, attnIn := p.attentionNeeds(b, below)
	dh := p.work(gNorm, d.Rows, d.Cols)

	// middle: somebody needs the gradient of the stream between the branches
	if middle := attn || p.wants(b.MLPNorm); middle || p.mlpTrains(b) {
		into := only(middle, dh)
		if err := p.branchBackward(b, into, d, sNorm2, p.mlpBackward); err != nil {
			return err
		}
		if middle {
			p.beforeBackward(d, dh, p.stream(sMiddle), b.MLPNorm)
		}
	}

	if !attn {
		return nil
	}
	if err := p.branchBackward(b, only(attnIn, dh), d, sNorm, p.attentionBackward); err != nil {
		return err
	}
	if attnIn {
		p.beforeBackward(d, dh, p.t.in, b.AttnNorm)
	}

	return nil
}

// before is what a branch sees of the stream: normed, or as it is where norms come behind the branches alone.
func (p *Pass) before(slot int, n Norm, x kernels.Mat) kernels.Mat {
	if n.W == nil {
		return x
	}
	return p.norm(slot, n, x)
}

// beforeBackward adds to d, the gradient of the stream x, what reaches it through the input of a branch.
func (p *Pass) beforeBackward(d, dh, x kernels.Mat, n Norm) {
	if n.W == nil {
		p.ops.Add(d, d, dh, 1)
		return
	}
	p.NormBackward(d, dh, x, n)
}

// runParallel feeds the same x to both branches, through one norm or two.
func (p *Pass) runParallel(b *Block, x kernels.Mat) error {
	h := p.norm(sNorm, b.AttnNorm, x)
	h2 := h
	if b.MLPNorm.W != nil {
		h2 = p.norm(sNorm2, b.MLPNorm, x)
	}
	if err := p.attention(b, p.last(x), h, true); err != nil {
		return err
	}
	return p.mlp(b, p.last(x), h2, true)
}

func (p *Pass) runParallelBackward(b *Block, d kernels.Mat, below bool) error {
	attn, attnIn := p.attentionNeeds(b, below)
	dh := p.work(gNorm, d.Rows, d.Cols)
	h := p.norm(sNorm, b.AttnNorm, p.t.in)
	if attn {
		if err := p.attentionBackward(b, only(attnIn, dh), d, h, false); err != nil {
			return err
		}
	}

	// With one norm for both branches, attention has written its part of dh, and the MLP's is added: that of the norm
	// goes back once, for the sum. Where attention was left out, nobody needs dh.
	if b.MLPNorm.W == nil {
		if err := p.mlpBackward(b, only(attnIn, dh), d, h, true); err != nil {
			return err
		}
	} else if mlpIn := below || p.wants(b.MLPNorm); mlpIn || p.mlpTrains(b) {
		dh2 := p.work(gNorm2, d.Rows, d.Cols)
		h2 := p.norm(sNorm2, b.MLPNorm, p.t.in)
		if err := p.mlpBackward(b, only(mlpIn, dh2), d, h2, false); err != nil {
			return err
		}
		if mlpIn {
			p.NormBackward(d, dh2, p.t.in, b.MLPNorm)
		}
	}

	if attnIn {
		p.NormBackward(d, dh, p.t.in, b.AttnNorm)
	}

	return nil
}

// runPostNorm norms the stream after each branch has been added to it.
func (p *Pass) runPostNorm(b *Block, x kernels.Mat) error {
	if err := p.attention(b, x, x, true); err != nil {
		return err
	}

	p.keep(sSum, x)
	p.Norm(x, x, b.AttnNorm)
	p.keep(sMiddle, x)
	if err := p.mlp(b, x, x, true); err != nil {
		return err
	}

	p.keep(sSum2, x)
	if p.whole() {
		p.Norm(x, x, b.MLPNorm)
	}

	return nil
}

// runPostNormBackward: a norm stands on the stream itself, so nothing of d goes past it as it is; what the residual
// connection hands on is the gradient behind the norm, ds, to which the branch's is added.
func (p *Pass) runPostNormBackward(b *Block, d kernels.Mat, below bool) error {
	attn, attnIn := below || p.attentionTrains(b), below
	middle := attn || p.wants(b.AttnNorm)
	if !middle && !p.mlpTrains(b) && !p.wants(b.MLPNorm) {
		return nil
	}

	ds := p.work(gSum, d.Rows, d.Cols)
	if err := p.throughNorm(ds, d, p.stream(sSum2), b.MLPNorm); err != nil {
		return err
	}
	if err := p.mlpBackward(b, only(middle, d), ds, p.stream(sMiddle), true); err != nil || !middle {
		return err
	}
	if err := p.throughNorm(ds, d, p.stream(sSum), b.AttnNorm); err != nil || !attn {
		return err
	}

	return p.attentionBackward(b, only(attnIn, d), ds, p.t.in, true)
}

// throughNorm takes the gradient of the stream back through a norm: from d to ds, which d then equals.
func (p *Pass) throughNorm(ds, d, x kernels.Mat, n Norm) error {
	if err := p.Zero(ds); err != nil {
		return err
	}

	// Two copies: the branch reads the one while what reaches its input is added to the other.
	p.NormBackward(ds, d, x, n)
	p.ops.Convert(d, ds)
	return nil
}

// Backward takes d, the gradient of what leaves a recorded or replayed block, back through the block: gradients
// that are wanted go to p.Grads and to the deltas, and with below d becomes the gradient of what enters the
// block. The tape is used up.
func (p *Pass) Backward(b *Block, t *Tape, d kernels.Mat, below bool) error {
	if err := p.reserveGrads(&p.scratch.grads, b, p.rows); err != nil {
		return err
	}

	p.t = t

	if !b.Mixture { // experts have rows of their own
		defer p.leaveOut(p.From)()
		d = d.RowRange(p.from, d.Rows)
	}

	switch {
	case p.Config.PostNorm:
		return p.runPostNormBackward(b, d, below)
	case p.Config.Parallel:
		return p.runParallelBackward(b, d, below)
	}

	return p.runBackward(b, d, below)
}

// leaveOut takes the first n rows out of the pass, until the function that it returns is called.
func (p *Pass) leaveOut(n int) func() {
	rows, in := p.rows, p.t.in
	p.from, p.rows, p.t.in = n, rows-n, in.RowRange(n, rows)
	return func() {
		p.from = 0
		p.rows = rows
		p.t.in = in
	}
}

// branch adds what f computes from h to x: directly, or by way of a slot where it is normed or scaled first. An absent
// x is not computed.
func (p *Pass) branch(b *Block, x, h kernels.Mat, post Norm, slot int,
	f func(b *Block, dst, h kernels.Mat, accumulate bool) error,
) error {
	factor := p.Config.ResidualScale
	if post.W == nil && (factor == 1 || x.IsZero()) {
		return f(b, x, h, true)
	}

	t := p.mat(slot, h.Rows, h.Cols)
	if err := f(b, t, h, false); err != nil || x.IsZero() {
		return err
	}

	if post.W != nil {
		t = p.norm(sNormed, post, t)
	}

	p.ops.Add(x, x, t, factor)
	return nil
}

// branchBackward computes the gradients of the branch whose input is in a slot.
func (p *Pass) branchBackward(b *Block, dh, d kernels.Mat, slot int,
	f func(b *Block, dh, dy, h kernels.Mat, accumulate bool) error,
) error {
	pre, post := b.AttnNorm, b.AttnPost
	h, out := p.t.in, sBranch
	if slot == sNorm2 {
		pre, post = b.MLPNorm, b.MLPPost
		h, out = p.stream(sMiddle), sBranch2
	}
	h = p.before(slot, pre, h)

	// d itself stays: it is also what the residual connection hands on.
	dy := p.work(gBranch, d.Rows, d.Cols)
	factor := p.Config.ResidualScale
	switch {
	case post.W == nil && factor == 1:
		return f(b, dh, d, h, false)
	case post.W == nil:
		p.Scaled(dy, d, factor)
		return f(b, dh, dy, h, false)
	}

	if err := p.Zero(dy); err != nil {
		return err
	}

	p.NormBackward(dy, d, p.stream(out), post)
	return f(b, dh, dy, h, false)
}

// attentionNeeds reports whether the gradient has to go through the attention branch, and through to the
// branch's input.
func (p *Pass) attentionNeeds(b *Block, below bool) (branch, input bool) {
	input = below || p.wants(b.AttnNorm)
	return input || p.attentionTrains(b), input
}

func (p *Pass) attentionTrains(b *Block) bool {
	return p.trainsHeads(b) || p.trains(b.O) || p.wants(b.AttnPost)
}

// mlpTrains reports whether a gradient inside the feed-forward branch is wanted.
func (p *Pass) mlpTrains(b *Block) bool {
	if p.wants(b.MLPPost, Norm{W: b.Router, B: b.RouterBias}, Norm{W: b.SharedRouter}) {
		return true
	}
	for i := range b.Experts {
		if p.trains(b.Experts[i].linears()...) {
			return true
		}
	}
	return b.Shared != nil && p.trains(b.Shared.linears()...)
}

// whole reports whether the block's output is wanted.
func (p *Pass) whole() bool { return !p.replay && !p.peeks }

// last is x, or nothing where what follows would be an output that nobody wants.
func (p *Pass) last(x kernels.Mat) kernels.Mat { return only(p.whole(), x) }

// only is x if it is needed, otherwise absent.
func only(needed bool, x kernels.Mat) kernels.Mat {
	if needed {
		return x
	}
	return kernels.Mat{}
}
