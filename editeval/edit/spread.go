package edit

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm/arch"
)

// Closed-form edits of several layers: MEMIT and its successors, PMET, EMMET, AlphaEdit, LyapLock.
//
// A transformer's MLP is read as a memory: its down-projection W maps a key k (what the MLP makes of the subject's last
// token) to a value. A batch of n facts has keys K [in, n], and for each a value is found by gradient descent that
// makes the model say the target (package optimize). R [out, n] is a layer's part of what is missing. W should
// change by ΔW·K ≈ R and leave the values of all other keys as they are, of which only the covariance C = E[k·kᵀ] over
// ordinary text is known, and the keys Kp of earlier edits. With α the methods' weight of C:
//
//	MEMIT, PMET   min ‖ΔW·K - R‖² + α·tr(ΔW·C·ΔWᵀ)       ΔW = R·Kᵀ(α·C + K·Kᵀ)⁻¹
//	  accumulate  … + ‖ΔW·Kp‖²                           ΔW = R·Kᵀ(α·C + Kp·Kpᵀ + K·Kᵀ)⁻¹
//	EMMET         min tr(ΔW·A·ΔWᵀ) with ΔW·K = R          ΔW = R·(KᵀA⁻¹K + λI)⁻¹·KᵀA⁻¹
//	AlphaEdit     min ‖ΔW·P·K - R‖² + ‖ΔW·P·Kp‖² + L2·‖ΔW·P‖²,  ΔW ← ΔW·P
//	LyapLock      min ‖W'·[K Kp] - [V Vp]‖² + w·tr((W' - W₀)·C·(W' - W₀)ᵀ)
//
// AlphaEdit does not weigh what is to be preserved but forbids to touch it: P projects onto the directions that
// ordinary keys hardly use (the null space of C: eigenvectors of small eigenvalues), so that ΔW·P·k is next to nothing
// for them, however many edits follow.
//
// MEMIT forgets Kp, so that every batch may undo the ones before it. With them ("accumulate": memit-seq, encore),
// batches come out as one large batch would if keys and values did not move meanwhile (arXiv 2605.26670). LyapLock
// writes all facts into the matrix as it was before any edit, W₀, with a weight w that grows with the damage; see
// lyaplock.go.
//
// All but the last come out as ΔW = R·Sᵀ with S [in, n] (function shares; in the code keys are rows, so everything is
// transposed). By Woodbury's identity a batch is a system of as many unknowns as there are keys: C is factored,
// or its eigenvectors are computed, once for each layer. EMMET alone factors a
// matrix [in, in] for each batch, A = weight·C + norm_lambda·I.
//
// Layers are edited from the lowest up, each taking an equal part of what is left (PMET: the root of it), and keys and
// residuals are measured anew on the model with the layers below it edited, so that one layer's shortfall is the next
// one's task.
//
// Everything is float64; only the weight that is stored is rounded to its type.

// absorbed is the fraction of an edit that an automatic weight of the covariance lets through.
const absorbed = 0.95

// spread writes a batch of facts into several layers, from the lowest to the highest, on the progressively
// edited model (MEMIT: memit_main.py; PMET: arXiv 2308.08742; EMMET: arXiv 2403.14236; AlphaEdit: arXiv
// 2410.02355; ENCORE: arXiv 2502.01636; LyapLock: arXiv 2505.15702). Each layer takes an equal fraction of what is
// left (PMET: the root of it) of the way to the values.
func spread(ctx context.Context, e *Editing, reqs []Encoded) (*change, error) {
	top := e.hp.Layers[len(e.hp.Layers)-1]
	d := optimize.Descent{Params: e.hp.search(), Sites: []optimize.Site{{Block: top}}}
	if e.method.form == rooted {
		var err error
		if d, err = e.twoSites(top); err != nil {
			return nil, err
		}
	}

	// Values are searched for once, on the model as it is, at the highest layer; the layers below share the way to
	// them.
	goals, err := d.Run(ctx, e.m, searchable(reqs))
	if err != nil {
		return nil, err
	}

	ok, left, err := searched(goals, reqs)
	if err != nil {
		return nil, err
	}

	c := &change{
		goals: goals, past: newPast(),
		keys: map[int]linalg.Matrix{}, resid: map[int]linalg.Matrix{},
	}
	if e.hp.Anchor {
		if err := e.anchor(ctx, c, d, reqs); err != nil {
			return nil, err
		}
	}

	for i, block := range e.hp.Layers {
		if err := e.layer(ctx, c, i, block, ok, left); err != nil {
			return nil, err
		}
	}

	if e.method.form == projected || e.hp.Accumulate {
		err = e.remember(ctx, c, left)
	}

	return c, err
}

