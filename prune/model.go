package prune

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/internal/grads"
)

// Model prunes every linear matrix of a model, block by block, and reports what it did. calib may be empty if
// the metric needs no statistics. The context is looked at between matrices and batches of sequences.
//
// Without Options.Out the pruned weights stay in the model. With it they are written as they are finished, the
// model is left in an unspecified state, and the output folder is complete when Model returns. An error names
// the block and the tensor; what Options.Out and Options.Masks hold by then can be resumed.
func Model(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (*Report, error) {
	start := time.Now()
	w, err := newWalk(ctx, m, calib, o)
	if err != nil {
		return nil, err
	}
	defer w.free()

	// Gradients are those of the dense model, so they come before anything is pruned, and the allocation may score by
	// them.
	if err := w.collectGradients(ctx); err != nil {
		return nil, fmt.Errorf("gradients: %w", err)
	}
	if err := w.allocate(ctx); err != nil {
		return nil, fmt.Errorf("allocation: %w", err)
	}
	if err := w.openFactors(); err != nil {
		return nil, err
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

// Check returns what Model would refuse before it runs anything: faults of the options, calibration data that
// are missing or do not fit the model, and files of gradients or masks that cannot be used. It is for callers
// who do other long work first.
func Check(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) error {
	w, err := newWalk(ctx, m, calib, o)
	if err != nil {
		return err
	}
	defer w.free()
	if err := w.checkGradients(ctx); err != nil {
		return fmt.Errorf("gradients: %w", err)
	}
	return nil
}

// walk is one run over a model.
type walk struct {
	site
	m       *lm.Model
	o       Options
	calib   corpus.Windows
	needs   Stats
	measure bool // some of them come from passes through the blocks
	report  *Report
	states  *actstats.States
	keep    *kernels.Buffer // U8, as large as the largest matrix so far

	overrides map[string]Override // by tensor name
	targets   map[string]float64  // sparsity by tensor name, where blocks do not settle it
	patterns  []Pattern           // by block, where the allocation gives each its own
	gradients *grads.Set
	regional  map[string]kernels.Mat // gradients of the block's matrices, by tensor name; nil: nothing reads them
	given     *givenMasks            // nil: the metric chooses
	record    earlier                // of a finished output
}

// site is the device that a walk computes on. What never changes of its description is asked for once:
// [kernels.Device.Info] also finds out how much memory is free, which takes longer than many a small matrix.
type site struct {
	dev     kernels.Device
	ops     *kernels.Ops
	host    bool // buffers are ordinary memory
	threads int  // of a host device
}

func on(dev kernels.Device) site {
	info := dev.Info()
	return site{dev: dev, ops: dev.Ops(), host: info.Host, threads: info.Threads}
}

// newWalk checks what can be checked before anything runs.
func newWalk(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (*walk, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}

	o.setDefaults()
	w := &walk{
		site: on(m.Device()), m: m, o: o, calib: calib, needs: o.Needs(),
		overrides: map[string]Override{}, targets: map[string]float64{},
	}

	if err := o.Norms.fit(m); err != nil {
		return nil, err
	}
	w.measure = w.needs&ofInputs != 0 && o.Norms == nil
	if w.measure || w.needs&Gradients != 0 && o.Gradients.File == "" {
		if err := checkCalibration(m, calib, o); err != nil {
			return nil, err
		}
	}

	fingerprint, err := m.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}

	w.report = &Report{
		Options: o.recorded(), Meaning: o.Pattern.Meaning(), Version: build.Version(), Device: w.dev.Info(),
		Notes: []string{},
		Model: ModelInfo{
			Path: m.Path(), Type: m.Config().ModelType, Parameters: m.NumParameters(),
			Fingerprint: fingerprint,
		},
	}

	if len(calib.IDs) > 0 && w.needs != 0 {
		w.report.Calibration = &calib // not a pointer into the walk, which holds gradients and the model
	}
	for l := range m.Blocks() {
		w.report.Blocks = append(w.report.Blocks, Block{Index: l, Target: o.Sparsity})
	}
	if err := w.applyOverrides(); err != nil {
		return nil, err
	}
	if err := w.checkPatterns(); err != nil {
		return nil, err
	}

	if o.Out != nil && o.Out.Complete() {
		if w.record, err = readRecord(o.Out.Dir()); err != nil {
			return nil, err
		}
	}
	if o.MasksFrom != "" {
		w.report.Meaning = "what the masks say goes"
		w.given, err = openGiven(o.MasksFrom, m)
	}

	return w, err
}

func checkCalibration(m *lm.Model, calib corpus.Windows, o Options) error {
	if len(calib.IDs) == 0 {
		return fmt.Errorf("metric %s, update %s, allocation %s: %w; what flows into the matrices is measured",
			o.Metric.Name, o.Update.Name, o.Allocation.Name, ErrNoCalibration)
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
		batch := w.o.BatchTokens
		if w.needs&Variances != 0 {
			batch = 1
		}
		w.states, err = actstats.NewStates(ctx, w.m, w.calib.IDs, batch)
	}
	return err
}

// block prunes one block, or takes it from an interrupted run, and runs the next one's inputs through it.
func (w *walk) block(ctx context.Context, l int) error {
	linears := w.m.Linears(l)
	err := w.readTargets(l, linears)
	if err != nil {
		return err
	}

	if w.finished(linears) {
		err = w.restoreBlock(ctx, l, linears)
	} else {
		err = w.pruneBlock(ctx, l, linears)
	}
	if err != nil {
		return err
	}

	// The next block is measured on what this one gives now that it is pruned: later blocks see, and can make up for,
	// what earlier ones lost.
	if w.measure && l+1 < w.m.Blocks() {
		if err := w.addFactors(linears); err != nil {
			return err
		}
		if err := w.propagate(ctx, l); err != nil {
			return err
		}
	}

	w.m.ReleaseBlock(l, w.o.Out != nil)
	return nil
}

// pruneBlock measures the block, then zeroes weights in all its matrices; in several passes where it has to.
func (w *walk) pruneBlock(ctx context.Context, l int, linears []lm.Linear) error {
	passes := [][]lm.Linear{linears}
	if w.measure {
		passes = w.passes(w.statisticsNeeded(), linears)
	}
	if err := w.measureRegion(ctx, l, w.statisticsNeeded()); err != nil {
		return err
	}

	done := map[string]Tensor{}
	for _, part := range passes {
		if err := w.prunePart(ctx, l, part, done); err != nil {
			return err
		}
	}

	var names []string
	for _, lin := range linears {
		names = append(names, lin.Name)
		if len(passes) > 1 {
			w.tensorDone(done[lin.Name]) // in the block's order
		}
	}

	if !w.measure {
		return nil // they are on the disk already
	}

	return w.commit(l, names)
}

func (w *walk) passes(needs Stats, linears []lm.Linear) [][]lm.Linear {
	return actstats.Plan{
		Needs: actstats.Set(needs), Memory: w.o.HessianMemory, Refreshed: w.o.TrueSequential,
	}.Passes(linears)
}

// statisticsNeeded are those that the matrices of a block are pruned by.
func (w *walk) statisticsNeeded() Stats {
	return w.o.Metric.Needs | w.o.swapNeeds() | w.o.Update.needs() | w.o.tells()
}

// prunePart measures matrices of a block and prunes them.
func (w *walk) prunePart(ctx context.Context, l int, part []lm.Linear, done map[string]Tensor) error {
	stats, err := w.statistics(ctx, l, part, w.statisticsNeeded())
	if err != nil {
		return err
	}
	defer stats.Free()
	if err := w.tell(part, stats); err != nil {
		return err
	}
	defer since(&w.report.Times.Select, time.Now())

	of := len(w.m.Linears(l))
	for _, lin := range part {
		if err := ctx.Err(); err != nil {
			return err
		}

		w.step(Step{Stage: Select, Block: l, Done: len(done), Of: of})
		if done[lin.Name], err = w.matrix(ctx, lin, stats); err != nil {
			return err
		}
		if len(part) == of {
			w.tensorDone(done[lin.Name])
		}

		if !w.measure { // the block need not stay resident
			if err := w.commit(l, []string{lin.Name}); err != nil {
				return err
			}
		}
	}

	return nil
}

// statistics runs the block for what reaches some of its matrices; its outputs are not kept. nil without an
// error if the metric reads none.
func (w *walk) statistics(ctx context.Context, l int, linears []lm.Linear, needs Stats) (*actstats.Stats, error) {
	if !w.measure {
		return nil, nil
	}
	defer since(&w.report.Times.Statistics, time.Now())

	stats, err := w.newStats(linears, needs)
	if err != nil {
		return nil, err
	}

	stats.Stop = ctx.Err // a batch in the middle of a block must be able to end
	err = w.states.Peek(ctx, l, stats.Hooks(), func(done, of int) {
		w.step(Step{Stage: Statistics, Block: l, Done: done, Of: of})
	})
	if err == nil {
		err = stats.Err()
	}
	if err != nil {
		stats.Free()
		return nil, err
	}

	return stats, nil
}

func (w *walk) newStats(linears []lm.Linear, needs Stats) (*actstats.Stats, error) {
	damping := w.o.Update.Damping
	if w.o.Update.Name == ADMM {
		damping = 0 // that is the ridge of the least squares
	}
	return actstats.New(w.dev, linears, actstats.Set(needs), len(w.calib.IDs), damping)
}

// propagate runs the pruned block in place.
func (w *walk) propagate(ctx context.Context, l int) error {
	defer since(&w.report.Times.Propagate, time.Now())
	return w.states.Advance(ctx, l, nil, func(done, of int) {
		w.step(Step{Stage: Propagate, Block: l, Done: done, Of: of})
	})
}

// describe counts the zeros of a finished matrix and checks its pattern, in the given order of the inputs if
// there is one.
func (w *walk) describe(l lm.Linear, stored kernels.Mat, t Tensor, order []int32) (Tensor, error) {
	t.Name = l.Name
	t.Block = l.Block
	t.Role = string(l.Role)
	t.Expert = l.Expert
	t.Shape = [2]int{stored.Rows, stored.Cols}

	p := w.plan(l)
	t.Group = p.group
	t.Target = p.sparsity
	t.Pattern = p.pattern
	t.Dense = p.dense

	t.Zeros = int64(w.ops.CountZero(stored))
	t.Kept = int64(stored.Len()) - t.Zeros
	t = w.withLowRank(l, t)
	if err := w.ops.Sync(); err != nil || p.dense || !p.pattern.Structured() || w.merged() && t.Rank > 0 {
		return t, err
	}

	t.Short = l.In % p.pattern.M
	if w.o.Permutation != Identity && order == nil {
		return t, nil // the order of a matrix of an interrupted run is not known here
	}

	byOutput := stored
	if l.Transposed {
		var err error
		if byOutput, err = hostmat.Transposed(w.dev, stored); err != nil {
			return t, w.fail(l.Name, err)
		}
		defer byOutput.Buf.Free()
	}

	var err error
	if t.BadGroups, err = hostmat.BadGroups(w.dev, byOutput, p.pattern.N, p.pattern.M, order); err == nil &&
		t.BadGroups > 0 {
		err = fmt.Errorf("%w: %d groups have fewer zeros than %s asks for", ErrMask, t.BadGroups, p.pattern)
	}
	if err != nil {
		return t, w.fail(l.Name, err)
	}

	return t, nil
}

// commit makes masks, then weights durable, and lets go of what the metric does not need any more.
func (w *walk) commit(l int, names []string) error {
	// A resumed run does not prune again what is on the disk, so the masks must be there before the weights are.
	if err := errors.Join(w.o.Masks.sync(), w.o.Factors.sync()); err != nil {
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

// letGo gives back what a block's saved matrices hold. The memory of large ones goes back to the system at
// once: left to itself, the collector would let as much garbage pile up as there is live memory.
func (w *walk) letGo(l int) {
	w.m.ReleaseBlock(l, true)
	if w.keep != nil && w.keep.Len >= largeMatrix && w.host {
		w.keep.Free()
		w.keep = nil
		debug.FreeOSMemory()
	}
}

// finished reports whether an interrupted run has written all matrices of a block.
func (w *walk) finished(linears []lm.Linear) bool {
	if w.o.Out == nil {
		return false
	}
	for _, l := range linears {
		if !w.o.Out.Done(l.Name) || w.o.Masks.damaged(l.Name) || w.o.Factors.damaged(l.Name) && w.rankOf(l) > 0 {
			return false
		}
	}
	return true
}

// restoreBlock takes a block from an interrupted run. What flows into it is measured all the same where somebody asked.
func (w *walk) restoreBlock(ctx context.Context, l int, linears []lm.Linear) error {
	if w.o.Squares != nil {
		stats, err := w.statistics(ctx, l, linears, SumSquares)
		if err != nil {
			return err
		}
		err = w.tell(linears, stats)
		stats.Free()
		if err != nil {
			return err
		}
	}
	return w.restore(ctx, l, linears)
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
		if w.rankOf(lin) > 0 {
			if err := w.o.Factors.restored(lin.Name); err != nil {
				return err
			}
		}

		// Described from the stored bytes, as if just pruned, and compared with the record: a changed file is
		// noticed here.
		t, err := w.describe(lin, stored, Tensor{}, nil)
		if err == nil {
			err = w.asRecorded(t)
		}
		if err != nil {
			return err
		}

		w.tensorDone(t)
		w.report.Total.Restored++
		// Nothing is measured later, so nothing reads this block again.
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
	if err := errors.Join(w.o.Masks.finish(), w.o.Factors.finish()); err != nil {
		return err
	}
	if w.o.Out == nil {
		return w.o.Masks.forget()
	}

	w.step(Step{Stage: Save, Block: w.m.Blocks(), Of: 1})
	if err := w.attachManifest(); err != nil {
		return err
	}
	if err := w.o.Out.Finish(ctx); err != nil {
		return err
	}

	return w.o.Masks.forget()
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
	return fmt.Errorf("%s: tensor %q: %w", w.m.File(name), name, err)
}

func (w *walk) free() {
	w.states.Free()
	w.gradients.Close()
	w.given.close()
	_ = w.o.Factors.close() // it was only read from
	if w.keep != nil {
		w.keep.Free()
	}
}

func since(total *float64, start time.Time) { *total += time.Since(start).Seconds() }
