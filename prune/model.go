package prune

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// Model prunes every linear matrix of a model, block by block, and reports what it did. calib may be empty if the metric
// needs no statistics. The context is looked at between matrices and batches of sequences.
//
// Without Options.Out the pruned weights stay in the model. With it they are written as they are finished, the model is left
// in an unspecified state, and the output folder is complete when Model returns. An error names the block and the
// tensor; what Options.Out and Options.Masks hold by then can be resumed.
func Model(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (*Report, error) {
	start := time.Now()
	w, err := newWalk(m, calib, o)
	if err != nil {
		return nil, err
	}
	defer w.free()
	if err := w.allocate(ctx); err != nil {
		return nil, fmt.Errorf("allocation: %w", err)
	}
	if err := w.embed(ctx); err != nil {
		return nil, err
	}
	for l := range m.Blocks() {
		if err := w.block(ctx, l); err != nil {
			return nil, fmt.Errorf("block %d: %w", l, err)
		}
	}
	if err := w.finish(ctx); err != nil {
		return nil, err
	}
	w.report.Times.Total = time.Since(start).Seconds()
	return w.report, nil
}

// walk is one run over a model.
type walk struct {
	m       *lm.Model
	dev     kernels.Device
	ops     *kernels.Ops
	o       Options
	calib   corpus.Windows
	measure bool // the metric reads statistics
	report  *Report
	states  *activations
	keep    *kernels.Buffer // U8, as large as the largest matrix so far
}

// newWalk checks what can be checked before anything runs.
func newWalk(m *lm.Model, calib corpus.Windows, o Options) (*walk, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	w := &walk{m: m, dev: m.Device(), ops: m.Device().Ops(), o: o, calib: calib, measure: o.Metric.Needs != 0}
	if w.measure {
		if err := checkCalibration(m, calib, o); err != nil {
			return nil, err
		}
	}
	fingerprint, err := modelFingerprint(m)
	if err != nil {
		return nil, err
	}
	w.report = &Report{
		Options: o, Meaning: o.Pattern.Meaning(), Version: version(), Device: w.dev.Info(), Notes: []string{},
		Model: ModelInfo{Path: m.Path(), Type: m.Config().ModelType, Parameters: m.NumParameters(), Fingerprint: fingerprint},
	}
	if w.measure {
		w.report.Calibration = &w.calib
	}
	for l := range m.Blocks() {
		w.report.Blocks = append(w.report.Blocks, Block{Index: l, Target: o.Sparsity})
	}
	return w, nil
}

func checkCalibration(m *lm.Model, calib corpus.Windows, o Options) error {
	if len(calib.IDs) == 0 {
		return fmt.Errorf("metric %s: %w; it measures the inputs of every matrix", o.Metric.Name, ErrNoCalibration)
	}
	for i, row := range calib.IDs {
		if len(row) == 0 {
			return fmt.Errorf("%s: window %d: %w: it is empty", calib.Source, i, ErrNoCalibration)
		}
	}
	return calib.Check(m.Config().Vocab)
}

// embed makes the inputs of the first block.
func (w *walk) embed(ctx context.Context) (err error) {
	if w.measure {
		w.states, err = newActivations(ctx, w.m, w.calib.IDs, w.o.BatchTokens)
	}
	return err
}

// block prunes one block, or takes it from an interrupted run, and runs the next one's inputs through it.
func (w *walk) block(ctx context.Context, l int) error {
	linears := w.m.Linears(l)
	var err error
	if w.finished(linears) {
		err = w.restore(ctx, l, linears)
	} else {
		err = w.pruneBlock(ctx, l, linears)
	}
	if err != nil {
		return err
	}
	if w.measure && l+1 < w.m.Blocks() {
		if err := w.propagate(ctx, l); err != nil {
			return err
		}
	}
	w.m.ReleaseBlock(l, w.o.Out != nil)
	return nil
}

// pruneBlock measures the dense block, then zeroes weights in all its matrices.
func (w *walk) pruneBlock(ctx context.Context, l int, linears []lm.Linear) error {
	stats, err := w.statistics(ctx, l, linears)
	if err != nil {
		return err
	}
	defer stats.free()
	begin := time.Now()
	var pending []string
	for i, lin := range linears {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.step(Step{Stage: Select, Block: l, Done: i, Of: len(linears)})
		t, err := w.matrix(lin, stats)
		if err != nil {
			return err
		}
		w.tensorDone(t)
		pending = append(pending, lin.Name)
		if w.measure && i+1 < len(linears) {
			continue // the block stays resident until it has run
		}
		if err := w.commit(l, pending); err != nil {
			return err
		}
		pending = pending[:0]
	}
	w.report.Times.Select += time.Since(begin).Seconds()
	return nil
}

// statistics runs the dense block; its outputs are not kept. nil without an error if the metric reads none.
func (w *walk) statistics(ctx context.Context, l int, linears []lm.Linear) (*inputStats, error) {
	if !w.measure {
		return nil, nil
	}
	defer since(&w.report.Times.Statistics, time.Now())
	stats, err := newInputStats(w.dev, linears, len(w.calib.IDs))
	if err != nil {
		return nil, err
	}
	err = w.states.peek(ctx, l, stats.hooks(), func(done, of int) {
		w.step(Step{Stage: Statistics, Block: l, Done: done, Of: of})
	})
	if err != nil {
		stats.free()
		return nil, err
	}
	return stats, nil
}

// propagate runs the pruned block in place.
func (w *walk) propagate(ctx context.Context, l int) error {
	defer since(&w.report.Times.Propagate, time.Now())
	return w.states.advance(ctx, l, nil, func(done, of int) {
		w.step(Step{Stage: Propagate, Block: l, Done: done, Of: of})
	})
}

// matrix scores one matrix and zeroes what goes.
func (w *walk) matrix(l lm.Linear, stats *inputStats) (Tensor, error) {
	// The copy is made before there is a mask, so that the mapped weight, the copy and the mask are never held together.
	own, err := w.m.MutableParam(l.Name)
	if err != nil {
		return Tensor{}, err
	}
	in, release, err := w.inputs(l, own, stats)
	if err != nil {
		return Tensor{}, err
	}
	defer release()
	keep, err := w.choose(l, in)
	if err != nil {
		return Tensor{}, w.fail(l.Name, err)
	}
	if l.Transposed {
		if keep, err = transposed(w.dev, keep); err != nil {
			return Tensor{}, w.fail(l.Name, err)
		}
		defer keep.Buf.Free()
	}
	w.ops.ApplyMask(own, keep)
	if err := w.ops.Sync(); err != nil {
		return Tensor{}, w.fail(l.Name, err)
	}
	if err := w.o.Masks.write(l.Name, keep); err != nil {
		return Tensor{}, err
	}
	if w.o.Events.Mask != nil {
		w.o.Events.Mask(l.Name, keep)
	}
	t, err := w.describe(l, own)
	t.Unrouted = w.measure && in.SumSquares == nil
	return t, err
}

// inputs gathers what the metric looks at. release frees what was made for it.
func (w *walk) inputs(l lm.Linear, stored kernels.Mat, stats *inputStats) (in Inputs, release func(), err error) {
	if at := w.ops.NonFinite(stored); at >= 0 {
		return in, nil, w.fail(l.Name, fmt.Errorf("element [%d, %d]: %w", at/stored.Cols, at%stored.Cols, ErrNonFinite))
	}
	in = Inputs{Device: w.dev, Name: l.Name, W: stored}
	if stats != nil {
		if in.SumSquares, err = stats.of(l); err != nil {
			return in, nil, err
		}
	}
	if !l.Transposed {
		return in, func() {}, nil
	}
	if in.W, err = transposed(w.dev, stored); err != nil {
		return in, nil, w.fail(l.Name, err)
	}
	return in, in.W.Buf.Free, nil
}

// choose writes the keep mask [out, in] of a matrix. It is good until the next call.
func (w *walk) choose(l lm.Linear, in Inputs) (kernels.Mat, error) {
	score, err := w.o.Metric.Score(in)
	defer freeScore(score, in.W)
	if err != nil {
		return kernels.Mat{}, err
	}
	if score.X.Buf != in.W.Buf {
		if at := w.ops.NonFinite(score.X); at >= 0 {
			return kernels.Mat{}, fmt.Errorf("metric %s: the score of output %d, input %d is %w",
				w.o.Metric.Name, at/score.X.Cols, at%score.X.Cols, ErrNonFinite)
		}
	}
	if w.keep == nil || w.keep.Len < in.W.Len() {
		if w.keep != nil {
			w.keep.Free()
		}
		if w.keep, err = w.dev.Alloc(kernels.U8, in.W.Len()); err != nil {
			return kernels.Mat{}, err
		}
	}
	keep := kernels.MatOf(w.keep, in.W.Rows, in.W.Cols)
	s := w.selection(l.Block)
	s.mask(w.ops, keep, score)
	return keep, errors.Join(w.ops.Sync(), s.check(w.ops, keep))
}

func (w *walk) selection(block int) selection {
	return selection{pattern: w.o.Pattern, group: w.o.Group, sparsity: w.report.Blocks[block].Target}
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

// describe counts the zeros of a finished matrix and checks its pattern.
func (w *walk) describe(l lm.Linear, stored kernels.Mat) (Tensor, error) {
	t := Tensor{
		Name: l.Name, Block: l.Block, Role: string(l.Role), Expert: l.Expert, Shape: [2]int{stored.Rows, stored.Cols},
		Group: w.o.Group, Target: w.report.Blocks[l.Block].Target, Zeros: int64(w.ops.CountZero(stored)),
	}
	t.Kept = int64(stored.Len()) - t.Zeros
	if err := w.ops.Sync(); err != nil || !w.o.Pattern.Structured() {
		return t, err
	}
	t.Short = l.In % w.o.Pattern.M
	byOutput := stored
	if l.Transposed {
		var err error
		if byOutput, err = transposed(w.dev, stored); err != nil {
			return t, w.fail(l.Name, err)
		}
		defer byOutput.Buf.Free()
	}
	var err error
	if t.BadGroups, err = checkGroups(w.dev, byOutput, w.o.Pattern); err == nil && t.BadGroups > 0 {
		err = fmt.Errorf("%w: %d groups have fewer zeros than %s asks for", ErrMask, t.BadGroups, w.o.Pattern)
	}
	if err != nil {
		return t, w.fail(l.Name, err)
	}
	return t, nil
}

// commit makes masks, then weights durable, and lets go of what the metric does not need any more.
func (w *walk) commit(l int, names []string) error {
	if err := w.o.Masks.sync(); err != nil {
		return err
	}
	if w.o.Out == nil {
		return nil
	}
	if err := w.o.Out.Save(names...); err != nil {
		return err
	}
	if !w.measure {
		w.letGo(l)
	}
	return nil
}

// largeMatrix is the number of elements from which the memory of a matrix is worth a collection of its own.
const largeMatrix = 1 << 21

// letGo gives back what a block's saved matrices hold. The memory of large ones goes back to the system at once: left to
// itself, the collector would let as much garbage pile up as there is live memory.
func (w *walk) letGo(l int) {
	w.m.ReleaseBlock(l, true)
	if w.keep != nil && w.keep.Len >= largeMatrix && w.dev.Info().Host {
		w.keep.Free()
		w.keep = nil
		debug.FreeOSMemory()
	}
}

// finished tells whether an interrupted run has written all matrices of a block.
func (w *walk) finished(linears []lm.Linear) bool {
	if w.o.Out == nil {
		return false
	}
	for _, l := range linears {
		if !w.o.Out.Done(l.Name) {
			return false
		}
	}
	return true
}

// restore takes the matrices of a block from an interrupted run.
func (w *walk) restore(ctx context.Context, l int, linears []lm.Linear) error {
	w.report.Blocks[l].Restored = true
	for _, lin := range linears {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.o.Out.LoadDone(lin.Name); err != nil {
			return err
		}
		stored, err := w.m.Param(lin.Name)
		if err != nil {
			return err
		}
		if err := w.o.Masks.restored(lin.Name); err != nil {
			return err
		}
		t, err := w.describe(lin, stored)
		if err != nil {
			return err
		}
		w.tensorDone(t)
		w.report.Total.Restored++
		if !w.measure {
			w.letGo(l)
		}
	}
	return nil
}

// finish completes the outputs and the report.
func (w *walk) finish(ctx context.Context) error {
	defer since(&w.report.Times.Save, time.Now())
	w.report.close()
	if err := w.o.Masks.finish(); err != nil {
		return err
	}
	if w.o.Out == nil {
		return nil
	}
	w.step(Step{Stage: Save, Block: w.m.Blocks(), Of: 1})
	return w.o.Out.Finish(ctx)
}

func (w *walk) tensorDone(t Tensor) {
	w.report.add(t)
	if w.o.Events.Tensor != nil {
		w.o.Events.Tensor(w.report.Tensors[len(w.report.Tensors)-1])
	}
}

func (w *walk) step(s Step) {
	if w.o.Events.Step != nil {
		w.o.Events.Step(s)
	}
}

// fail names the file and the tensor of a failure.
func (w *walk) fail(name string, err error) error {
	return fmt.Errorf("%s: %s: %w", filepath.Join(w.m.Path(), w.m.Source().ShardOf(name)), name, err)
}

func (w *walk) free() {
	w.states.free()
	if w.keep != nil {
		w.keep.Free()
	}
}

func since(total *float64, start time.Time) { *total += time.Since(start).Seconds() }
