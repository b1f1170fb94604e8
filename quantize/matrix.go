package quantize

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/obs"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// rounding is the work on one matrix.
type rounding struct {
	lin     lm.Linear
	grid    *grid
	before  kernels.Mat // F32 in host memory
	after   kernels.Mat // the same, with the values of the grid in the end
	largest float32     // see [grid.fit]
	stats   *actstats.Stats
	t       Matrix // what is to be reported
}

// matrix rounds a matrix, writes it, and lets the model compute with it.
func (w *walk) matrix(ctx context.Context, lin lm.Linear, largest float32, stats *actstats.Stats) (Matrix, error) {
	r := &rounding{lin: lin, largest: largest, stats: stats, t: w.describe(lin)}
	stored, err := w.m.Param(lin.Name)
	if err != nil {
		return r.t, err
	}
	if err := w.finite(lin, stored); err != nil {
		return r.t, err
	}
	if r.before, err = hostmat.F32(w.dev, stored); err != nil {
		return r.t, err
	}
	if r.grid, err = w.newGrid(lin); err != nil {
		return r.t, err
	}
	if w.scaling != nil && w.scaling.matrices[lin.Name] != nil {
		w.scaling.matrices[lin.Name].apply(r.before, w.threads)
		r.grid.foreign = true
	}
	if err := w.searched(r); err != nil {
		return r.t, err
	}

	r.grid.code = make([]byte, r.before.Len())
	r.after = r.before
	if w.o.measures() { // what the values were is asked for later, too
		r.after = kernels.MatOf(kernels.NewHost(kernels.F32, r.before.Len()), r.before.Rows, r.before.Cols)
		copy(r.after.Buf.F32(), r.before.Buf.F32())
	}
	if w.o.sweeps() && stats.SumOf(lin.Name).Tokens() > 0 {
		err = w.sweep(ctx, r)
	} else {
		err = w.alone(r)
	}
	if err == nil {
		err = r.grid.nonFinite()
	}
	if err != nil {
		return r.t, err
	}

	if err := w.output.write(lin.Name, r.grid); err != nil {
		return r.t, err
	}
	if !w.o.measures() {
		return r.t, nil // nothing runs the block
	}
	// A run that is continued goes on with what it reads, so this one does too.
	if d := r.grid.form.readAs(); d != 0 {
		if err := roundTo(r.after, d, w.threads); err != nil {
			return r.t, err
		}
	}
	if w.o.prunes() || w.o.KeepZeros {
		r.t.Zeros = zeros(r.after)
	}
	return r.t, w.use(lin, r.after)
}

// alone rounds every weight of a matrix by itself.
func (w *walk) alone(r *rounding) error {
	r.t.Unreached = w.o.measures() && r.stats.SumOf(r.lin.Name).Tokens() == 0
	if !r.grid.foreign {
		r.grid.roundQuotients()
	}
	r.grid.fit(r.before, r.largest, w.threads)
	if !w.o.prunes() {
		r.t.Error = r.grid.roundAll(r.after, w.threads)
		return nil
	}

	if err := w.removeApart(r); err != nil {
		return err
	}
	r.grid.roundAll(r.after, w.threads)
	r.t.Error = weightError(r.before, r.after, w.threads)
	return nil
}

// finite refuses a matrix with weights that are no numbers.
func (w *walk) finite(lin lm.Linear, stored kernels.Mat) error {
	if at := w.ops.NonFinite(stored); at >= 0 {
		return fmt.Errorf("element [%d, %d]: %w", at/lin.In, at%lin.In, ErrNonFinite)
	}
	return nil
}

// allFinite refuses a block with such weights before it runs: its activations would be no numbers either, and the
// fault be told of the first matrix that they reach.
func (w *walk) allFinite(linears []lm.Linear) error {
	for _, lin := range linears {
		stored, err := w.m.Param(lin.Name)
		if err == nil {
			err = w.finite(lin, stored)
		}
		if err != nil {
			return fmt.Errorf("%s: tensor %q: %w", w.m.File(lin.Name), lin.Name, err)
		}
	}
	return nil
}

// searched says by which range the scales of a matrix are fitted.
func (w *walk) searched(r *rounding) error {
	g := r.grid
	g.halves = w.o.Method == HQQ
	switch w.o.Range {
	case RangeMSE:
		g.search = &quantized.LeastError
		if g.scheme.Strategy == PerTensorGroup {
			g.search = &quantized.WideError
		}
	case RangeImatrix:
		g.search = &quantized.WeightedError
		in, err := w.inputsOr(r.stats).Of(r.lin)
		if err != nil {
			return err
		}
		// What no token came to is weighted by nothing.
		for _, s := range in.SumSquares {
			g.weight = append(g.weight, float32(s))
		}
		if by := w.scaling.columnsOf(r.lin.Name); by != nil {
			for j := range g.weight {
				g.weight[j] /= by[j] * by[j]
			}
		}
	case RangeClip:
		return w.clip(r)
	}
	return nil
}

