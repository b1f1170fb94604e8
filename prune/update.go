package prune

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/obs"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/prune/internal/admm"
	"github.com/modelcompress/compress/prune/internal/dsnot"
	"github.com/modelcompress/compress/prune/internal/exact"
)

// Damping is what a Hessian's diagonal was given so that it could be factored.
type Damping struct {
	Share float64 `json:"share"` // fraction of the mean of the diagonal
	Added float64 `json:"added"` // to every element of the diagonal
	Tries int     `json:"tries"` // factorisations attempted; 1 if the first damping did
}

// Update says what happens to a matrix besides that weights go. The zero Update is none.
type Update struct {
	Name string `json:"name"` // NoUpdate, SparseGPTUpdate, DSnoT, ADMM or Exact; empty: none, or what the metric implies

	// Damping is the share of the mean of the Hessian's diagonal that is added to it. 0 means 0.01 for
	// SparseGPTUpdate, Exact and for metrics that use the Hessian, where it grows tenfold, up to 1, until the
	// Hessian can be factored, and 0.1 for ADMM.
	Damping float64 `json:"damping,omitempty"`
	// Width is how many columns SparseGPT chooses together; 0 means 128. It counts for metric SparseGPT alone.
	Width int `json:"width,omitempty"`

	// ADMM: MaskSteps of Steps alternations choose the mask anew. With the metric's mask as it is (MaskSteps 0)
	// alternations are of no use: conjugate gradients alone, Polish steps of them, get as far with fewer
	// products. 0 means 20 Steps, or none without MaskSteps, and 20 steps of Polish, or 10 after alternations.
	Steps     int `json:"steps,omitempty"`
	MaskSteps int `json:"mask_steps,omitempty"`
	Polish    int `json:"polish,omitempty"`

	// Guard leaves a matrix without the update where that raises the error of its outputs over the calibration data.
	Guard bool `json:"guard,omitempty"`

	Cycles    int     `json:"cycles,omitempty"`    // DSnoT: exchanges of a row at most; 0 means 50
	Threshold float64 `json:"threshold,omitempty"` // DSnoT: change of an output that is left alone; 0 means 0.1
	SameSign  bool    `json:"same_sign,omitempty"` // DSnoT: never let that change cross zero; with patterns always so
	// DSnoT: end a row's exchange where what would go makes it worse; the published code goes on
	Strict bool `json:"strict,omitempty"`
	MLP    bool `json:"mlp,omitempty"` // DSnoT: refine the MLP's matrices too, not only attention's
}

// The names of updates.
const (
	NoUpdate        = "none"
	SparseGPTUpdate = "sparsegpt" // what stays makes up for what goes, column by column: optimal brain surgeon
	DSnoT           = "dsnot"     // the mask is refined, weights stay (arXiv:2310.08915)
	ADMM            = "admm"      // least squares over what stays, the mask chosen anew on the way if asked for
	Exact           = "exact"     // least squares over what stays, solved for every row (OPTIMA, arXiv:2512.13886)
)

var updates = []string{NoUpdate, SparseGPTUpdate, DSnoT, ADMM, Exact}

func (u *Update) setDefaults(m Metric) {
	if u.Name == "" {
		u.Name = NoUpdate
		// SparseGPT's metric goes with its update, which changes what is scored next.
		if m.sweeps {
			u.Name = SparseGPTUpdate
		}
	}

	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}

	switch {
	case u.Name == ADMM && u.MaskSteps > 0:
		orInt(&u.Steps, max(20, u.MaskSteps))
		orInt(&u.Polish, 10)
	case u.Name == ADMM:
		orInt(&u.Polish, 20)
	case u.Name == DSnoT:
		orInt(&u.Cycles, 50)
		if u.Threshold == 0 {
			u.Threshold = 0.1
		}
	}

	if m.sweeps {
		orInt(&u.Width, obs.Width)
	}

	// A damping without a Hessian would be a fault of the options, so it stays 0.
	if u.Damping == 0 && (u.needs()|m.Needs)&Hessian != 0 {
		u.Damping = linalg.DefaultDamping
		if u.Name == ADMM && m.Needs&Hessian == 0 {
			u.Damping = 0.1
		}
	}
}

func (u Update) needs() Stats {
	switch u.Name {
	case SparseGPTUpdate, ADMM, Exact:
		return Hessian
	case DSnoT:
		return SumSquares | Sums | Variances | sample
	}
	return 0
}

