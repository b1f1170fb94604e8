package layer

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// Norm applies a norm; dst may be x.
func (p *Pass) Norm(dst, x kernels.Mat, n Norm) {
	p.normRows(dst, x, n.W.Value, n.B.Mat(), p.eps(n))
}

// eps is the epsilon of a norm.
func (p *Pass) eps(n Norm) float32 {
	if n.Eps > 0 {
		return n.Eps
	}
	return p.Config.Eps
}

// normRows applies the norm of the architecture with given parameters.
func (p *Pass) normRows(dst, x, w, b kernels.Mat, eps float32) {
	c := p.Config
	if c.Arch.Norm != arch.LayerNorm {
		p.ops.RMSNorm(dst, x, w, eps, c.Arch.Norm == arch.RMSPlusOne)
		return
	}
	p.ops.LayerNorm(dst, x, w, b, eps)
}

// NormBackward adds the gradient of x, for the gradient dy of the norm's result, to dx, and those of the norm's
// parameters where they are wanted.
func (p *Pass) NormBackward(dx, dy, x kernels.Mat, n Norm) {
	p.normRowsBackward(dx, p.grad(n.W), p.grad(n.B), dy, x, n.W.Value, p.eps(n))
}

// normRowsBackward is the backward pass of normRows; dw and db may be absent.
func (p *Pass) normRowsBackward(dx, dw, db, dy, x, w kernels.Mat, eps float32) {
	c := p.Config
	if c.Arch.Norm != arch.LayerNorm {
		p.ops.RMSNormBackward(dx, dw, dy, x, w, eps, c.Arch.Norm == arch.RMSPlusOne)
		return
	}
	p.ops.LayerNormBackward(dx, dw, db, dy, x, w, eps)
}

// Scaled writes x times a factor to dst, which is other memory.
func (p *Pass) Scaled(dst, x kernels.Mat, factor float32) { p.ops.Gather(dst, x, Rows(x.Rows), factor) }

// norm applies a norm into a matrix of the tape.
func (p *Pass) norm(slot int, n Norm, x kernels.Mat) kernels.Mat {
	dst := p.mat(slot, x.Rows, x.Cols)
	p.Norm(dst, x, n)
	return dst
}

// linear computes dst = W x + b, or adds it, with deltas. An absent dst is not computed.
func (p *Pass) linear(dst, x kernels.Mat, l *Linear, accumulate bool) error {
	if p.Input != nil && !p.replay {
		p.Input(l, x)
	}
	if dst.IsZero() {
		return nil
	}
	if len(l.Deltas) == 0 {
		return p.multiply(dst, x, l, accumulate)
	}

	// A delta changes what the linear gives, not what the linear is added to (DoRA scales it, for one), so it must see
	// that alone.
	y := dst
	if accumulate {
		y = p.mat(sDelta, x.Rows, l.Out)
	}
	if err := p.multiply(y, x, l, false); err != nil {
		return err
	}

	for _, d := range l.Deltas {
		if err := d.Forward(x, y); err != nil {
			return err
		}
	}

	if accumulate {
		p.ops.Add(dst, dst, y, 1)
	}

	return nil
}

func (p *Pass) multiply(dst, x kernels.Mat, l *Linear, accumulate bool) error {
	o := kernels.MatMul{Bias: l.B.Mat(), Accumulate: accumulate, Precision: p.Precision}
	if !l.W.Sparse.IsZero() {
		p.ops.MatMulSparse(dst, x, l.W.Sparse, o)
		return nil
	}

	w, err := p.dense(l.W)
	switch {
	case err != nil:
		return err
	case l.Transposed:
		p.ops.MatMulNN(dst, x, w, o)
	default:
		p.ops.MatMulNT(dst, x, w, o)
	}

	return nil
}