// twoSites are those of PMET: what attention and what the MLP add.
func (e *Editing) twoSites(top int) (optimize.Descent, error) {
	o, err := site.Linear(e.m, top, arch.O)
	if err != nil {
		return optimize.Descent{}, err
	}

	down, err := site.Linear(e.m, top, arch.Down)
	if err != nil {
		return optimize.Descent{}, err
	}

	return optimize.Descent{
		Params: e.hp.search(),
		Sites:  []optimize.Site{{Linear: down.Name, Block: top}, {Linear: o.Name, Block: top}}, PMET: true,
	}, nil
}

// layer writes one layer's part of the edits.
func (e *Editing) layer(ctx context.Context, c *change, i, block int, goals []*optimize.Goal, reqs []Encoded) error {
	top := e.hp.Layers[len(e.hp.Layers)-1]
	l, err := site.Linear(e.m, block, arch.Down)
	if err != nil {
		return err
	}

	s, err := site.Look(ctx, e.m, places(reqs), []int{block, top})
	if err != nil {
		return err
	}

	now := s.Stream[top]
	if e.method.form == rooted {
		now = s.Values[top]
	}

	fraction := 1 / float64(len(e.hp.Layers)-i)
	if e.method.form == rooted {
		fraction = math.Sqrt(fraction)
	} else {
		// What is missing is missing in the stream, to which a branch may be added with a factor.
		fraction /= float64(e.m.Config().ResidualScale)
	}

	// The key of a fact is the mean over its prompts (with different prefixes in front); the residual is measured at
	// its first, bare one.
	keys, resid := linalg.New(len(reqs), l.In), linalg.New(len(reqs), now.Cols)
	for n, at := 0, 0; n < len(reqs); n++ {
		size := len(reqs[n].Prompts)
		copy(keys.Row(n), site.GroupMean(site.Vectors(s.Keys[block], at, at+size), reqs[n].Groups))
		copy(resid.Row(n), site.Scaled(fraction, site.Minus(goals[n].Value(), now.Row(at))))
		at += size
	}

	d := Delta{Linear: l.Name}
	if e.method.form == renewed {
		d.dense, err = e.renewal(block, l, keys, resid)
	} else {
		var right linalg.Matrix
		right, err = e.shares(block, keys)
		d.left, d.right = resid.T(), right.T()
	}
	if err == nil {
		d, err = e.masked(d)
	}
	if err == nil {
		err = (&change{deltas: []Delta{d}}).write(e)
	}
	if err == nil && e.method.form == renewed {
		err = e.account(c, block, l, keys)
	}
	if err != nil {
		return err
	}

	c.deltas = append(c.deltas, d)
	c.keys[block], c.resid[block] = keys, resid
	return nil
}

// write gives the model the deltas of a change, for as long as the method works.
func (c *change) write(e *Editing) error {
	if err := e.finite(c); err != nil {
		return err
	}

	for i := range c.deltas {
		w, err := e.weight(c.deltas[i].Linear)
		if err != nil {
			return err
		}

		w.hold()
		if err := w.add(&c.deltas[i]); err != nil {
			return err
		}
		if _, err := w.store(e.m); err != nil {
			return err
		}
	}

	return nil
}

