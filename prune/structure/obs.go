package structure

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// surgeon removes groups of inputs of a matrix W [out, in] one after another, always the group without which the rest,
// fitted anew, errs least (OBS on whole columns: ZipLM, Kurtić et al., 2023, arXiv:2302.04089; OSSCAR, Meng et al.,
// 2024, arXiv:2403.12983). With K = (H + r·diag H)⁻¹ and G = WᵀW, both behind what went, a group S costs
//
//	tr (K_SS)⁻¹·G_SS,  and then  K -= K_:S·A,  W -= W_:S·A  with  A = (K_SS)⁻¹·K_S:
//
// Neither is updated as a whole: K and G are what they were at the beginning, less products of k removed inputs' rows,
// which are kept. That takes some 3·in·k² multiplications and 24 bytes for each of in·k, instead of in²·k.
type surgeon struct {
	solver linalg.Solver
	size   int // inputs of a group
	k, g   linalg.Matrix

	// Of what went, [k, in] each: K is k - uᵀ·u, G is g - aᵀ·b - bᵀ·a.
	u, a, b linalg.Matrix
	used    int
	// The blocks of K and G of every group as they are, one below the other; gone says which have none any more.
	kk, gg linalg.Matrix
	gone   []bool
}

// newSurgeon prepares to remove at most so many groups; h is spoilt.
func newSurgeon(solver linalg.Solver, w, h linalg.Matrix, size, most int) (*surgeon, error) {
	n := w.Cols
	s := &surgeon{solver: solver, size: size, k: linalg.New(n, n), g: linalg.New(n, n), gone: make([]bool, n/size)}
	for i := range n {
		h.Set(i, i, h.At(i, i)*(1+ridges[usual]))
	}
	fill := func(to linalg.Matrix) { to.Copy(h) }
	_, err := solver.Damped(s.k, damping, fill, func(a linalg.Matrix) error { return solver.Cholesky(a, true) })
	if err != nil {
		return nil, err
	}
	if err := solver.CholeskyInverse(s.k, true); err != nil {
		return nil, err
	}
	solver.Mul(s.g, w, w, linalg.Product{TransA: true})

	for _, m := range []*linalg.Matrix{&s.u, &s.a, &s.b} {
		*m = linalg.New(most*size, n)
	}
	s.kk, s.gg = linalg.New(n, size), linalg.New(n, size)
	for at := 0; at < n; at += size {
		s.kk.Sub(at, at+size, 0, size).Copy(s.k.Sub(at, at+size, at, at+size))
		s.gg.Sub(at, at+size, 0, size).Copy(s.g.Sub(at, at+size, at, at+size))
	}

	return s, nil
}

// block is one of a group's.
func (s *surgeon) block(of linalg.Matrix, group int) linalg.Matrix {
	return of.Sub(group*s.size, (group+1)*s.size, 0, s.size)
}

// cost is what the matrix would lose with a group.
func (s *surgeon) cost(group int) (float64, error) {
	if s.size == 1 {
		return s.gg.At(group, 0) / s.kk.At(group, 0), nil
	}
	factor, x := s.block(s.kk, group).Clone(), s.block(s.gg, group).Clone()
	if err := s.solver.Cholesky(factor, true); err != nil {
		return 0, err
	}
	if err := s.solver.CholeskySolve(factor, x, true); err != nil {
		return 0, err
	}
	sum := 0.0
	for i := range s.size {
		sum += x.At(i, i)
	}
	return sum, nil
}

// next is the group that costs least of those that may go, of equal ones the later.
func (s *surgeon) next(may func(group int) bool) (int, error) {
	least := -1
	low := math.Inf(1)
	for group, gone := range s.gone {
		if gone || !may(group) {
			continue
		}
		cost, err := s.cost(group)
		if err != nil {
			return 0, err
		}
		if cost <= low {
			least, low = group, cost
		}
	}
	if least < 0 {
		return 0, fmt.Errorf("%w: what inputs cost", lm.ErrNonFinite)
	}
	return least, nil
}

