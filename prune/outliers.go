package prune

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/allocation"
	"github.com/modelcompress/compress/prune/internal/score"
)

// allocate sets the sparsity of every block or matrix. OWL and Global run the whole dense model once for it.
func (w *walk) allocate(ctx context.Context) error {
	a := w.o.Allocation
	switch {
	case a.Name == Uniform:
		return nil
	case a.Name == OWL && w.o.Pattern.Structured():
		w.report.note("allocation %s has no effect with pattern %s, which fixes every block's share; %s gives "+
			"blocks an N of their own",
			a.Name, w.o.Pattern, OWLMixed)
		return nil
	case w.o.Sparsity == 0:
		return nil
	}
	defer since(&w.report.Times.Allocate, time.Now())

	switch a.Name {
	case Alpha:
		return w.allocateSpectra(ctx)
	case Global:
		return w.allocateGlobal(ctx)
	case Search:
		return w.allocateSearch(ctx)
	}

	return w.allocateOutliers(ctx)
}

// dense measures and visits every block of the dense model.
func (w *walk) dense(ctx context.Context, needs Stats,
	visit func(l int, linears []lm.Linear, stats *actstats.Stats) error,
) error {
	if needs&ofInputs != 0 && w.o.Norms == nil {
		if err := w.embed(ctx); err != nil {
			return err
		}
		defer func() { w.states.Free(); w.states = nil }()
	}

	for l := range w.m.Blocks() {
		if err := w.denseBlock(ctx, l, needs, visit); err != nil {
			return fmt.Errorf("block %d: %w", l, err)
		}
	}

	return nil
}

func (w *walk) denseBlock(ctx context.Context, l int, needs Stats,
	visit func(l int, linears []lm.Linear, stats *actstats.Stats) error,
) error {
	linears := w.m.Linears(l)
	step := func(done, of int) { w.step(Step{Stage: Allocate, Block: l, Done: done, Of: of}) }
	step(0, len(linears))
	defer w.m.ReleaseBlock(l, false)

	if needs&ofInputs == 0 || w.o.Norms != nil {
		return visit(l, linears, nil)
	}

	if err := w.measureRegion(ctx, l, needs); err != nil {
		return err
	}

	part := func(linears []lm.Linear, run func(context.Context, int, *lm.Hooks, func(int, int)) error) error {
		stats, err := w.newStats(linears, needs)
		if err != nil {
			return err
		}
		defer stats.Free()

		if err := run(ctx, l, stats.Hooks(), step); err != nil {
			return err
		}
		if stats.Err() != nil {
			return stats.Err()
		}

		return visit(l, linears, stats)
	}

	// Where not all Hessians fit, the block runs several times; only the last run hands its outputs on.
	passes := actstats.Plan{Needs: actstats.Set(needs), Memory: w.o.HessianMemory}.Passes(linears)
	last := len(passes) - 1
	for _, linears := range passes[:last] {
		if err := part(linears, w.states.Peek); err != nil {
			return err
		}
	}

	return part(passes[last], w.states.Advance)
}

// allocateOutliers is OWL.
func (w *walk) allocateOutliers(ctx context.Context) error {
	metric := outlierMetric(w.o.Metric)
	// Measured once for all contenders of a comparison that ask for the same: it is a pass through the dense model.
	outliers, err := w.measuredOnce(fmt.Sprint("outliers ", metric.Name, " ", w.o.Allocation.M),
		func() ([]float64, error) {
			outliers := make([]float64, w.m.Blocks())
			return outliers,
				w.dense(ctx, metric.Needs, func(l int, linears []lm.Linear, stats *actstats.Stats) (err error) {
					outliers[l], err = w.outliers(ctx, metric, linears, stats)
					return err
				})
		})
	if err != nil {
		return err
	}

	for l, d := range outliers {
		w.report.Blocks[l].Outliers = d
	}

	if a := w.o.Allocation; a.Name == OWLMixed {
		counts, err := allocation.Mixed(outliers, w.o.Pattern.N, w.o.Pattern.M, a.Lambda, a.Special)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrOptions, a.Name, err)
		}

		for l, n := range counts {
			w.patterns = append(w.patterns, Pattern{n, w.o.Pattern.M})
			w.report.Blocks[l].Target = w.patterns[l].Sparsity()
		}

		return nil
	}

	targets, err := allocation.OWL(outliers, w.o.Sparsity, w.o.Allocation.Lambda)
	return w.setTargets(targets, err)
}

// setTargets takes the sparsities of blocks, or says what is wrong with the options that led to them.
func (w *walk) setTargets(targets []float64, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrOptions, w.o.Allocation.Name, err)
	}
	for l := range targets {
		w.report.Blocks[l].Target = targets[l]
	}
	return nil
}

// outliers gives the percentage of the scores of all matrices of a block together that are above M times their mean.
func (w *walk) outliers(ctx context.Context, metric Metric, linears []lm.Linear,
	stats *actstats.Stats,
) (float64, error) {
	// Twice through the matrices, as the mean has to be known before anything can be counted against it: scores of a
	// whole block are more than should be kept.
	var sum, total float64
	err := w.eachScore(ctx, metric, linears, stats, func(_ lm.Linear, s score.Scores) {
		sum += s.Sum()
		total += float64(s.Rows * s.Cols)
	})
	if err != nil || total == 0 {
		return 0, err
	}

	threshold := float32(w.o.Allocation.M) * float32(sum/total)
	var above int64
	err = w.eachScore(ctx, metric, linears, stats, func(_ lm.Linear, s score.Scores) { above += s.Above(threshold) })

	return 100 * float64(above) / total, err
}

