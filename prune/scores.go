package prune

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/internal/score"
)

// Scores computes the scores of the options' metric for the matrices of all blocks, of the model as it is, and leaves
// it so: for those who choose by them what is more than single weights. each gets the scores of a matrix, F32 [out, in]
// in host memory, good for the call alone; a matrix of an expert that no token reached is scored by |W|, as in [Model].
// Of the options only Metric, Gradients, BatchTokens, HessianMemory and Events.Step matter.
func Scores(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options,
	each func(l lm.Linear, s kernels.Mat) error,
) error {
	o = Options{
		Metric: o.Metric, Gradients: o.Gradients, BatchTokens: o.BatchTokens, HessianMemory: o.HessianMemory,
		Update: Update{Name: NoUpdate}, Events: Events{Step: o.Events.Step},
	}
	w, err := newWalk(ctx, m, calib, o)
	if err != nil {
		return err
	}
	defer w.free()

	return w.look(ctx, func(l lm.Linear, in Inputs) error { return w.scoreMatrix(l, in, each) })
}

// Operands shows what formulas look at of the matrices of all blocks, of the model as it is: for those who score more
// than single weights. uses says which terminals; each gets them with the matrix, [out, in] in host memory, good for
// the call alone. blind tells that no token or no gradient reached an expert: then there is the matrix alone.
func Operands(ctx context.Context, m *lm.Model, calib corpus.Windows, uses func(gp.Symbol) bool,
	each func(l lm.Linear, in gp.Inputs, blind bool) error,
) error {
	formula := Metric{Name: "formula", Needs: needsOf(uses), Score: Magnitude().Score}
	w, err := newWalk(ctx, m, calib, Options{Metric: formula, Update: Update{Name: NoUpdate}})
	if err != nil {
		return err
	}
	defer w.free()

	return w.look(ctx, func(l lm.Linear, in Inputs) error {
		blind := in.lacks(formula.Needs)
		terminals := uses
		if blind {
			terminals = func(gp.Symbol) bool { return false }
		}
		x, err := operandsOf(in, terminals)
		if err != nil {
			return w.fail(l.Name, err)
		}
		return each(l, x, blind)
	})
}

// look shows every matrix with its statistics.
func (w *walk) look(ctx context.Context, each func(l lm.Linear, in Inputs) error) error {
	if err := w.collectGradients(ctx); err != nil {
		return fmt.Errorf("gradients: %w", err)
	}
	if err := w.embed(ctx); err != nil {
		return err
	}

	for l := range w.m.Blocks() {
		if err := w.lookBlock(ctx, l, each); err != nil {
			return fmt.Errorf("block %d: %w", l, err)
		}
	}

	return nil
}

// lookBlock shows the matrices of a block and runs the next one's inputs through it.
func (w *walk) lookBlock(ctx context.Context, l int, each func(l lm.Linear, in Inputs) error) error {
	linears := w.m.Linears(l)
	passes := [][]lm.Linear{linears}
	if w.measure {
		passes = w.passes(w.o.Metric.Needs, linears)
	}
	if err := w.measureRegion(ctx, l, w.o.Metric.Needs); err != nil {
		return err
	}

	for _, part := range passes {
		stats, err := w.statistics(ctx, l, part, w.o.Metric.Needs)
		if err != nil {
			return err
		}
		for _, lin := range part {
			if err = ctx.Err(); err == nil {
				err = w.lookMatrix(lin, stats, each)
			}
			if err != nil {
				stats.Free()
				return err
			}
		}
		stats.Free()
	}

	if w.measure && l+1 < w.m.Blocks() {
		if err := w.propagate(ctx, l); err != nil {
			return err
		}
	}
	w.m.ReleaseBlock(l, false)

	return nil
}

func (w *walk) lookMatrix(l lm.Linear, stats *actstats.Stats, each func(l lm.Linear, in Inputs) error) error {
	stored, err := w.m.Param(l.Name)
	if err != nil {
		return err
	}
	in, release, err := w.inputs(l, stored, stats)
	if err != nil {
		return err
	}
	defer release()

	return each(l, in)
}

func (w *walk) scoreMatrix(l lm.Linear, in Inputs, each func(l lm.Linear, s kernels.Mat) error) error {
	scores, err := w.score(w.o.Metric, in)
	defer freeScore(scores, in.W)
	if err != nil {
		return w.fail(l.Name, err)
	}

	h, err := score.New(w.dev, scores)
	if err != nil {
		return err
	}
	return each(l, kernels.MatOf(kernels.WrapF32(h.All()), h.Rows, h.Cols))
}