// inputsOr is what was measured besides Hessians: by itself, or with them.
func (w *walk) inputsOr(stats *actstats.Stats) *actstats.Stats {
	if w.inputs != nil {
		return w.inputs
	}
	return stats
}

func (w *walk) describe(lin lm.Linear) Matrix {
	return Matrix{
		Name: lin.Name, Block: lin.Block, Role: string(lin.Role), Expert: lin.Expert, Shape: [2]int{lin.Out, lin.In},
		Scheme: w.o.schemeOf(module(lin.Name)).Name,
	}
}

// use lets the model compute with new values, F32 in host memory.
func (w *walk) use(lin lm.Linear, after kernels.Mat) error {
	own, err := w.m.MutableParam(lin.Name)
	if err != nil {
		return err
	}

	if err := hostmat.Store(w.dev, own, after, false); err != nil {
		return err
	}
	return w.ops.Sync()
}

// roundTo rounds values, F32 in host memory, to those of a type.
func roundTo(m kernels.Mat, d safetensors.DType, threads int) error {
	faults := make([]error, m.Rows)
	mmapsafe.Split(threads, m.Rows, func(lo, hi int) {
		data := make([]byte, m.Cols*dtype.Size(d))
		for i := lo; i < hi; i++ {
			row := m.RowF32(i)
			faults[i] = dtype.Encode(data, row, d)
			if faults[i] == nil {
				faults[i] = dtype.Decode(row, data, d)
			}
		}
	})
	m.Buf.Changed()
	return errors.Join(faults...)
}

// restore takes a matrix of an interrupted run, and lets the model compute with it if it is to run.
func (w *walk) restore(lin lm.Linear, run bool) error {
	m, end, err := w.output.read(lin.Name)
	if err != nil {
		return err
	}
	defer func() { _ = end() }()

	after := kernels.MatOf(kernels.NewHost(kernels.F32, m.Rows*m.Cols), m.Rows, m.Cols)
	// The file is mapped, so a lost page is an error within the group.
	if err := mmapsafe.Do(func() error { return m.Decode(after.Buf.F32(), 0, m.Rows) }); err != nil {
		return err
	}

	t, known := w.output.matrices[lin.Name]
	if !known {
		t = w.describe(lin)
		// With factors, what it was rounded from is not known any more.
		if !w.o.folds() {
			stored, err := w.m.Param(lin.Name)
			if err != nil {
				return err
			}
			before, err := hostmat.F32(w.dev, stored)
			if err != nil {
				return err
			}
			t.Error = weightError(before, after, w.threads)
		}
	}
	t.Restored = true
	w.add(t)
	if !run {
		return nil
	}
	return w.use(lin, after)
}

// weightError is ‖Ŵ - W‖²/‖W‖², 0 of a matrix of zeros.
func weightError(before, after kernels.Mat, threads int) float64 {
	lost := make([]loss, before.Rows)
	mmapsafe.Split(threads, before.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			lost[i] = lossOf(before.RowF32(i), after.RowF32(i))
		}
	})
	return relative(lost)
}

// loss is the squared error of some weights, and the sum of their squares.
type loss struct{ lost, all float64 }

// lossOf adds up in four places, so that no sum waits for the one before it.
func lossOf(before, after []float32) loss {
	var lost, all [4]float64
	n := len(before) / 4 * 4
	for i := 0; i < n; i += 4 {
		was, now := before[i:i+4:i+4], after[i:i+4:i+4]
		for k := range 4 {
			d := float64(now[k]) - float64(was[k])
			lost[k] += d * d
			all[k] += float64(was[k]) * float64(was[k])
		}
	}
	for i := n; i < len(before); i++ {
		d := float64(after[i]) - float64(before[i])
		lost[0] += d * d
		all[0] += float64(before[i]) * float64(before[i])
	}
	return loss{lost[0] + lost[1] + lost[2] + lost[3], all[0] + all[1] + all[2] + all[3]}
}

// relative is the squared error of all rows as a fraction of their squares.
func relative(rows []loss) float64 {
	var sum loss
	for _, r := range rows {
		sum.lost += r.lost
		sum.all += r.all
	}
	if sum.all == 0 {
		return 0
	}
	return sum.lost / sum.all
}

