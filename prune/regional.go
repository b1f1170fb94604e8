package prune

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// WandaPlus is Wanda++'s score, |W|·(√s + α·g) with α = 100 and g the regional gradients of [Regional], by default
// within every output neuron (arXiv:2503.04992). What the paper does besides, a few steps of training for each block,
// is not part of a metric.
func WandaPlus() Metric {
	m := named("wanda++", "W * sqrt(X) + W * G")
	m.Needs = SumSquares | Regional
	return m
}

// regionalFactor is the paper's α.
const regionalFactor = 100

// measureRegion computes the regional gradients of a block where they are needed: one pass forward and back through it
// for every sequence.
func (w *walk) measureRegion(ctx context.Context, l int, needs Stats) error {
	w.regional = nil
	if needs&Regional == 0 {
		return nil
	}
	defer since(&w.report.Times.Gradients, time.Now())

	linears := w.m.Linears(l)
	sums := map[string]kernels.Mat{}
	defer func() {
		for _, m := range sums {
			m.Buf.Free()
		}
	}()
	for _, lin := range linears {
		rows, cols := lin.Out, lin.In
		if lin.Transposed {
			rows, cols = cols, rows
		}
		buf, err := w.dev.Alloc(kernels.F32, rows*cols)
		if err != nil {
			return w.fail(lin.Name, fmt.Errorf("regional gradients: %w", err))
		}
		sums[lin.Name] = kernels.MatOf(buf, rows, cols)
	}

	err := w.states.Each(func(first int, h *lm.Hidden) error {
		lo := 0
		for i, n := range h.Lens {
			w.step(Step{Stage: Region, Block: l, Done: first + i, Of: len(w.calib.IDs)})
			one := &lm.Hidden{X: h.X.RowRange(lo, lo+n), Lens: []int{n}}
			if err := w.addRegion(ctx, l, one, sums); err != nil {
				return fmt.Errorf("sequence %d: %w", first+i, err)
			}
			lo += n
		}
		return nil
	})
	if err != nil {
		return err
	}

	w.regional = map[string]kernels.Mat{}
	for _, lin := range linears {
		if w.regional[lin.Name], err = w.regionOf(lin, sums[lin.Name]); err != nil {
			return w.fail(lin.Name, err)
		}
	}
	return nil
}

// addRegion adds the squares of the gradients of one sequence.
func (w *walk) addRegion(ctx context.Context, l int, h *lm.Hidden, sums map[string]kernels.Mat) error {
	// The norm of the output is its root mean square times the root of its elements. Their mean over sequences is of
	// squares.
	scale := regionalFactor * math.Sqrt(float64(h.X.Len())/float64(len(w.calib.IDs)))
	_, err := w.m.BackwardBlock(ctx, l, h, w.m.OutputRMS, lm.BackwardOptions{
		Hooks: &lm.Hooks{WeightGrad: func(name string, g kernels.Mat) error {
			w.ops.AddSquare(sums[name], g, float32(scale))
			return nil
		}},
		Want: func(name string) bool { return !sums[name].IsZero() },
	})
	return err
}

// regionOf takes the roots of the sums of a matrix: F32 [out, in] in host memory, the zero Mat if all are 0.
func (w *walk) regionOf(l lm.Linear, sum kernels.Mat) (kernels.Mat, error) {
	if l.Transposed {
		var err error
		if sum, err = hostmat.Transposed(w.dev, sum); err != nil {
			return kernels.Mat{}, err
		}
		defer sum.Buf.Free()
	}

	g, err := hostmat.F32(w.dev, sum)
	if err != nil {
		return g, err
	}
	some := make([]bool, g.Rows)
	bad := make([]bool, g.Rows)
	mmapsafe.Split(w.threads, g.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := g.RowF32(i)
			for j, v := range row {
				row[j] = float32(math.Sqrt(float64(v)))
				some[i] = some[i] || v > 0
				bad[i] = bad[i] || v-v != 0
			}
		}
	})

	any := false
	for i := range some {
		if bad[i] {
			return g, fmt.Errorf("output %d: %w: its regional gradients overflow or are NaN", i, ErrNonFinite)
		}
		any = any || some[i]
	}
	if !any {
		return kernels.Mat{}, nil
	}
	return g, nil
}