// shares are the rows A with ΔW = Σ residual·Aᵀ for keys in rows.
func (e *Editing) shares(block int, keys linalg.Matrix) (linalg.Matrix, error) {
	switch e.method.form {
	case equal:
		return e.equality(block, keys)
	case projected:
		return e.projected(block, keys)
	}

	all := keys
	if e.hp.Accumulate {
		all = stack(keys, e.past.keys[block])
	}
	s, _, err := e.weighed(block, all, 1)
	if err != nil {
		return s, err
	}
	return s.Sub(0, keys.Rows, 0, keys.Cols), nil // earlier keys have nothing to be written
}

// weighed is (w·α·C + G·Gᵀ)⁻¹·G for keys G in rows, again in rows, and α.
func (e *Editing) weighed(block int, keys linalg.Matrix, w float64) (linalg.Matrix, float64, error) {
	x, err := e.cov.Solve(block, keys)
	if err != nil {
		return x, 0, err
	}

	// Of a single fact, kᵀC⁻¹k/(kᵀC⁻¹k + λ) of the residual arrives. Without a weight of its own λ is made so that this
	// is the same for any model, whatever the scale of its keys.
	g := e.gram(keys, x)
	lambda := e.hp.Lambda
	if lambda == 0 {
		for i := range g.Rows {
			lambda += g.At(i, i) / float64(g.Rows)
		}
		lambda *= (1 - absorbed) / absorbed
	}

	s, err := e.inner(g, w*lambda, x)
	return s, lambda, err
}

// gram is a·bᵀ.
func (e *Editing) gram(a, b linalg.Matrix) linalg.Matrix {
	g := linalg.New(a.Rows, b.Rows)
	e.solver.Mul(g, a, b, linalg.Product{TransB: true})
	return g
}

// inner is (g + ridge·I)⁻¹·x for a symmetric g: with x = C⁻¹K in rows and g = KᵀC⁻¹K this is (ridge·C +
// K·Kᵀ)⁻¹·K by Woodbury's identity, a solve as small as the batch.
func (e *Editing) inner(g linalg.Matrix, ridge float64, x linalg.Matrix) (linalg.Matrix, error) {
	// Symmetric but for rounding: a factorisation reads one half only, which must not be a matter of which one.
	s := g.Clone()
	for i := range s.Rows {
		for j := range i {
			mean := (s.At(i, j) + s.At(j, i)) / 2
			s.Set(i, j, mean)
			s.Set(j, i, mean)
		}
		s.Set(i, i, s.At(i, i)+ridge)
	}

	if err := e.solver.Cholesky(s, false); err != nil {
		return x, fmt.Errorf("%w: the keys of the batch: %w", ErrStatistics, err)
	}

	x = x.Clone()
	if err := e.solver.CholeskySolve(s, x, false); err != nil {
		return x, fmt.Errorf("%w: the keys of the batch: %w", ErrStatistics, err)
	}

	return x, nil
}

// equality is EMMET's K'(K'ᵀA⁻¹K + λI)⁻¹ with A = weight·C + norm_lambda·I.
func (e *Editing) equality(block int, keys linalg.Matrix) (linalg.Matrix, error) {
	m, err := e.cov.Moments(block, keys.Cols)
	if err != nil {
		return m, err
	}

	a := m.Clone()
	a.Scale(e.hp.Weight)
	for i := range a.Rows {
		a.Set(i, i, a.At(i, i)+e.hp.NormLambda)
	}
	if err := e.solver.Cholesky(a, false); err != nil {
		return a, fmt.Errorf("%w: layer %d: %w", ErrStatistics, block, err)
	}

	x := keys.T()
	if err := e.solver.CholeskySolve(a, x, false); err != nil {
		return x, fmt.Errorf("%w: layer %d: %w", ErrStatistics, block, err)
	}

	x = x.T()
	return e.inner(e.gram(keys, x), e.hp.EmmetLambda, x)
}

