package edit

import (
	"math"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm"
)

// LyapLock (arXiv 2505.15702): the damage that edits may do in the long run is a constraint, kept by a virtual queue.
//
// The damage of a matrix W is D = tr((W - W₀)·C·(W - W₀)ᵀ), the mean change of the values of ordinary keys. With D₁
// that of the first batch, the budget is B = budget·D₁. The queue Z starts at √B, and after every batch
// becomes max(Z + (D - B)/√B, √B). The next batch is written with C weighed by w·α, w = Z/√B, and with all
// earlier facts G = [K Kp] and what the layer has given for them since, V:
//
//	min ‖W'·G - V‖² + w·α·tr((W' - W₀)·C·(W' - W₀)ᵀ)      W' = W₀ + (V - W₀·G)·Gᵀ(w·α·C + G·Gᵀ)⁻¹
//
// The published code solves for W' - W with the sums W₀·C, Kp·Kpᵀ and Vp·Kpᵀ, which is the same. A first batch is
// MEMIT's. Its weight of C beside the others has no scale of its own, so D is that of C as it is collected.

// renewal is W' - W for a batch of keys in rows, whose values are to change by resid, in float32, which is what a
// journal keeps of a dense delta.
func (e *Editing) renewal(block int, l lm.Linear, keys, resid linalg.Matrix) (linalg.Matrix, error) {
	w, base, err := e.since(l)
	if err != nil {
		return base, err
	}

	// V: what the layer gives now for the new keys and shall give, and what it gave for the earlier ones.
	now := linalg.New(keys.Rows, l.Out)
	e.solver.Mul(now, keys, w.sum, linalg.Product{TransB: true})
	for i, v := range resid.Data {
		now.Data[i] += v
	}
	all, values := stack(keys, e.past.keys[block]), stack(now, e.past.values[block])

	weight := 1.0
	if q, ok := e.past.queues[block]; ok && q.First > 0 {
		weight = q.Length / math.Sqrt(e.hp.Budget*q.First)
	}
	s, _, err := e.weighed(block, all, weight)
	if err != nil {
		return s, err
	}

	// V - W₀·G, and from it W' - W.
	e.solver.Mul(values, all, base, linalg.Product{TransB: true, Minus: true, Accumulate: true})
	d := linalg.New(l.Out, l.In)
	e.solver.Mul(d, values, s, linalg.Product{TransA: true})
	for i, v := range d.Data {
		d.Data[i] = float64(float32(base.Data[i] + v - w.sum.Data[i]))
	}

	return d, nil
}

// account notes what the layer gives for the facts of a batch, and the damage.
func (e *Editing) account(c *change, block int, l lm.Linear, keys linalg.Matrix) error {
	w, base, err := e.since(l)
	if err != nil {
		return err
	}

	cov, err := e.cov.Moments(block, l.In)
	if err != nil {
		return err
	}

	values := linalg.New(keys.Rows, l.Out)
	e.solver.Mul(values, keys, w.sum, linalg.Product{TransB: true})
	c.past.keys[block], c.past.values[block] = keys, values

	d, dc := w.sum.Clone(), linalg.New(l.Out, l.In)
	for i, v := range base.Data {
		d.Data[i] -= v
	}
	e.solver.Mul(dc, d, cov, linalg.Product{})
	damage := 0.0
	for i, v := range d.Data {
		damage += v * dc.Data[i]
	}

	q, ok := e.past.queues[block]
	if !ok {
		q = queue{First: damage, Length: math.Sqrt(e.hp.Budget * damage)}
	}
	least := math.Sqrt(e.hp.Budget * q.First)
	if least > 0 {
		q.Length = max(q.Length+(damage-least*least)/least, least)
	}
	c.past.queues[block] = q

	return nil
}

// since is a matrix under care, and its values before all edits.
func (e *Editing) since(l lm.Linear) (*weight, linalg.Matrix, error) {
	w, err := e.weight(l.Name)
	if err != nil {
		return nil, linalg.Matrix{}, err
	}

	base := &weight{linear: w.linear, dtype: w.dtype, base: w.base}
	err = base.reset()
	return w, base.sum, err
}
