package optim

import (
	"errors"
	"math"
)

// AdamWOptions configures [NewAdamW].
type AdamWOptions struct {
	Beta1 float64 // decay of the mean gradient; 0 means 0.9
	Beta2 float64 // decay of the mean squared gradient; 0 means 0.999
	Eps   float64 // added to the root of the corrected mean square; 0 means 1e-8
	// fraction of the value, times the learning rate, that a step takes away; default 0 (torch's own is 0.01)
	WeightDecay float64
	Master      bool // keep float32 copies of values that are not F32
	Threads     int  // CPU threads; 0: one for each processor
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), step for step as
// torch.optim.AdamW:
//
//	θ ← θ·(1 - η·λ);  m ← m + (1-β₁)(g - m);  v ← β₂·v + (1-β₂)·g²
//	θ ← θ - η/(1-β₁ᵗ) · m / (√v / √(1-β₂ᵗ) + ε)
//
// in float32, with the scalars computed in float64. State: exp_avg, exp_avg_sq, and master.
type AdamW struct {
	o AdamWOptions
	table
}

// NewAdamW returns an AdamW without state. The error lists every option out of range.
func NewAdamW(o AdamWOptions) (*AdamW, error) {
	var errs []error
	o.Beta1 = number("beta1", o.Beta1, 0.9, 0, 1, &errs)
	o.Beta2 = number("beta2", o.Beta2, 0.999, 0, 1, &errs)
	o.Eps = number("eps", o.Eps, 1e-8, 0, inf, &errs)
	o.WeightDecay = number("weight decay", o.WeightDecay, 0, 0, inf, &errs)
	return &AdamW{o, table{kinds: []string{"exp_avg", "exp_avg_sq", "master"}}}, errors.Join(errs...)
}

// adamStep is one step's scalars, and the slices of one stretch. The assembly knows the offsets.
type adamStep struct {
	p, m, v, g *float32
	n          int

	scale, decay, rise1, beta2, rise2, root2, eps, step float32
}

// Apply implements [Optimizer].
func (a *AdamW) Apply(p Param, s Step) error {
	slot, err := a.slot(p)
	if err != nil {
		return err
	}

	slot.step++
	k := a.step(p, s, slot.step)
	m := slot.bufs["exp_avg"]
	v := slot.bufs["exp_avg_sq"]
	g := p.grad()
	values{p.Value, slot.bufs["master"]}.change(a.o.Threads, func(lo int, p []float32) {
		k.run(p, m[lo:][:len(p)], v[lo:][:len(p)], g[lo:][:len(p)])
	})

	return nil
}

// step gives the numbers of step n of a parameter.
func (a *AdamW) step(p Param, s Step, n int64) adamStep {
	t, lr := float64(n), p.rate(s)
	return adamStep{
		scale: s.scale(), decay: float32(1 - lr*p.decay(a.o.WeightDecay)), rise1: float32(1 - a.o.Beta1),
		beta2: float32(a.o.Beta2), rise2: float32(1 - a.o.Beta2), root2: float32(math.Sqrt(1 - math.Pow(a.o.Beta2, t))),
		eps: float32(a.o.Eps), step: float32(-lr / (1 - math.Pow(a.o.Beta1, t))),
	}
}

func (a *AdamW) slot(p Param) (*slot, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	n := p.Value.Len()
	return a.withMaster(p, a.o.Master, map[string]int{"exp_avg": n, "exp_avg_sq": n})
}

// withMaster is of, with a master copy if wanted.
func (t *table) withMaster(p Param, wanted bool, sizes map[string]int) (*slot, error) {
	wanted = wanted && p.Value.DType().Size() < 4
	if wanted {
		sizes["master"] = p.Value.Len()
	}
	s, err := t.of(p, sizes)
	if err == nil && wanted && s.step == 0 && !t.restored {
		s.bufs["master"] = newMaster(p.Value)
	}
	return s, err
}

// portable is the step in plain Go. Conversions keep the compiler from fusing operations, so that every
// processor gives the same bits.
func (k *adamStep) portable(p, m, v, g []float32) {
	m, v, g = m[:len(p)], v[:len(p)], g[:len(p)]
	for i, x := range p {
		d := g[i] * k.scale
		mean := m[i] + float32(k.rise1*float32(d-m[i]))
		square := float32(v[i]*k.beta2) + float32(float32(k.rise2*d)*d)
		m[i], v[i] = mean, square
		root := float32(math.Sqrt(float64(square)))
		p[i] = float32(x*k.decay) + float32(k.step*mean)/(root/k.root2+k.eps)
	}
}