func (u Update) validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: update %s: %s", ErrOptions, cmp.Or(u.Name, NoUpdate), fmt.Sprintf(format, args...))
	}
	switch {
	case u.Name != "" && !slices.Contains(updates, u.Name):
		return fmt.Errorf("update %q: %w; known: %s", u.Name, ErrUnknown, listed(updates))
	case !(u.Damping >= 0 && u.Damping <= linalg.MaxDamping):
		return bad("damping %g; want 0 to %g", u.Damping, linalg.MaxDamping)
	case u.Width < 0 || u.Steps < 0 || u.MaskSteps < 0 || u.Polish < 0 || u.Cycles < 0 || !(u.Threshold >= 0):
		return bad("a negative number, or none")
	case u.Steps > 0 && u.MaskSteps > u.Steps:
		return bad("%d of %d steps choose the mask", u.MaskSteps, u.Steps)
	case u.Name != ADMM && u.Steps+u.MaskSteps+u.Polish > 0:
		return bad("steps, mask steps and polish belong to update %s", ADMM)
	case u.Name != DSnoT && (u.Cycles > 0 || u.Threshold > 0 || u.SameSign || u.Strict || u.MLP):
		return bad("cycles, threshold, same sign, strict and mlp belong to update %s", DSnoT)
	}

	return nil
}

// attention are the roles that DSnoT refines by default.
var attention = []arch.Role{arch.Q, arch.K, arch.V, arch.QKV, arch.QA, arch.QB, arch.KVA, arch.KVB, arch.O}

// change is a matrix on its way: its mask [out, in] on the device, and its new weights, if they change.
type change struct {
	in    Inputs
	plan  selection
	keep  kernels.Mat
	after kernels.Mat // F32 [out, in] in host memory; zero: the weights stay
	t     Tensor      // what is to be reported
}

// update changes the mask or the weights of a matrix.
func (w *walk) update(ctx context.Context, l lm.Linear, c *change, stats *actstats.Stats) error {
	if c.in.lacks(w.o.Update.needs()) {
		return nil
	}

	switch u := w.o.Update; u.Name {
	case SparseGPTUpdate:
		if c.after.IsZero() {
			return w.onHost(c, func(keep kernels.Mat) error {
				return w.sweep(ctx, c, keep, stats.SumOf(l.Name),
					false)
			})
		}
	case ADMM:
		return w.onHost(c, func(keep kernels.Mat) error { return w.leastSquares(ctx, l, c, keep, stats) })
	case Exact:
		return w.onHost(c, func(keep kernels.Mat) error { return w.solveRows(ctx, l, c, keep, stats) })
	case DSnoT:
		if u.MLP || slices.Contains(attention, l.Role) {
			return w.onHost(c, func(keep kernels.Mat) error { return w.refine(c, keep, stats.SampleOf(l.Name)) })
		}
	}

	return nil
}

// onHost lets f read and change the mask in host memory.
func (w *walk) onHost(c *change, f func(keep kernels.Mat) error) error {
	if w.host {
		defer c.keep.Buf.Changed()
		return f(c.keep)
	}

	raw, err := hostmat.Bytes(w.dev, c.keep)
	if err != nil {
		return err
	}

	buf, err := kernels.Wrap(kernels.U8, raw)
	if err != nil {
		return err
	}

	if err := f(kernels.MatOf(buf, c.keep.Rows, c.keep.Cols)); err != nil {
		return err
	}

	return w.dev.Upload(c.keep.Buf, c.keep.Off, raw)
}

// multiply adds x·w to dst, all in host memory.
func (w *walk) multiply(dst, x, y kernels.Mat) {
	if w.host {
		w.ops.MatMulNN(dst, x, y, kernels.MatMul{Accumulate: true})
		return
	}
	hostmat.Multiply(w.dev, dst, x, y)
}

// sweep runs SparseGPT over a matrix; choose lets it write the mask.
func (w *walk) sweep(ctx context.Context, c *change, keep kernels.Mat, a *actstats.Sum, choose bool) error {
	u, err := c.in.Factor()
	if err != nil {
		return err
	}

	if c.after, err = hostmat.F32(w.dev, c.in.W); err != nil {
		return err
	}

	for i := range c.after.Rows {
		for _, j := range a.Dead { // an input that is always 0
			c.after.RowF32(i)[j] = 0
		}
	}

	job := obs.Job{
		W: c.after, U: u, Mask: keep,
		Width:   min(w.o.Update.Width, (c.after.Cols+obs.Width-1)/obs.Width*obs.Width),
		Threads: w.threads, Mul: w.multiply,
		Stop: func(int, int) error { return ctx.Err() },
	}

	if choose && c.plan.pattern.Structured() {
		job.N, job.M = c.plan.pattern.N, c.plan.pattern.M
	} else if choose {
		job.Choose = func(mask, score kernels.Mat) error {
			return w.selectHost(selection{group: Layer, sparsity: c.plan.sparsity}, mask, score)
		}
	}

	if c.t.Loss, err = job.Run(); err != nil {
		return err
	}

	c.dropDead(keep, a)

	// A copy: a pointer into the sum would keep its Hessian for as long as the report lives.
	damping := Damping(a.Damping)
	c.t.Damping = &damping

	return nil
}