// joint is matrices that runtimes run as one, by the role of the first of them.
type joint struct {
	role   arch.Role
	expert int
}

func jointOf(lin lm.Linear) joint {
	switch lin.Role {
	case arch.Q, arch.K, arch.V:
		return joint{arch.Q, lin.Expert}
	case arch.Gate, arch.Up:
		return joint{arch.Gate, lin.Expert}
	case arch.SharedGate, arch.SharedUp:
		return joint{arch.SharedGate, lin.Expert}
	}
	return joint{lin.Role, lin.Expert}
}

// together gives, for schemes with a scale for the whole matrix, the largest magnitude of all matrices that runtimes
// run as one and that must have it in common: q, k and v, and gate and up. nil for other schemes.
func (w *walk) together(linears []lm.Linear) (map[string]float32, error) {
	if !slices.ContainsFunc(linears, w.shares) {
		return nil, nil
	}

	found := map[joint]float32{}
	for _, lin := range linears {
		if !w.shares(lin) {
			continue
		}
		stored, err := w.m.Param(lin.Name)
		if err != nil {
			return nil, err
		}
		m, err := hostmat.F32(w.dev, stored)
		if err != nil {
			return nil, err
		}
		if w.scaling != nil && w.scaling.matrices[lin.Name] != nil {
			w.scaling.matrices[lin.Name].apply(m, w.threads)
		}
		found[jointOf(lin)] = max(found[jointOf(lin)], magnitude(m))
	}

	largest := map[string]float32{}
	for _, lin := range linears {
		if w.shares(lin) {
			largest[lin.Name] = found[jointOf(lin)]
		}
	}
	return largest, nil
}

// shares reports whether a matrix gets a scale for all of it.
func (w *walk) shares(lin lm.Linear) bool {
	return w.o.schemeOf(module(lin.Name)).Weights.Strategy == PerTensorGroup
}

// factor is that of the Hessian that was factored last: matrices that read the same input come one after the other.
type factor struct {
	of      *actstats.Sum
	h       linalg.Matrix // of the inputs with their factors
	u       kernels.Mat
	order   []int // of the columns of u; nil: as they are stored
	damping linalg.Damping
}

func (f *factor) forget() {
	if f.of != nil {
		f.u.Buf.Free()
	}
	*f = factor{}
}

// factored makes the factor of a matrix' Hessian in the order of the sweep.
func (w *walk) factored(lin lm.Linear, stats *actstats.Stats) error {
	sum := stats.SumOf(lin.Name)
	if w.factor.of == sum {
		return nil
	}
	w.factor.forget()

	h, err := stats.HessianOf(sum, lin)
	if err != nil {
		return err
	}
	if by := w.scaling.columnsOf(lin.Name); by != nil {
		h = divided(h, by, w.threads)
	}
	whole := h

	var order []int
	if w.o.Order == OrderWeight {
		diagonal := make([]float64, h.Rows)
		for j := range diagonal {
			diagonal[j] = h.At(j, j)
		}
		for _, j := range sum.Dead {
			diagonal[j] = 0 // it is 1 so that the Hessian can be factored
		}

		order = byWeight(diagonal)
		h = turned(h, order, w.threads)
	}

	view, err := kernels.Wrap(kernels.F64, hostmat.BytesOf(h.Data))
	if err != nil {
		return err
	}
	u := kernels.MatOf(kernels.NewHost(kernels.F32, h.Rows*h.Rows), h.Rows, h.Rows)
	solver := linalg.Solver{Threads: w.threads, Device: w.dev, Stop: stats.Stop}
	damping, err := solver.DampedInverseFactor(u, kernels.MatOf(view, h.Rows, h.Rows), w.o.Damping)
	if err != nil {
		return fmt.Errorf("the Hessian: %w", err)
	}

	w.factor = factor{of: sum, h: whole, u: u, order: order, damping: damping}
	return nil
}

// divided is the Hessian of inputs that are divided by factors.
func divided(h linalg.Matrix, by []float32, threads int) linalg.Matrix {
	out := linalg.New(h.Rows, h.Cols)
	mmapsafe.Split(threads, h.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			for j := range by {
				out.Set(i, j, h.At(i, j)/(float64(by[i])*float64(by[j])))
			}
		}
	})
	return out
}

// turned puts the rows and columns of a symmetric matrix in another order.
func turned(h linalg.Matrix, order []int, threads int) linalg.Matrix {
	out := linalg.New(h.Rows, h.Cols)
	mmapsafe.Split(threads, h.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			for j, from := range order {
				out.Set(i, j, h.At(order[i], from))
			}
		}
	})
	return out
}