// eachScore scores the matrices of a block one after the other.
func (w *walk) eachScore(ctx context.Context, metric Metric, linears []lm.Linear, stats *actstats.Stats,
	visit func(lm.Linear, score.Scores),
) error {
	for _, l := range linears {
		if err := ctx.Err(); err != nil {
			return err
		}

		stored, err := w.m.Param(l.Name)
		if err != nil {
			return err
		}

		in, release, err := w.inputs(l, stored, stats)
		if err != nil {
			return err
		}

		scores, err := w.score(metric, in)
		var h score.Scores
		if err == nil {
			h, err = score.New(w.dev, scores)
		}
		if err == nil {
			visit(l, h)
		}

		// Freed matrix by matrix: the scores of a block together take as much as its weights in float32.
		freeScore(scores, in.W)
		release()
		if err != nil {
			return w.fail(l.Name, err)
		}
	}

	return nil
}

// allocateSpectra is AlphaPruning with Hill's estimator: the exponent of a block is the mean of those of its matrices.
func (w *walk) allocateSpectra(ctx context.Context) error {
	exponents, err := w.measuredOnce("exponents "+w.o.Allocation.Estimator,
		func() ([]float64, error) { return w.exponents(ctx) })
	if err != nil {
		return err
	}

	weights := make([]float64, w.m.Blocks())
	for l, a := range exponents {
		w.report.Blocks[l].Exponent = a
		for _, lin := range w.m.Linears(l) {
			weights[l] += float64(lin.In * lin.Out)
		}
	}

	targets, err := allocation.Spectral(exponents, weights, w.o.Sparsity, w.o.Allocation.Epsilon)
	return w.setTargets(targets, err)
}

// exponents gives the mean exponent of the matrices of every block.
func (w *walk) exponents(ctx context.Context) ([]float64, error) {
	exponents := make([]float64, w.m.Blocks())
	return exponents, w.dense(ctx, 0, func(l int, linears []lm.Linear, _ *actstats.Stats) error {
		for i, lin := range linears {
			if err := ctx.Err(); err != nil {
				return err
			}

			w.step(Step{Stage: Allocate, Block: l, Done: i, Of: len(linears)})

			stored, err := w.m.Param(lin.Name)
			if err != nil {
				return err
			}

			a, err := w.exponent(stored)
			if err != nil {
				return w.fail(lin.Name, err)
			}

			// A mean over matrices, not weights: AlphaPruning gives a block one exponent.
			exponents[l] += a / float64(len(linears))
		}

		return nil
	})
}

// exponent fits the tail of a matrix's spectrum.
func (w *walk) exponent(stored kernels.Mat) (float64, error) {
	if at := w.ops.NonFinite(stored); at >= 0 {
		return 0, fmt.Errorf("element [%d, %d]: %w", at/stored.Cols, at%stored.Cols, ErrNonFinite)
	}
	m, err := hostmat.F32(w.dev, stored)
	if err != nil {
		return 0, err
	}
	return allocation.ExponentOf(m, w.o.Allocation.Estimator == Peak, w.threads)
}

// allocateGlobal finds the threshold on scores, over the mean of their matrix, below which the share of all scores lies
// that is to go, and gives every matrix the share of its scores below it.
func (w *walk) allocateGlobal(ctx context.Context) error {
	// Of each matrix a histogram is kept (Levels), not the scores: those of the whole model would be as large as it is.
	var names []string
	var all []*allocation.Levels
	err := w.dense(ctx, w.o.Metric.Needs, func(_ int, linears []lm.Linear, stats *actstats.Stats) error {
		var bad error
		err := w.eachScore(ctx, w.o.Metric, linears, stats, func(l lm.Linear, s score.Scores) {
			if _, own := w.overrides[l.Name]; own || w.plan(l).dense || bad != nil {
				return
			}
			levels := allocation.NewLevels(s.Sum() / float64(s.Rows*s.Cols))
			if bad = s.Count(levels); bad != nil {
				bad = w.fail(l.Name, fmt.Errorf("%w: allocation %s: %w", ErrOptions, Global, bad))
			}
			names, all = append(names, l.Name), append(all, levels)
		})
		if err == nil {
			err = bad
		}

		return err
	})
	if err != nil || len(all) == 0 {
		return err
	}

	for i, share := range allocation.Below(all, w.o.Sparsity, w.o.Allocation.Max) {
		w.targets[names[i]] = share
	}

	w.blockTargets()
	return nil
}

// blockTargets sums the targets of matrices up for the report.
func (w *walk) blockTargets() {
	for b := range w.m.Blocks() {
		var sum, total float64
		for _, l := range w.m.Linears(b) {
			if t, ok := w.targets[l.Name]; ok {
				sum += t * float64(l.In*l.Out)
				total += float64(l.In * l.Out)
			}
		}

		if total > 0 {
			w.report.Blocks[b].Target = math.Min(sum/total, 1)
		}
	}
}