// dropDead clears the mask and the new weights of inputs that are always 0.
func (c *change) dropDead(keep kernels.Mat, a *actstats.Sum) {
	c.t.Dead = len(a.Dead)
	for i := range keep.Rows {
		for _, j := range a.Dead {
			keep.RowU8(i)[j] = 0
			c.after.RowF32(i)[j] = 0
		}
	}
}

// leastSquares runs ADMM over a matrix.
func (w *walk) leastSquares(ctx context.Context, l lm.Linear, c *change, keep kernels.Mat,
	stats *actstats.Stats,
) error {
	a := stats.SumOf(l.Name)
	h, err := stats.HessianOf(a, l)
	if err != nil {
		return err
	}

	if c.after, err = hostmat.F32(w.dev, c.in.W); err != nil {
		return err
	}

	u := w.o.Update
	err = admm.Job{
		W: c.after, H: h, Mask: keep, Ridge: u.Damping, Rho: 1, Steps: u.Steps, Rechose: u.MaskSteps, Polish: u.Polish,
		Mul: w.multiply, Threads: w.threads, Device: w.dev,
		Stop: func(int, int) error { return ctx.Err() },
		Choose: func(mask, score kernels.Mat) error {
			return w.selectHost(c.plan, mask, score)
		},
	}.Run()
	if err != nil {
		return err
	}

	// An input that is always 0 says nothing about its weights: least squares leaves them where they happen to be.
	c.dropDead(keep, a)
	return nil
}

// solveRows solves the least squares of every row of a matrix.
func (w *walk) solveRows(ctx context.Context, l lm.Linear, c *change, keep kernels.Mat, stats *actstats.Stats) error {
	a := stats.SumOf(l.Name)
	h, err := stats.HessianOf(a, l)
	if err != nil {
		return err
	}

	if c.after, err = hostmat.F32(w.dev, c.in.W); err != nil {
		return err
	}

	d, err := exact.Job{
		W: c.after, H: h, Mask: keep, Damping: w.o.Update.Damping, Threads: w.threads, Device: w.dev, Stop: ctx.Err,
	}.Run()
	if err != nil {
		return fmt.Errorf("update %s: %w", Exact, err)
	}

	damping := Damping(d)
	c.t.Damping = &damping
	c.dropDead(keep, a)
	return nil
}

// refine runs DSnoT over a matrix, and measures on a sample of tokens what that does to its outputs.
func (w *walk) refine(c *change, keep, tokens kernels.Mat) error {
	x, err := hostmat.F32(w.dev, c.in.W)
	if err != nil {
		return err
	}

	// ‖x_j‖ is for Wanda's score, by which DSnoT chooses what goes.
	norm := make([]float32, x.Cols)
	for j, s := range c.in.SumSquares {
		norm[j] = root(s)
	}

	u := w.o.Update
	o := dsnot.Options{
		Cycles: u.Cycles, Threshold: u.Threshold, SameSign: u.SameSign, Strict: u.Strict,
		M: c.plan.pattern.M,
	}
	mask := keep.Buf.Bytes()[keep.Off : keep.Off+keep.Len()]
	// Refine changes the mask in place; the guard may want it back.
	before := slices.Clone(mask)
	c.t.Swaps = dsnot.Matrix{
		W: x, Norm: norm, Mean: c.in.Sums, Var: c.in.Variances, Keep: keep,
		Threads: w.threads,
	}.Refine(o)
	if tokens.IsZero() {
		return nil
	}

	if a, b, ok := maskErrors(x, tokens, before, mask, w.threads); ok && c.compared(a, b, u.Guard) {
		copy(mask, before)
		c.t.Swaps = 0
	}

	return nil
}

// compared notes the errors of a matrix's outputs without the update and with it, and reports whether it is to be
// undone.
func (c *change) compared(masked, updated float64, guard bool) (undo bool) {
	c.t.Undone = guard && updated > masked
	if c.t.Change = (&Change{Masked: masked, Updated: updated}); c.t.Undone {
		c.t.Change.Updated = masked
	}
	return c.t.Undone
}

// measureChange compares what zeroing alone and what the update do to the outputs.
func (w *walk) measureChange(l lm.Linear, c *change, stats *actstats.Stats) error {
	if c.after.IsZero() || w.o.Metric.splits {
		return nil
	}

	h, err := stats.HessianOf(stats.SumOf(l.Name), l)
	if err != nil {
		return err
	}

	before, err := hostmat.F32(w.dev, c.in.W)
	if err != nil {
		return err
	}

	keep, err := hostmat.Bytes(w.dev, c.keep)
	if err != nil {
		return err
	}

	if a, b, ok := outputError(before, c.after, keep, h, stats.SumOf(l.Name).Dead, w.threads); ok &&
		c.compared(a, b, w.o.Update.Guard) {
		// An empty matrix says that the masked weights are written as they are.
		c.after = kernels.Mat{}
	}

	return nil
}