// sweep runs GPTQ over a matrix.
func (w *walk) sweep(ctx context.Context, r *rounding) error {
	if err := w.factored(r.lin, r.stats); err != nil {
		return err
	}
	g := r.grid
	sum := r.stats.SumOf(r.lin.Name)
	for i := range r.after.Rows {
		for _, j := range sum.Dead { // an input that is always 0
			r.after.RowF32(i)[j] = 0
		}
	}

	// Scales are those of all weights as they came, unless they are fitted on the way.
	g.late = w.o.FitLate && g.across < g.cols
	g.fit(r.after, r.largest, w.threads)

	job := obs.Job{
		W: r.after, U: w.factor.u, Grid: g, Threads: w.threads, Mul: w.multiply,
		Stop: func(int, int) error { return ctx.Err() },
	}
	if g.late {
		job.Group = g.across
	}
	if w.factor.order != nil {
		g.order = w.factor.order
		job.W = reordered(r.after, g.order, w.threads)
	}
	switch {
	case w.o.KeepZeros:
		keeping(&job)
	case w.o.prunes():
		if err := w.removal(&job); err != nil {
			return err
		}
	}
	if _, err := job.Run(); err != nil {
		return err
	}
	if !job.Mask.IsZero() {
		g.removed(job.Mask, w.threads)
	}
	if g.order != nil {
		putBack(r.after, job.W, g.order, w.threads)
	}

	r.t.Error = weightError(r.before, r.after, w.threads)
	damping := Damping(w.factor.damping)
	r.t.Damping = &damping
	r.t.Dead = len(sum.Dead)
	return w.outputErrors(r)
}

// multiply adds x·y to dst, all in host memory.
func (w *walk) multiply(dst, x, y kernels.Mat) {
	if w.host {
		w.ops.MatMulNN(dst, x, y, kernels.MatMul{Accumulate: true})
		return
	}
	hostmat.Multiply(w.dev, dst, x, y)
}

// reordered is a copy of a matrix with its columns in another order.
func reordered(m kernels.Mat, order []int, threads int) kernels.Mat {
	out := kernels.MatOf(kernels.NewHost(kernels.F32, m.Len()), m.Rows, m.Cols)
	mmapsafe.Split(threads, m.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			from, to := m.RowF32(i), out.RowF32(i)
			for j, at := range order {
				to[j] = from[at]
			}
		}
	})
	return out
}

// putBack is the opposite of reordered.
func putBack(m, from kernels.Mat, order []int, threads int) {
	mmapsafe.Split(threads, m.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			to, row := m.RowF32(i), from.RowF32(i)
			for j, at := range order {
				to[at] = row[j]
			}
		}
	})
	m.Buf.Changed()
}

// errorRows is how many rows of a matrix the errors of its outputs are measured on.
const errorRows = 64

// outputErrors measures what the new weights do to the outputs of a matrix, and what rounding each weight by itself
// would.
func (w *walk) outputErrors(r *rounding) error {
	before, after := r.before, r.after
	sum := r.stats.SumOf(r.lin.Name)
	h := w.factor.h
	alone, err := w.newGrid(r.lin)
	if err != nil {
		return err
	}
	alone.foreign = r.grid.foreign
	alone.search, alone.weight, alone.shares = r.grid.search, r.grid.weight, r.grid.shares
	alone.code = make([]byte, alone.rows*alone.cols)
	alone.fit(before, r.largest, w.threads)

	n := min(errorRows, before.Rows)
	dense := linalg.New(n, before.Cols)
	changed := linalg.New(n, before.Cols)
	rounded := linalg.New(n, before.Cols)
	for k := range n {
		i := k * before.Rows / n
		now := after.RowF32(i)
		for j, v := range before.RowF32(i) {
			dense.Set(k, j, float64(v))
			changed.Set(k, j, float64(now[j])-float64(v))
			rounded.Set(k, j, float64(alone.Round(i, j, v))-float64(v))
		}
		for _, j := range sum.Dead {
			dense.Set(k, j, 0)
			changed.Set(k, j, 0)
			rounded.Set(k, j, 0)
		}
	}

	s := linalg.Solver{Threads: w.threads}
	if all := s.Energy(dense, h); all > 0 {
		output := s.Energy(changed, h) / all
		apart := s.Energy(rounded, h) / all
		r.t.OutputError = &output
		r.t.Rounded = &apart
	}
	return nil
}
