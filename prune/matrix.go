package prune

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/gpuscore"
	"github.com/modelcompress/compress/prune/internal/permute"
	"github.com/modelcompress/compress/prune/internal/score"
)

// plan says what a matrix loses.
func (w *walk) plan(l lm.Linear) selection {
	p := selection{pattern: w.o.Pattern, group: w.o.Group, sparsity: w.report.Blocks[l.Block].Target}
	if t, ok := w.targets[l.Name]; ok {
		p.sparsity = t
	}

	if w.patterns != nil {
		p.pattern = w.patterns[l.Block]
		p.dense = p.pattern.N == 0
	}

	// From the general to the particular: the options, the allocation, the matrix's own override; and before all of
	// them masks that are given.
	v, ok := w.overrides[l.Name]
	switch {
	case w.given != nil:
		p.dense = p.sparsity == 0
	case !ok:
	case v.Dense:
		p.dense = true
	case v.Sparsity != nil:
		p.dense = false
		p.pattern = Pattern{}
		p.sparsity = *v.Sparsity
	default:
		p.dense = false
		p.pattern = *v.Pattern
		p.group = Row
		p.sparsity = v.Pattern.Sparsity()
	}

	if p.dense {
		p.pattern, p.sparsity = Pattern{}, 0
	}

	return p
}

// matrix scores one matrix, zeroes what goes and updates the rest.
func (w *walk) matrix(ctx context.Context, l lm.Linear, stats *actstats.Stats) (Tensor, error) {
	c := &change{plan: w.plan(l)}
	if c.plan.dense {
		stored, err := w.m.Param(l.Name)
		if err != nil {
			return Tensor{}, err
		}

		if err := w.keepAll(l, stored); err != nil {
			return Tensor{}, w.fail(l.Name, err)
		}

		return w.describe(l, stored, Tensor{}, nil)
	}

	// The copy is made before there is a mask, so that the mapped weight, the copy and the mask are never held
	// together.
	own, err := w.m.MutableParam(l.Name)
	if err != nil {
		return Tensor{}, err
	}

	var release func()
	if c.in, release, err = w.inputs(l, own, stats); err != nil {
		return Tensor{}, err
	}
	defer release()

	c.t.Empty = w.ops.CountZero(own) == own.Len()
	if c.t.Idle = !c.t.Empty && c.in.idle(w.o.Metric.Needs); c.t.Idle {
		c.plan.group = Row // with the others all would go, which are as low as the lowest
	}

	c.t.Unrouted = c.in.lacks(w.o.Metric.Needs | w.o.swapNeeds() | w.o.Update.needs())
	order, err := w.chooseInto(ctx, l, c, stats)
	if err == nil {
		err = w.swap(ctx, l, c, stats)
	}
	if err == nil {
		err = w.update(ctx, l, c, stats)
	}
	if err == nil {
		err = w.measureChange(l, c, stats)
	}
	if err != nil {
		return Tensor{}, w.fail(l.Name, err)
	}
	if err := w.apply(l, own, c); err != nil {
		return Tensor{}, err
	}

	t, err := w.describe(l, own, c.t, order)
	if err == nil && t.Kept == 0 && !t.Empty && t.Dead < l.In && w.given == nil {
		err = w.fail(l.Name,
			fmt.Errorf("%w: all %d weights went, at a sparsity of %g", ErrMask, t.Zeros, c.plan.sparsity))
	}

	return t, err
}

// apply writes a change to the weights and shows its mask.
func (w *walk) apply(l lm.Linear, own kernels.Mat, c *change) (err error) {
	keep := c.keep
	if l.Transposed {
		if keep, err = hostmat.Transposed(w.dev, keep); err != nil {
			return w.fail(l.Name, err)
		}
		defer keep.Buf.Free()
	}

	if err := w.writeBack(l, own, c.after); err != nil {
		return w.fail(l.Name, err)
	}

	w.ops.ApplyMask(own, keep)
	if err := w.ops.Sync(); err != nil {
		return w.fail(l.Name, err)
	}

	return w.show(l, keep)
}

