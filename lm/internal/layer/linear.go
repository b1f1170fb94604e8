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
	if len(l.Deltas) == 0 && p.Company == Any {
		return p.multiply(dst, x, l, accumulate)
	}

	// A delta changes what the linear gives, not what the linear is added to (DoRA scales it, for one), so it must see
	// that alone. Rows that may have company with such a delta are added in the same way without one.
	y := dst
	if accumulate {
		y = p.mat(sDelta, x.Rows, l.Out)
	}
	if err := p.multiply(y, x, l, false); err != nil {
		return err
	}

	for _, d := range l.Deltas {
		if err := p.rowwise(y, x, nil, true, func(y, x kernels.Mat) error { return d.Forward(x, y) }); err != nil {
			return err
		}
	}
	if err := p.overlay(y, x, l); err != nil {
		return err
	}

	if accumulate {
		p.ops.Add(dst, dst, y, 1)
	}

	return nil
}

func (p *Pass) multiply(dst, x kernels.Mat, l *Linear, accumulate bool) error {
	return p.rowwise(dst, x, l.W, accumulate, func(dst, x kernels.Mat) error {
		return p.multiplyRows(dst, x, l, accumulate)
	})
}

// multiplyRows is multiply for all rows at once.
func (p *Pass) multiplyRows(dst, x kernels.Mat, l *Linear, accumulate bool) error {
	o := kernels.MatMul{Bias: l.B.Mat(), Accumulate: accumulate, Precision: p.Precision}
	if !l.W.Sparse.IsZero() {
		p.ops.MatMulSparse(dst, x, l.W.Sparse, o)
		return nil
	}
	if !l.W.Coded.IsZero() {
		p.ops.MatMulQuantised(dst, x, l.W.Coded, o)
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

	rows, cols := w.Sparse.Rows(), w.Sparse.Cols
	if w.Quant != nil {
		rows, cols = w.Quant.Rows, w.Quant.Cols
	}
	if err := p.scratch.expandTo(p.Setup, w.DType(), rows*cols, w); err != nil {
		return kernels.Mat{}, err
	}

	m := kernels.MatOf(p.scratch.expanded, rows, cols)
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
		o := kernels.MatMul{Accumulate: accumulate, Precision: p.Precision}
		if err := p.inputBackward(dx, dy, l, o); err != nil {
			return err
		}
	}

	return p.deltasBackward(dx, dy, x, l)
}

// inputBackward computes dx = dy·W for a linear.
func (p *Pass) inputBackward(dx, dy kernels.Mat, l *Linear, o kernels.MatMul) error {
	if !l.W.Coded.IsZero() {
		return p.scratch.ProductBackward(p.Setup, dx, dy, l.W, o)
	}

	w, err := p.dense(l.W)
	switch {
	case err != nil:
		return err
	case l.Transposed:
		p.ops.MatMulNT(dx, dy, w, o)
	default:
		p.ops.MatMulNN(dx, dy, w, o)
	}

	return nil
}

// Product computes dst = x·Wᵀ, with the weight as it is there.
func (s *Setup) Product(dst, x kernels.Mat, w *Weight, o kernels.MatMul) {
	if !w.Coded.IsZero() {
		s.ops.MatMulQuantised(dst, x, w.Coded, o)
		return
	}
	s.ops.MatMulNT(dst, x, w.Value, o)
}

// Lookup writes rows of a table, times scale, with the table as it is there.
func (s *Setup) Lookup(dst kernels.Mat, w *Weight, ids []int32, scale float32) {
	if !w.Coded.IsZero() {
		s.ops.GatherQuantised(dst, w.Coded, ids, scale)
		return
	}
	s.ops.Gather(dst, w.Value, ids, scale)
}

// panelBytes is about how much of a weight in few bits is expanded at a time in the backward pass: little beside the
// weights of a block, and enough rows that a product with them is worth its start.
const panelBytes = 16 << 20

// ProductBackward computes dx = dy·W, the gradient of what [Setup.Product] multiplies. A weight in few bits is expanded
// some rows at a time, so that the table of a large vocabulary never lies in memory as floats.
func (sc *Scratch) ProductBackward(s *Setup, dx, dy kernels.Mat, w *Weight, o kernels.MatMul) error {
	if w.Coded.IsZero() {
		s.ops.MatMulNN(dx, dy, w.Value, o)
		return nil
	}

	rows, cols := w.Coded.Rows(), w.Coded.Cols
	step := min(max(panelBytes/4/cols, 64), rows)
	if err := sc.expandTo(s, kernels.F32, step*cols, w); err != nil {
		return err
	}

	for lo := 0; lo < rows; lo += step {
		hi := min(lo+step, rows)
		panel := kernels.MatOf(sc.expanded, hi-lo, cols)
		s.ops.ExpandQuantised(panel, w.Coded.RowRange(lo, hi))
		s.ops.MatMulNN(dx, dy.ColRange(lo, hi), panel, o)
		o.Accumulate = true
	}

	return nil
}

// expandTo makes room for n elements of what a weight expands to.
func (sc *Scratch) expandTo(s *Setup, t kernels.DType, n int, w *Weight) error {
	// One buffer for all weights: no two are wanted at a time.
	buf := &sc.expanded
	if *buf != nil && (*buf).DType != t {
		(*buf).Free()
		*buf = nil
	}
	if err := Grow(s.Device, buf, t, n); err != nil {
		return fmt.Errorf("expanding %s: %w", w.Name, err)
	}
	return nil
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