// rows are those of K or G that belong to a group, as they are.
func (s *surgeon) rows(of linalg.Matrix, group int, pairs ...[2]linalg.Matrix) linalg.Matrix {
	from, to := group*s.size, (group+1)*s.size
	rows := of.Sub(from, to, 0, of.Cols).Clone()
	for _, p := range pairs {
		if s.used > 0 {
			left, right := p[0].Sub(0, s.used, from, to), p[1].Sub(0, s.used, 0, of.Cols)
			s.solver.Mul(rows, left, right, linalg.Product{TransA: true, Minus: true, Accumulate: true})
		}
	}
	return rows
}

// remove takes a group out.
func (s *surgeon) remove(group int) error {
	k := s.rows(s.k, group, [2]linalg.Matrix{s.u, s.u})
	g := s.rows(s.g, group, [2]linalg.Matrix{s.a, s.b}, [2]linalg.Matrix{s.b, s.a})
	from, to := group*s.size, (group+1)*s.size
	n := s.k.Cols

	// K_SS = RᵀR: u = R⁻ᵀ·K_S:, A = R⁻¹·u, b = G_S: - ½·G_SS·A.
	factor := k.Sub(0, s.size, from, to).Clone()
	if err := s.solver.Cholesky(factor, true); err != nil {
		return err
	}
	u, a := s.u.Sub(s.used, s.used+s.size, 0, n), s.a.Sub(s.used, s.used+s.size, 0, n)
	b := s.b.Sub(s.used, s.used+s.size, 0, n)
	u.Copy(k)
	if err := s.solver.TriSolve(factor, u, linalg.Triangle{Upper: true, Trans: true}); err != nil {
		return err
	}
	a.Copy(u)
	if err := s.solver.TriSolve(factor, a, linalg.Triangle{Upper: true}); err != nil {
		return err
	}
	half := g.Sub(0, s.size, from, to).Clone()
	half.Scale(0.5)
	b.Copy(g)
	s.solver.Mul(b, half, a, linalg.Product{Minus: true, Accumulate: true})
	s.used += s.size
	s.gone[group] = true

	if s.size == 1 {
		for j, v := range u.Row(0) {
			s.kk.Data[j] -= v * v
			s.gg.Data[j] -= 2 * a.At(0, j) * b.At(0, j)
		}
		return nil
	}
	for other, gone := range s.gone {
		if gone {
			continue
		}
		from, to := other*s.size, (other+1)*s.size
		uu := u.Sub(0, s.size, from, to)
		aa := a.Sub(0, s.size, from, to)
		bb := b.Sub(0, s.size, from, to)
		less := linalg.Product{TransA: true, Minus: true, Accumulate: true}
		s.solver.Mul(s.block(s.kk, other), uu, uu, less)
		s.solver.Mul(s.block(s.gg, other), aa, bb, less)
		s.solver.Mul(s.block(s.gg, other), bb, aa, less)
	}

	return nil
}

// order removes so many groups and lists them; may says which of those that are left can be the next.
func (s *surgeon) order(ctx context.Context, n int, may func(group int) bool) ([]int, error) {
	var list []int
	for range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		group, err := s.next(may)
		if err != nil {
			return nil, err
		}
		if err := s.remove(group); err != nil {
			return nil, err
		}
		list = append(list, group)
	}
	return list, nil
}

// surgery scores neurons and heads by the order in which they would be removed: those that stay more than all.
func (w *width) surgery(ctx context.Context) error {
	all := half{sequences: len(w.calib.IDs)}
	var err error
	if all.states, err = actstats.NewStates(ctx, w.m, w.calib.IDs, batchTokens); err != nil {
		return err
	}
	defer all.states.Free()

	for l := range w.m.Blocks() {
		var matrices []lm.Linear
		for _, lin := range w.m.Linears(l) {
			if w.removals(lin) > 0 {
				matrices = append(matrices, lin)
			}
		}
		for _, pass := range (actstats.Plan{Needs: actstats.Hessian}).Passes(matrices) {
			if err := w.operate(ctx, &all, l, pass); err != nil {
				return fmt.Errorf("block %d: %w", l, err)
			}
		}
		if err := all.states.Advance(ctx, l, nil, func(int, int) {}); err != nil {
			return err
		}
		w.progress(int64(l+1), int64(w.m.Blocks()))
	}

	return nil
}