// dense is a weight as a matrix: its value, or what a sparse or quantised one expands to, until the next call.
func (p *Pass) dense(w *Weight) (kernels.Mat, error) {
	if w.Sparse.IsZero() && w.Quant == nil {
		return w.Value, nil
	}

	// One buffer for all weights: no two are wanted at a time.
	buf, t := &p.scratch.expanded, w.DType()
	if *buf != nil && (*buf).DType != t {
		(*buf).Free()
		*buf = nil
	}

	rows, cols := w.Sparse.Rows(), w.Sparse.Cols
	if w.Quant != nil {
		rows, cols = w.Quant.Rows, w.Quant.Cols
	}
	if err := Grow(p.Device, buf, t, rows*cols); err != nil {
		return kernels.Mat{}, fmt.Errorf("expanding %s: %w", w.Name, err)
	}

	m := kernels.MatOf(*buf, rows, cols)
	if w.Quant != nil {
		w.Quant.Expand(m, p.threads)
	} else {
		p.ops.Expand(m, w.Sparse)
	}

	return m, nil
}

// linearBackward computes the gradients of what linear does with x, for the gradient dy of its result: those of its
// parameters where they are wanted, and that of x in dx, or added to it, unless dx is absent.
func (p *Pass) linearBackward(dx, dy, x kernels.Mat, l *Linear, accumulate bool) error {
	// dW = dyᵀ·x, db = Σ dy over the rows, dx = dy·W.
	if g := p.grad(l.W); !g.IsZero() {
		if l.Transposed {
			p.Outer(g, x, dy, l.W, false)
		} else {
			p.Outer(g, dy, x, l.W, false)
		}
	}

	if g := p.grad(l.B); !g.IsZero() {
		p.ops.ColSum(g, dy)
	}

	if !dx.IsZero() {
		w, err := p.dense(l.W)
		if err != nil {
			return err
		}

		o := kernels.MatMul{Accumulate: accumulate, Precision: p.Precision}
		if l.Transposed {
			p.ops.MatMulNT(dx, dy, w, o)
		} else {
			p.ops.MatMulNN(dx, dy, w, o)
		}
	}

	return p.deltasBackward(dx, dy, x, l)
}

// Outer computes the gradient aᵀ·b of the matrix w, or adds it to g. Only for a BF16 matrix may factors be rounded.
func (p *Pass) Outer(g, a, b kernels.Mat, w *Weight, accumulate bool) {
	o := kernels.MatMul{Accumulate: accumulate}
	if w.DType() == kernels.BF16 {
		o.Precision = p.Precision
	}
	p.ops.MatMulTN(g, a, b, o)
}

// deltasBackward lets the deltas add to dx and to their own gradients.
func (p *Pass) deltasBackward(dx, dy, x kernels.Mat, l *Linear) error {
	if dx.IsZero() {
		if !l.deltasTrain() {
			return nil
		}

		dx = p.work(gDelta, x.Rows, l.In) // what is added to it is not needed
		if err := p.Zero(dx); err != nil {
			return err
		}
	}

	for _, d := range l.Deltas {
		if err := d.Backward(x, dy, dx); err != nil {
			return err
		}
	}

	return nil
}

func (l *Linear) deltasTrain() bool {
	for _, d := range l.Deltas {
		if d.Trains() {
			return true
		}
	}
	return false
}

// Remove takes the latest delta off that fits.
func (l *Linear) Remove(fits func(Delta) bool) {
	for i := len(l.Deltas) - 1; i >= 0; i-- {
		if fits(l.Deltas[i]) {
			l.Deltas = slices.Delete(slices.Clone(l.Deltas), i, i+1)
			return
		}
	}
}

// Trains reports whether a delta of the block has parameters whose gradients are wanted.
func (b *Block) Trains() bool {
	return slices.ContainsFunc(b.Linears(), (*Linear).deltasTrain)
}

// trains reports whether any of the linears has parameters, its own or those of deltas, whose gradients are wanted.
func (p *Pass) trains(ls ...*Linear) bool {
	for _, l := range ls {
		if l != nil && (p.wants(Norm{W: l.W, B: l.B}) || l.deltasTrain()) {
			return true
		}
	}
	return false
}

// wants reports whether the gradient of any parameter of some norms is wanted.
func (p *Pass) wants(ns ...Norm) bool {
	for _, n := range ns {
		if !p.grad(n.W).IsZero() || !p.grad(n.B).IsZero() ||
			slices.ContainsFunc(n.Rest, func(w *Weight) bool { return !p.grad(w).IsZero() }) {
			return true
		}
	}
	return false
}
