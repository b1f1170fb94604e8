package structure

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
)

// Restored says what a matrix gained, as ‖ΔW·X‖²/‖W·X‖² over the calibration text, measured on up to 64 of its outputs.
type Restored struct {
	Name    string         `json:"name"`
	Cut     float64        `json:"cut"`     // without the inputs that went
	Updated float64        `json:"updated"` // with what stays making up for them
	Damping linalg.Damping `json:"damping"`
	// Unreached: no token of the text comes to the expert, whose weights stay as they are.
	Unreached bool `json:"unreached,omitempty"`
}

// damping of the normal equations, of the mean of the diagonal.
const damping = 0.01

// Restore lets the columns that stay of the matrices behind neurons and heads make up for those that went: for each
// output the least squares over what the text brings to the matrix, W·H[:,M]·(H[M,M] + δ)⁻¹ with H = Σ x xᵀ and M what
// stays (FASP, Hu et al., 2025, arXiv:2501.09412). It goes from layer to layer, each measured behind those that are
// narrower already. The matrices of the model change; with a saver, finished layers are written, and what an
// interrupted run has written is taken from there. The plan gets what was gained, the same after an interruption.
func Restore(ctx context.Context, m *lm.Model, calib corpus.Windows, p *Plan, out *lm.Saver) error {
	if p.Width == nil || p.Options.NoRestore {
		return nil
	}

	r := &restoration{m: m, c: m.Config(), p: p, out: out, sequences: len(calib.IDs)}
	if err := r.readRemarks(); err != nil {
		return err
	}
	var err error
	if r.states, err = actstats.NewStates(ctx, m, calib.IDs, batchTokens); err != nil {
		return err
	}
	defer r.states.Free()

	blocks := p.Cut.Blocks(r.c)
	for i, l := range blocks {
		p.Options.Progress(Restoring, int64(i), int64(len(blocks)))
		if err := r.block(ctx, l); err != nil {
			return fmt.Errorf("block %d: %w", l, err)
		}
	}
	p.Options.Progress(Restoring, int64(len(blocks)), int64(len(blocks)))

	return nil
}

// restoration is one under way.
type restoration struct {
	m         *lm.Model
	c         *lm.Config
	p         *Plan
	out       *lm.Saver
	states    *actstats.States
	sequences int
	gained    map[string]Restored // by matrix, of this run and of an interrupted one
}

// readRemarks takes up what an interrupted run has noted with the matrices that it wrote.
func (r *restoration) readRemarks() error {
	r.gained = map[string]Restored{}
	if r.out == nil {
		return nil
	}

	for _, text := range r.out.Remarks() {
		var list []Restored
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("%s: %w: what was noted of its matrices: %w", r.out.Dir(), lm.ErrDamaged, err)
		}
		for _, x := range list {
			r.gained[x.Name] = x
		}
	}

	return nil
}

// keep is which inputs of a matrix stay; nil: all.
func (r *restoration) keep(l lm.Linear) []int { return inputsKept(r.c, r.p.Cut, l) }

// inputsKept is which inputs of a matrix behind neurons or heads a cut leaves; nil: all.
func inputsKept(c *lm.Config, k *arch.Cut, l lm.Linear) []int {
	switch {
	case l.Role == arch.O && c.KVRank > 0:
		return k.Kept(c, "v", l.Block, -1)
	case l.Role == arch.O:
		return k.Kept(c, "q", l.Block, -1)
	case l.Role == arch.SharedDown:
		return k.Kept(c, "shared_inner", l.Block, -1)
	case l.Role == arch.Down && l.Expert >= 0:
		return k.Kept(c, "expert_inner", l.Block, l.Expert)
	case l.Role == arch.Down:
		return k.Kept(c, "inner", l.Block, -1)
	}
	return nil
}

// block restores the matrices of a layer, first attention's, whose output the MLP reads, and runs it.
func (r *restoration) block(ctx context.Context, l int) error {
	var attention, mlp []lm.Linear
	for _, lin := range r.m.Linears(l) {
		switch {
		case r.keep(lin) == nil:
		case lin.Role == arch.O:
			attention = append(attention, lin)
		default:
			mlp = append(mlp, lin)
		}
	}

	var names []string
	done := r.out != nil
	for _, lin := range append(attention, mlp...) {
		names = append(names, lin.Name)
		_, noted := r.gained[lin.Name]
		done = done && noted && r.out.Done(lin.Name)
	}

	switch {
	case len(names) == 0:
	case done:
		if err := r.out.LoadDone(names...); err != nil {
			return err
		}
	default:
		for _, part := range [][]lm.Linear{attention, mlp} {
			if err := r.part(ctx, l, part); err != nil {
				return err
			}
		}
		if err := r.save(names); err != nil {
			return err
		}
	}
	for _, name := range names {
		r.p.Width.Restored = append(r.p.Width.Restored, r.gained[name])
	}

	if err := r.states.Advance(ctx, l, nil, func(int, int) {}); err != nil {
		return err
	}
	r.m.ReleaseBlock(l, r.out != nil)

	return nil
}