// show writes a mask in stored layout and lets the caller see it.
func (w *walk) show(l lm.Linear, keep kernels.Mat) error {
	if err := w.o.Masks.write(l.Name, keep); err != nil {
		return err
	}
	if w.o.Events.Mask != nil {
		w.o.Events.Mask(l.Name, keep)
	}
	return nil
}

// keepAll shows the mask of a matrix that is left dense.
func (w *walk) keepAll(l lm.Linear, stored kernels.Mat) error {
	if w.o.Masks == nil && w.o.Events.Mask == nil {
		return nil
	}

	keep, err := w.keepFor(stored)
	if err != nil {
		return err
	}

	if err := w.dev.Upload(keep.Buf, 0, bytes.Repeat([]byte{1}, keep.Len())); err != nil {
		return err
	}

	return w.show(l, keep)
}

// writeBack stores new weights, F32 [out, in] in host memory, in the type and layout of the matrix.
func (w *walk) writeBack(l lm.Linear, own, after kernels.Mat) error {
	if after.IsZero() {
		return nil
	}

	if err := hostmat.Store(w.dev, own, after, l.Transposed); err != nil {
		return err
	}

	if at := w.ops.NonFinite(own); at >= 0 {
		return fmt.Errorf("update %s: element [%d, %d]: %w", w.o.Update.Name, at/own.Cols, at%own.Cols, ErrNonFinite)
	}

	return nil
}

// inputs gathers what the metric looks at. release frees what was made for it.
func (w *walk) inputs(l lm.Linear, stored kernels.Mat, stats *actstats.Stats) (in Inputs, release func(), err error) {
	// A NaN in a matrix sorts anywhere, so the mask would depend on the order of the comparisons.
	if at := w.ops.NonFinite(stored); at >= 0 {
		return in, nil, w.fail(l.Name, fmt.Errorf("element [%d, %d]: %w", at/stored.Cols, at%stored.Cols, ErrNonFinite))
	}

	in = Inputs{Device: w.dev, Name: l.Name, W: stored}
	if err := w.knownInputs(&in, l, stats); err != nil {
		return in, nil, err
	}

	if in.G, err = w.gradients.Of(l); err != nil {
		return in, nil, err
	}
	if w.regional != nil {
		in.G = w.regional[l.Name]
	}

	// GPT-2 stores [in, out]; scores compare within an output neuron, a row of [out, in].
	if !l.Transposed {
		return in, func() {}, nil
	}
	if in.W, err = hostmat.Transposed(w.dev, stored); err != nil {
		return in, nil, w.fail(l.Name, err)
	}

	return in, in.W.Buf.Free, nil
}

// chooseInto writes the keep mask [out, in] of a matrix, good until the next call, and, where the metric has
// them, new weights.
func (w *walk) chooseInto(ctx context.Context, l lm.Linear, c *change,
	stats *actstats.Stats,
) (order []int32, err error) {
	if c.keep, err = w.keepFor(c.in.W); err != nil {
		return nil, err
	}

	switch m := w.o.Metric; {
	case w.given != nil:
		err = w.takeGiven(l, c)
	case m.sweeps && !c.in.lacks(m.Needs) && (c.plan.pattern.Structured() || c.plan.group == Strip):
		err = w.onHost(c, func(keep kernels.Mat) error { return w.sweep(ctx, c, keep, stats.SumOf(l.Name), true) })
		if w.o.Update.Name != SparseGPTUpdate { // SparseGPT's choice without its update
			c.after, c.t.Loss = kernels.Mat{}, 0
		}
	case m.splits:
		err = w.split(ctx, l, c)
	case w.o.Permutation != Identity && c.plan.pattern.Structured():
		if order, err = w.permuted(ctx, c); err == nil && w.o.Events.Order != nil {
			w.o.Events.Order(l.Name, order)
		}
	default:
		err = w.choose(c)
	}

	return order, err
}

func (w *walk) keepFor(m kernels.Mat) (kernels.Mat, error) {
	if w.keep == nil || w.keep.Len < m.Len() {
		if w.keep != nil {
			w.keep.Free()
		}

		var err error
		if w.keep, err = w.dev.Alloc(kernels.U8, m.Len()); err != nil {
			return kernels.Mat{}, err
		}
	}

	return kernels.MatOf(w.keep, m.Rows, m.Cols), nil
}