// projected is AlphaEdit's (P(K·Kᵀ + Kp·Kpᵀ) + L2·I)⁻¹·P·K = P·G·(L2·I + Gᵀ·P·G)⁻¹, the columns of K, with G = [K Kp].
// The published code solves the left side, [in, in]; the right side is as large as the number of keys. P = B·Bᵀ is
// never formed either: B, the basis, has orthonormal columns, and GᵀPG is the Gram matrix of the keys' coordinates in
// it.
func (e *Editing) projected(block int, keys linalg.Matrix) (linalg.Matrix, error) {
	basis, err := e.nullSpace(block, keys.Cols)
	if err != nil {
		return basis, err
	}

	all := stack(keys, e.past.keys[block])
	low := linalg.New(all.Rows, basis.Cols)
	e.solver.Mul(low, all, basis, linalg.Product{}) // coordinates in the null space

	g := e.gram(low, low)
	for i := range g.Rows {
		g.Set(i, i, g.At(i, i)+e.hp.L2)
	}
	if err := e.solver.Cholesky(g, false); err != nil {
		return g, fmt.Errorf("%w: the keys of the batch: %w", ErrStatistics, err)
	}

	pick := linalg.New(all.Rows, keys.Rows) // the first columns of the inverse: earlier keys have nothing to be written
	for i := range keys.Rows {
		pick.Set(i, i, 1)
	}
	if err := e.solver.CholeskySolve(g, pick, false); err != nil {
		return pick, fmt.Errorf("%w: the keys of the batch: %w", ErrStatistics, err)
	}

	part := linalg.New(keys.Rows, basis.Cols)
	e.solver.Mul(part, pick, low, linalg.Product{TransA: true})
	out := linalg.New(keys.Rows, keys.Cols)
	e.solver.Mul(out, part, basis, linalg.Product{TransB: true})

	return out, nil
}

// spent is the fraction of the trace of C that an automatic null space may hold.
const spent = 0.05

// nullSpace is a basis, in columns, of the directions in which C is small: eigenvalues below the threshold.
func (e *Editing) nullSpace(block, in int) (linalg.Matrix, error) {
	if b, ok := e.null[block]; ok {
		return b, nil
	}

	m, err := e.cov.Moments(block, in)
	if err != nil {
		return m, err
	}

	values, v, err := e.solver.SymEigen(m)
	if err != nil {
		return m, fmt.Errorf("%w: layer %d: %w", ErrStatistics, block, err)
	}

	n := e.nullDim(block, values)
	if n == 0 || n == in {
		return m, fmt.Errorf("%w: layer %d: null_threshold puts %d of %d directions into the null space "+
			"(eigenvalues %g to %g)", ErrOptions, block, n, in, values[0], values[in-1])
	}

	e.null[block] = v.Sub(0, in, 0, n).Clone()
	return e.null[block], nil
}

// nullDim counts the ascending eigenvalues that belong to the null space.
func (e *Editing) nullDim(block int, values []float64) int {
	total := 0.0
	sum := 0.0
	n := 0
	for _, v := range values {
		total += max(v, 0)
	}

	// A threshold that is given decides alone; without one, the smallest eigenvalues that hold a fraction of the trace.
	threshold := math.Inf(1)
	switch t := e.hp.NullThreshold; {
	case len(t) == 1:
		threshold, total = t[0], math.Inf(1)
	case len(t) > 1:
		for i, b := range e.hp.Layers {
			if b == block {
				threshold, total = t[i], math.Inf(1)
			}
		}
	}

	for _, v := range values {
		sum += max(v, 0)
		if v >= threshold || sum > spent*total {
			break
		}
		n++
	}

	return n
}

// remember keeps the keys of a batch, as the edited model has them, so that later batches leave them alone.
func (e *Editing) remember(ctx context.Context, c *change, reqs []Encoded) error {
	s, err := site.Look(ctx, e.m, places(reqs), e.hp.Layers)
	if err != nil {
		return err
	}

	for _, block := range e.hp.Layers {
		keys := linalg.New(len(reqs), s.Keys[block].Cols)
		for n, at := 0, 0; n < len(reqs); n++ {
			copy(keys.Row(n), site.GroupMean(site.Vectors(s.Keys[block], at, at+len(reqs[n].Prompts)), reqs[n].Groups))
			at += len(reqs[n].Prompts)
		}
		c.past.keys[block] = keys
	}

	return nil
}