// save writes some matrices, and beside them what they gained.
func (r *restoration) save(names []string) error {
	if r.out == nil {
		return nil
	}

	var list []Restored
	for _, name := range names {
		list = append(list, r.gained[name])
	}
	remark, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return r.out.SaveWith(remark, names...)
}

// part measures what reaches some matrices of a layer and restores them.
func (r *restoration) part(ctx context.Context, l int, matrices []lm.Linear) error {
	for _, pass := range (actstats.Plan{Needs: actstats.Hessian}).Passes(matrices) {
		stats, err := actstats.New(r.m.Device(), pass, actstats.Hessian, r.sequences, damping)
		if err != nil {
			return err
		}
		stats.Stop = ctx.Err
		err = r.states.Peek(ctx, l, stats.Hooks(), func(int, int) {})
		if err == nil {
			err = stats.Err()
		}
		for _, lin := range pass {
			if err == nil {
				err = r.matrix(ctx, lin, stats)
			}
		}
		stats.Free()
		if err != nil {
			return err
		}
	}

	return nil
}

// matrix restores one matrix. One of an expert that no token reached keeps its weights.
func (r *restoration) matrix(ctx context.Context, l lm.Linear, stats *actstats.Stats) error {
	own, err := r.m.MutableParam(l.Name)
	if err != nil {
		return err
	}
	stored := own
	if l.Transposed {
		if stored, err = hostmat.Transposed(r.m.Device(), own); err != nil {
			return err
		}
		defer stored.Buf.Free()
	}
	weights, err := hostmat.F32(r.m.Device(), stored)
	if err != nil {
		return err
	}

	keep := r.keep(l)
	w := linalg.FromMat(weights)
	after := linalg.New(w.Rows, w.Cols)
	found := Restored{Name: l.Name}
	if stats.SumOf(l.Name).Tokens() == 0 {
		found.Unreached = true
		copyColumns(after, w, keep)
	} else {
		h, err := stats.HessianOf(stats.SumOf(l.Name), l)
		if err != nil {
			return err
		}
		if err := r.solve(ctx, &found, after, w, h, keep); err != nil {
			return fmt.Errorf("tensor %q: %w", l.Name, err)
		}
	}
	r.gained[l.Name] = found

	values := kernels.MatOf(kernels.NewHost(kernels.F32, w.Rows*w.Cols), w.Rows, w.Cols)
	after.ToF32(values)
	if err := hostmat.Store(r.m.Device(), own, values, l.Transposed); err != nil {
		return err
	}

	return r.m.Device().Ops().Sync()
}

// copyColumns copies those that stay.
func copyColumns(to, from linalg.Matrix, keep []int) {
	for i := range from.Rows {
		for _, j := range keep {
			to.Set(i, j, from.At(i, j))
		}
	}
}

// solve writes the columns that stay, restored, to after [out, in], which is 0.
func (r *restoration) solve(ctx context.Context, found *Restored, after, w, h linalg.Matrix, keep []int) error {
	solver := linalg.Solver{Threads: r.m.Device().Info().Threads, Device: r.m.Device(), Stop: ctx.Err}
	copyColumns(after, w, keep)
	found.Cut = lost(solver, w, after, h)

	n := len(keep)
	among := linalg.New(n, w.Cols) // H[M,:]
	for i, k := range keep {
		copy(among.Row(i), h.Row(k))
	}
	x := linalg.New(n, w.Rows)
	solver.Mul(x, among, w, linalg.Product{TransB: true})

	factor := linalg.New(n, n)
	fill := func(to linalg.Matrix) {
		for i := range n {
			for j, k := range keep {
				to.Set(i, j, among.At(i, k))
			}
		}
	}
	var err error
	found.Damping, err = solver.Damped(factor, damping, fill, func(a linalg.Matrix) error {
		return solver.Cholesky(a, true)
	})
	if err != nil {
		return err
	}
	if err := solver.CholeskySolve(factor, x, true); err != nil {
		return err
	}

	for j, k := range keep {
		for i := range w.Rows {
			after.Set(i, k, x.At(j, i))
		}
	}
	found.Updated = lost(solver, w, after, h)

	return after.CheckFinite()
}

// outputs is how many of a matrix errors are measured on.
const outputs = 64

// lost is the share of the outputs' squares that the difference of two matrices makes, on some of them.
func lost(solver linalg.Solver, w, after, h linalg.Matrix) float64 {
	n := min(outputs, w.Rows)
	before := linalg.New(n, w.Cols)
	change := linalg.New(n, w.Cols)
	for i := range n {
		row := i * w.Rows / n
		copy(before.Row(i), w.Row(row))
		for j, v := range w.Row(row) {
			change.Set(i, j, after.At(row, j)-v)
		}
	}

	all := solver.Energy(before, h)
	if all == 0 {
		return 0
	}
	return solver.Energy(change, h) / all
}
