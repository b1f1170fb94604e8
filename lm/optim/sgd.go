package optim

import (
	"errors"
	"fmt"
)

// SGDOptions configures [NewSGD].
type SGDOptions struct {
	Momentum    float64 // default 0: none
	Dampening   float64 // of the gradient that enters the momentum; default 0
	Nesterov    bool    // needs momentum, and no dampening
	WeightDecay float64 // times the value, is added to the gradient; default 0
	Master      bool    // keep float32 copies of values that are not F32
	Threads     int     // CPU threads; 0: one for each processor
}

// SGD is gradient descent, step for step as torch.optim.SGD: with g ← g + λ·θ and, from the second step on, b ←
// μ·b + (1-τ)·g (b ← g at the first), the value loses η times g, b, or with Nesterov g + μ·b. State:
// momentum_buffer, if there is momentum, and master.
type SGD struct {
	o SGDOptions
	table
}

// NewSGD returns an SGD without state. The error lists every option out of range.
func NewSGD(o SGDOptions) (*SGD, error) {
	var errs []error
	o.Momentum = number("momentum", o.Momentum, 0, 0, inf, &errs)
	o.WeightDecay = number("weight decay", o.WeightDecay, 0, 0, inf, &errs)
	o.Dampening = number("dampening", o.Dampening, 0, 0, inf, &errs)
	if o.Nesterov && (o.Momentum == 0 || o.Dampening != 0) {
		errs = append(errs, fmt.Errorf("nesterov with momentum %g and dampening %g: want momentum above 0 and "+
			"no dampening", o.Momentum, o.Dampening))
	}
	return &SGD{o, table{kinds: []string{"momentum_buffer", "master"}}}, errors.Join(errs...)
}

// Apply implements [Optimizer].
func (d *SGD) Apply(p Param, s Step) error {
	if err := p.check(); err != nil {
		return err
	}

	sizes := map[string]int{}
	if d.o.Momentum != 0 {
		sizes["momentum_buffer"] = p.Value.Len()
	}

	slot, err := d.withMaster(p, d.o.Master, sizes)
	if err != nil {
		return err
	}

	slot.step++
	k := sgdStep{
		scale: s.scale(), decay: float32(p.decay(d.o.WeightDecay)), rate: float32(-p.rate(s)),
		momentum: float32(d.o.Momentum), rise: float32(1 - d.o.Dampening), nesterov: d.o.Nesterov,
	}

	if slot.step == 1 {
		k.rise = 1
	}

	b, g := slot.bufs["momentum_buffer"], p.grad()
	values{p.Value, slot.bufs["master"]}.change(d.o.Threads, func(lo int, p []float32) {
		if b == nil {
			k.plain(p, g[lo:])
			return
		}
		k.withMomentum(p, b[lo:], g[lo:])
	})

	return nil
}

// sgdStep is one step's scalars.
type sgdStep struct {
	scale, decay, rate, momentum, rise float32
	nesterov                           bool
}

func (k sgdStep) plain(p, g []float32) {
	g = g[:len(p)]
	for i, x := range p {
		d := float32(g[i]*k.scale) + float32(k.decay*x)
		p[i] = x + float32(k.rate*d)
	}
}

func (k sgdStep) withMomentum(p, b, g []float32) {
	b, g = b[:len(p)], g[:len(p)]
	for i, x := range p {
		d := float32(g[i]*k.scale) + float32(k.decay*x)
		m := float32(b[i]*k.momentum) + float32(d*k.rise)
		b[i] = m
		if k.nesterov {
			m = d + float32(k.momentum*m)
		}

		p[i] = x + float32(k.rate*m)
	}
}
