package layer

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// inner is where an MLP keeps what is inside it: slots of the tape, from a row on.
type inner struct{ gate, up, mid, row int }

var (
	plainInner  = inner{gate: sGate, up: sUp, mid: sMid}
	sharedInner = inner{gate: sSharedGate, up: sSharedUp, mid: sSharedMid}
)

// inside is a matrix inside an MLP.
func (p *Pass) inside(slot, row, rows, cols int) kernels.Mat {
	m := p.mat(slot, rows, cols)
	m.Off += row * cols
	return m
}

// mlp computes the feed-forward branch of h, or adds it to dst.
func (p *Pass) mlp(b *Block, dst, h kernels.Mat, accumulate bool) error {
	if b.Mixture {
		if !accumulate && !dst.IsZero() {
			if err := p.Zero(dst); err != nil {
				return err
			}
		}
		return p.mixture(b, dst, h)
	}
	return p.feedForward(dst, h, &b.Experts[0], plainInner, accumulate)
}

// mlpBackward computes the gradients of the feed-forward branch for the gradient dy of its result; that of its
// input h in dh, or added to it, unless dh is absent.
func (p *Pass) mlpBackward(b *Block, dh, dy, h kernels.Mat, accumulate bool) error {
	if b.Mixture {
		return p.mixtureBackward(b, dh, dy, h, accumulate)
	}
	return p.feedForwardBackward(dh, dy, h, &b.Experts[0], plainInner, accumulate)
}

// feedForward computes dst (+)= down(act(gate(x))·up(x)), or down(act(up(x))).
func (p *Pass) feedForward(dst, x kernels.Mat, f *MLP, in inner, accumulate bool) error {
	gate, up, mid := p.insides(x.Rows, f, in)
	switch {
	case f.GateUp != nil: // one product for both halves
		if err := p.linear(gate, x, f.GateUp, false); err != nil {
			return err
		}
	case f.Gate != nil:
		if err := p.linear(gate, x, f.Gate, false); err != nil {
			return err
		}
		fallthrough
	default:
		if err := p.linear(up, x, f.Up, false); err != nil {
			return err
		}
	}

	if err := p.activate(mid, gate, up, f); err != nil {
		return err
	}
	return p.linear(dst, mid, f.Down, accumulate)
}

// activate computes what the last product of an MLP sees from what the products before it gave.
func (p *Pass) activate(mid, gate, up kernels.Mat, f *MLP) error {
	switch act := p.activation; {
	case f.GateUp != nil && p.Config.Arch.Gate == arch.ClampedGate: // gpt-oss clamps both halves and interleaves them
		return p.clampedGate(mid, gate)
	case f.GateUp != nil: // the first columns are the gate's
		p.ops.Gate(mid, gate.ColRange(0, mid.Cols), gate.ColRange(mid.Cols, gate.Cols), act)
	case f.Gate != nil:
		p.ops.Gate(mid, gate, up, act)
	default:
		p.ops.Activate(mid, up, act)
	}

	return nil
}

// insides are the matrices inside an MLP; gate is twice as wide where gate and up are one.
func (p *Pass) insides(rows int, f *MLP, in inner) (gate, up, mid kernels.Mat) {
	n := f.Down.In
	wide := n
	if f.GateUp != nil {
		wide = 2 * n
	}
	return p.inside(in.gate, in.row, rows, wide), p.inside(in.up, in.row, rows, n), p.inside(in.mid, in.row, rows, n)
}

// feedForwardBackward computes the gradients of feedForward. Those of gate and up replace them on the tape.
func (p *Pass) feedForwardBackward(dx, dy, x kernels.Mat, f *MLP, in inner, accumulate bool) error {
	gate, up, mid := p.insides(x.Rows, f, in)
	if p.t.again[in.mid] {
		if err := p.activate(mid, gate, up, f); err != nil {
			return err
		}
	}

	if dx.IsZero() && !p.trains(f.Gate, f.Up, f.GateUp) { // all that is wanted lies in the last product
		return p.linearBackward(kernels.Mat{}, dy, mid, f.Down, false)
	}

	dmid := p.work(gMid, mid.Rows, mid.Cols)
	if err := p.linearBackward(dmid, dy, mid, f.Down, false); err != nil {
		return err
	}

	// gate and up are read for the last time here, so their gradients may lie in their place: as wide as they are, they
	// would be the largest matrices of the backward pass.
	switch act := p.activation; {
	case f.GateUp != nil && p.Config.Arch.Gate == arch.ClampedGate:
		if err := p.clampedGateBackward(gate, dmid); err != nil {
			return err
		}
		return p.linearBackward(dx, gate, x, f.GateUp, accumulate)
	case f.GateUp != nil:
		g, u := gate.ColRange(0, mid.Cols), gate.ColRange(mid.Cols, gate.Cols)
		p.ops.GateBackward(g, u, dmid, g, u, act)
		return p.linearBackward(dx, gate, x, f.GateUp, accumulate)
	case f.Gate != nil:
		p.ops.GateBackward(gate, up, dmid, gate, up, act)
		if err := p.linearBackward(dx, gate, x, f.Gate, accumulate); err != nil {
			return err
		}
		return p.linearBackward(dx, up, x, f.Up, true)
	}

	p.ops.ActivateBackward(dmid, dmid, up, p.activation)
	return p.linearBackward(dx, dmid, x, f.Up, accumulate)
}
