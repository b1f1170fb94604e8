package prune

import (
	"context"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/swaps"
)

// SwapPasses is how many passes of swaps a comparison makes where it is not told: more gain little.
const SwapPasses = 4

// maxSwapDiagonal bounds Options.SwapDiagonal, so that float32 holds what comes of it.
const maxSwapDiagonal = 1e6

// swapNeeds is what swaps measure.
func (o Options) swapNeeds() Stats {
	if o.Swaps > 0 {
		return Hessian
	}
	return 0
}

// swapFaults says what swaps do not go with.
func (o Options) swapFaults() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, optionsFault("swaps "+format, args...)) }
	switch {
	case o.Swaps < 0:
		fault("of %d passes", o.Swaps)
	case !(o.SwapDiagonal >= 0 && o.SwapDiagonal <= maxSwapDiagonal): // NaN too
		fault("with %g of the diagonal; want 0 to %g", o.SwapDiagonal, maxSwapDiagonal)
	case o.Swaps == 0 && o.SwapDiagonal > 0:
		fault("with %g of the diagonal, but no passes", o.SwapDiagonal)
	case o.Swaps == 0:
	case o.MasksFrom != "":
		fault("with masks of %s, which they would change", o.MasksFrom)
	case o.Permutation != "" && o.Permutation != Identity:
		fault("with permutation %s; they exchange weights within groups of neighbours", o.Permutation)
	case o.Update.Name == DSnoT:
		fault("with update %s, which exchanges weights by another rule", DSnoT)
	case o.Update.Name == ADMM && o.Update.MaskSteps > 0:
		fault("with update %s that chooses the mask anew", ADMM)
	}
	return faults
}

// swap refines the mask of a matrix by swaps.
func (w *walk) swap(ctx context.Context, l lm.Linear, c *change, stats *actstats.Stats) error {
	if w.o.Swaps == 0 || c.in.lacks(Hessian) {
		return nil
	}

	// Weights that SparseGPT updated on the way belong to another mask. Its update comes again, with this one.
	c.after, c.t.Loss = kernels.Mat{}, 0

	a := stats.SumOf(l.Name)
	h, err := stats.HessianOf(a, l)
	if err != nil {
		return err
	}
	weights, err := hostmat.F32(w.dev, c.in.W)
	if err != nil {
		return err
	}

	return w.onHost(c, func(keep kernels.Mat) error {
		before := kernels.MatOf(kernels.NewHost(kernels.U8, keep.Len()), keep.Rows, keep.Cols)
		copy(before.Buf.Bytes(), keep.Buf.Bytes()[keep.Off:keep.Off+keep.Len()])

		r, err := swaps.Job{
			W: weights, Keep: keep, Gram: gramOf(h, a.Dead, w.o.SwapDiagonal), M: c.plan.pattern.M, Passes: w.o.Swaps,
			Threads: w.threads, Mul: w.multiply, Stop: ctx.Err,
		}.Run()
		if err != nil {
			return err
		}

		c.t.Swaps = r.Swaps
		if first, second, ok := zeroingErrors(weights, before, keep, h, a.Dead, w.threads); ok {
			c.t.Swapped = &Change{Masked: first, Updated: second}
		}
		return nil
	})
}

// gramOf is a Hessian in float32, scaled so that no element can overflow, with so many times its diagonal added,
// and with zeros where inputs are always 0.
func gramOf(h linalg.Matrix, dead []int, diagonal float64) kernels.Mat {
	g := kernels.MatOf(kernels.NewHost(kernels.F32, h.Rows*h.Cols), h.Rows, h.Cols)
	scale := 1 / diagonalMax(h)
	for i := range h.Rows {
		row := g.RowF32(i)
		for j, v := range h.Row(i) {
			row[j] = float32(v * scale)
		}
		row[i] = float32(h.At(i, i) * scale * (1 + diagonal))
	}
	for _, j := range dead {
		g.RowF32(j)[j] = 0
	}
	return g
}

// diagonalMax is the largest element of the diagonal, which is positive.
func diagonalMax(h linalg.Matrix) (top float64) {
	for i := range h.Rows {
		top = max(top, h.At(i, i))
	}
	return top
}