// choose scores a matrix and selects.
func (w *walk) choose(c *change) error {
	if w.streams(c) {
		if err := w.stream(c); err != nil {
			return err
		}
		return c.plan.check(w.ops, c.keep)
	}

	if done, err := w.fuse(c); done {
		return errors.Join(err, c.plan.check(w.ops, c.keep))
	}

	scores, err := w.score(w.o.Metric, c.in)
	defer freeScore(scores, c.in.W) // with an error too: a score that is refused has its memory
	if err != nil {
		return err
	}
	if c.plan.group == Share && !c.plan.pattern.Structured() {
		return w.share(c, scores)
	}

	c.plan.mask(w.ops, c.keep, scores)
	return errors.Join(w.ops.Sync(), c.plan.check(w.ops, c.keep))
}

// share selects by shares of the rows' scores.
func (w *walk) share(c *change, s kernels.Score) error {
	h, err := score.New(w.dev, s)
	if err != nil {
		return err
	}

	return w.onHost(c, func(keep kernels.Mat) (err error) {
		if c.t.Alpha, err = score.ShareMask(keep, h, c.plan.sparsity); err != nil {
			err = fmt.Errorf("%w: group %s: %w", ErrOptions, Share, err)
		}
		return err
	})
}

// score asks a metric, or takes |W| where its statistics are missing.
func (w *walk) score(m Metric, in Inputs) (kernels.Score, error) {
	if in.lacks(m.Needs) {
		return kernels.Score{X: in.W}, nil
	}

	score, err := m.Score(in)
	if err != nil {
		return score, fmt.Errorf("metric %s: %w", m.Name, err)
	}

	if score.X.Buf != in.W.Buf {
		if at := w.ops.NonFinite(score.X); at >= 0 {
			return score, fmt.Errorf("metric %s: the score of output %d, input %d is %w",
				m.Name, at/score.X.Cols, at%score.X.Cols, ErrNonFinite)
		}
	}

	first, same, err := hostmat.Constant(w.dev, score)
	if err == nil && same {
		err = w.unranked(m, in, first)
	}

	return score, err
}

// unranked is the error about scores that are all the same. A matrix of zeros, or of inputs that are, loses
// nothing, whichever go.
func (w *walk) unranked(m Metric, in Inputs, score float32) error {
	switch {
	case w.ops.CountZero(in.W) == in.W.Len(),
		score == 0 && in.idle(m.Needs):
		return nil
	case score-score != 0:
		return fmt.Errorf("metric %s: %w: all scores are %g", m.Name, ErrNonFinite, score)
	}
	return fmt.Errorf("metric %s: %w: all are %g", m.Name, ErrConstant, score)
}

// streams reports whether a formula can be computed and selected from a few rows at a time.
func (w *walk) streams(c *change) bool {
	rows := c.plan.pattern.Structured() || c.plan.group == Row
	return w.o.Metric.program != nil && rows && w.host && !c.in.lacks(w.o.Metric.Needs)
}

// stream scores and selects rows while they are in the cache.
func (w *walk) stream(c *change) error {
	p := w.o.Metric.program
	t, err := terminalsOf(c.in, p.Expr.Uses)
	if err != nil {
		return err
	}

	var scorer *gp.Scorer
	if scorer, err = p.Scorer(t, execution(c.in)); err != nil {
		return fmt.Errorf("metric %s: %w", w.o.Metric.Name, asPruning(err))
	}

	// Rows are looked at one block at a time, so whether all scores are the same is known only at the end.
	first, constant := float32(0), true
	err = scorer.Each(0, func(row int, s kernels.Mat) error {
		if row == 0 {
			first = s.RowF32(0)[0]
		}
		constant = constant && hostmat.Same(s, first)
		c.plan.mask(w.ops, c.keep.RowRange(row, row+s.Rows), kernels.Score{X: s, Raw: true})
		return w.ops.Sync()
	})
	if err == nil && constant {
		return w.unranked(w.o.Metric, c.in, first)
	}

	if err != nil {
		return fmt.Errorf("metric %s: %w", w.o.Metric.Name, asPruning(err))
	}

	return nil
}