// removals is how many neurons, or heads, go of those that a matrix reads.
func (w *width) removals(l lm.Linear) int {
	switch {
	case l.Role == arch.SharedDown:
		return w.c.SharedInner - w.sizes.shared
	case l.Role == arch.Down && l.Expert >= 0:
		return w.c.ExpertInner - w.sizes.expert
	case l.Role == arch.Down:
		return w.c.Inner - w.sizes.inner
	case l.Role == arch.O:
		return w.c.Heads - w.sizes.heads
	}
	return 0
}

// operate finds the order for some matrices of a layer.
func (w *width) operate(ctx context.Context, all *half, l int, pass []lm.Linear) error {
	stats, err := all.measure(ctx, w.m, l, pass)
	if err != nil {
		return err
	}
	defer stats.Free()

	for _, lin := range pass {
		if stats.SumOf(lin.Name).Tokens() == 0 {
			continue // an expert that no token reaches keeps its first neurons
		}
		h, err := stats.HessianOf(stats.SumOf(lin.Name), lin)
		if err == nil {
			err = w.operateOn(ctx, lin, h)
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", lin.Name, err)
		}
	}

	return nil
}

// operateOn finds the order for one matrix, whose Hessian is spoilt.
func (w *width) operateOn(ctx context.Context, l lm.Linear, h linalg.Matrix) error {
	value, err := w.m.Param(l.Name)
	if err != nil {
		return err
	}
	if l.Transposed {
		if value, err = hostmat.Transposed(w.m.Device(), value); err != nil {
			return err
		}
		defer value.Buf.Free()
	}
	if value, err = hostmat.F32(w.m.Device(), value); err != nil {
		return err
	}
	weights := linalg.FromMat(value)
	solver := linalg.Solver{Threads: w.m.Device().Info().Threads, Device: w.m.Device(), Stop: ctx.Err}
	if l.Role != arch.O {
		s, err := newSurgeon(solver, weights, h, 1, w.removals(l))
		if err != nil {
			return err
		}
		order, err := s.order(ctx, w.removals(l), func(int) bool { return true })
		if err != nil {
			return err
		}
		rank(w.s.vector(w.neuronsOf(l)), order)
		return nil
	}

	return w.operateOnHeads(ctx, l, func(size, most int) (*surgeon, error) {
		return newSurgeon(solver, weights, h.Clone(), size, most)
	})
}

// operateOnHeads removes keys' and values' heads with all that share them, then heads of queries, as many of each.
func (w *width) operateOnHeads(ctx context.Context, l lm.Linear, surgeon func(size, most int) (*surgeon, error)) error {
	each := w.c.Heads / w.c.KVHeads
	size := w.channels()
	var values []int
	if n := w.c.KVHeads - w.sizes.kv; n > 0 {
		s, err := surgeon(size*each, n)
		if err != nil {
			return err
		}
		if values, err = s.order(ctx, n, func(int) bool { return true }); err != nil {
			return err
		}
		rank(w.s.kv[l.Block], values)
	}

	left := each - w.sizes.heads/w.sizes.kv // go of each that stays
	if left == 0 {
		return nil
	}
	s, err := surgeon(size, len(values)*each+left*w.sizes.kv)
	if err != nil {
		return err
	}
	for _, v := range values {
		for i := range each {
			if err := s.remove(v*each + i); err != nil {
				return err
			}
		}
	}
	went := make([]int, w.c.KVHeads)
	var order []int
	for range left * w.sizes.kv {
		next, err := s.order(ctx, 1, func(head int) bool { return went[head/each] < left })
		if err != nil {
			return err
		}
		went[next[0]/each]++
		order = append(order, next[0])
	}
	rank(w.s.heads[l.Block], order)

	return nil
}

// rank gives what went its place in the order, and what stays more.
func rank(scores []float64, order []int) {
	for i := range scores {
		scores[i] = float64(len(order))
		if at := slices.Index(order, i); at >= 0 {
			scores[i] = float64(at)
		}
	}
}