// fuse scores and selects on a device that compiles formulas. It is not done where the host has to, or has the
// better error.
func (w *walk) fuse(c *change) (done bool, err error) {
	m, rows := w.o.Metric, c.plan.group == Row && !c.plan.pattern.Structured()
	if m.there == nil || w.host || c.in.lacks(m.Needs) ||
		c.plan.group == Share && !c.plan.pattern.Structured() {
		return false, nil
	}

	// What goes wrong on the device goes wrong on the host as well, or is a want of memory that the host does not have.
	s, err := m.there(c.in)
	if err != nil {
		return false, nil
	}
	defer s.Free()

	lo, span, err := s.Range()
	if err != nil || lo-lo != 0 || span-span != 0 {
		return err != nil, err
	}

	// Scores that are exact to the last bit select as the host's do; others are compared again where they are near a
	// threshold.
	if rows && s.Exact {
		err = s.Select(c.keep, rowCount(c.keep.Cols, c.plan.sparsity))
	} else {
		c.t.NearTies, err = s.Choose(c.keep, func(mask kernels.Mat, s kernels.Score) { c.plan.mask(w.ops, mask, s) })
	}
	if err == nil && span == 0 {
		err = w.unranked(m, c.in, lo)
	}

	return !errors.Is(err, gpuscore.ErrHost), err
}

// freeScore frees what a metric allocated.
func freeScore(s kernels.Score, w kernels.Mat) {
	if !s.Col.IsZero() {
		s.Col.Buf.Free()
	}
	if !s.X.IsZero() && s.X.Buf != w.Buf {
		s.X.Buf.Free()
	}
}

// selectHost selects from scores in host memory, sign included.
func (w *walk) selectHost(p selection, mask, scores kernels.Mat) error {
	if w.host {
		if p.group == Share && !p.pattern.Structured() {
			_, err := score.ShareMask(mask, score.Of(scores, w.threads), p.sparsity)
			return err
		}
		p.mask(w.ops, mask, kernels.Score{X: scores, Raw: true})
		return w.ops.Sync()
	}
	return score.Elsewhere(w.dev, mask, scores, func(there kernels.Mat, s kernels.Score) { p.mask(w.ops, there, s) })
}

// permuted selects an N:M pattern in another order of the inputs, and gives the order.
func (w *walk) permuted(ctx context.Context, c *change) ([]int32, error) {
	p := c.plan.pattern
	if c.in.W.Cols%p.M != 0 {
		return nil, fmt.Errorf("%w: permutation %s: %d inputs are not a multiple of %d", ErrOptions, w.o.Permutation,
			c.in.W.Cols, p.M)
	}

	scores, err := w.score(w.o.Metric, c.in)
	defer freeScore(scores, c.in.W)
	if err != nil {
		return nil, err
	}

	h, err := score.New(w.dev, scores)
	if err != nil {
		return nil, err
	}

	s := permute.Scores{Data: h.All(), Rows: h.Rows, Cols: h.Cols, Threads: h.Threads}
	order := s.Heuristic(p.M)
	if w.o.Permutation == Assignment {
		if err := s.Refine(ctx, order, p.N, p.M); err != nil {
			return nil, err
		}
	}

	c.t.Order = &Order{Plain: s.Kept(nil, p.N, p.M), Permuted: s.Kept(order, p.N, p.M)}

	// Selected in the new order, and the mask brought back: the weights stay where they are.
	moved := s.Moved(order)
	mask := kernels.MatOf(kernels.NewHost(kernels.U8, h.Rows*h.Cols), h.Rows, h.Cols)
	if err := w.selectHost(c.plan, mask, moved); err != nil {
		return nil, err
	}

	return order, w.onHost(c, func(keep kernels.Mat) error {
		for i := range h.Rows {
			for at, j := range order {
				keep.RowU8(i)[j] = mask.RowU8(i)[at]
			}
		}
		return nil
	})
}
