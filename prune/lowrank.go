package prune

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/failure"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/lowrank"
)

// LowRank says how the metric [OATS] divides matrices into a sparse part and one of low rank.
type LowRank struct {
	// Share is the part of the stored values that the low-rank part gets, more than 0 and less than 1; 0 means 0.25.
	// With a sparsity s all values together are (1 - s)·out·in: r = Share·(1 - s)·out·in/(out + in), rounded down, and
	// the sparse part has the rest. With a pattern N:M the sparse part follows from the pattern, and the low-rank part
	// comes on top of it.
	Share float64 `json:"share,omitempty"`
	// Turns is how often the two parts are made in turn; 0 means 80.
	Turns int `json:"turns,omitempty"`
	// Apart is set by Options.Factors: the weights that are written are the sparse part alone.
	Apart bool `json:"apart,omitempty"`
}

// OATS ranks by what of |W|·√s a low-rank part leaves over, by default within every output neuron; the low-rank part
// goes to Options.Factors, or without these is added to the weights that stay, which then are no longer sparse
// (arXiv:2409.13652).
func OATS() Metric {
	m := Wanda()
	m.Name, m.splits = "oats", true
	return m
}

func (r *LowRank) setDefaults(o *Options) {
	if !o.Metric.splits {
		return
	}
	if r.Share == 0 {
		r.Share = 0.25
	}
	if r.Turns == 0 {
		r.Turns = 80
	}
	r.Apart = o.Factors != nil
}

// lowRankFaults says what a low-rank part does not go with.
func (o Options) lowRankFaults() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, optionsFault(format, args...)) }
	if !o.Metric.splits {
		if o.LowRank.Share != 0 || o.LowRank.Turns != 0 {
			fault("a low-rank part without metric %s, which alone makes one", OATS().Name)
		}
		if o.Factors != nil {
			fault("a file of low-rank factors without metric %s, which alone makes them", OATS().Name)
		}
		return faults
	}

	name := o.Metric.Name
	r := o.LowRank
	if !(r.Share >= 0 && r.Share < 1) {
		fault("metric %s: a low-rank part of %g; want more than 0 and less than 1", name, r.Share)
	}
	if r.Turns < 0 {
		fault("metric %s: %d turns", name, r.Turns)
	}
	if o.Group != "" && o.Group != Row && !o.Pattern.Structured() {
		fault("metric %s with group %s; it compares within rows", name, o.Group)
	}
	if o.Factors != nil && o.Out == nil {
		fault("metric %s: factors go to a file only beside weights that do", name)
	}
	for _, c := range []struct {
		there bool
		what  string
	}{
		{o.Swaps > 0, "swaps, which know nothing of the low-rank part"},
		{o.HasUpdate(), "update " + o.Update.Name + ", which knows nothing of the low-rank part"},
		{o.Permutation != "" && o.Permutation != Identity, "permutation " + string(o.Permutation)},
		{o.TrueSequential, "the true sequential order"},
		{o.Squares != nil, "inputs that are told to a caller"},
	} {
		if c.there {
			fault("metric %s with %s", name, c.what)
		}
	}
	return faults
}

// divide gives the selection of the sparse part of a matrix, and the rank of the other part.
func (r LowRank) divide(p selection, out, in int) (sparse selection, rank int) {
	all, pair := float64(out)*float64(in), float64(out+in)
	most := min(out, in)
	if p.pattern.Structured() {
		kept := (1 - p.pattern.Sparsity()) * all
		return p, min(most, int(r.Share/(1-r.Share)*kept/pair))
	}

	kept := (1 - p.sparsity) * all
	rank = min(most, int(r.Share*kept/pair))
	inRow := min(in, int((kept-float64(rank)*pair)/float64(out)))
	// Half a weight more than goes: what is computed back from the share is truncated.
	p.sparsity = math.Max(0, (float64(in-inRow)+.5)/float64(in))
	if inRow == in {
		p.sparsity = 0
	}
	return p, rank
}

// rankOf is the rank of a matrix' low-rank part; 0: it has none.
func (w *walk) rankOf(l lm.Linear) int {
	p := w.plan(l)
	if !w.o.Metric.splits || p.dense || !p.pattern.Structured() && p.sparsity == 0 {
		return 0
	}
	_, rank := w.o.LowRank.divide(p, l.Out, l.In)
	return rank
}

// merged reports whether the low-rank parts are in the weights, which then have no zeros.
func (w *walk) merged() bool { return w.o.Metric.splits && w.o.Factors == nil }

// split divides a matrix. What it keeps is the sparse part, or all where the low-rank part is added to it.
func (w *walk) split(ctx context.Context, l lm.Linear, c *change) error {
	if w.rankOf(l) == 0 {
		return w.choose(c)
	}

	weights, err := hostmat.F32(w.dev, c.in.W)
	if err != nil {
		return err
	}

	sparse, rank := w.o.LowRank.divide(c.plan, l.Out, l.In)
	return w.onHost(c, func(keep kernels.Mat) error {
		job := lowrank.Job{
			W: weights, Scale: c.scales(), Mask: keep, Rank: rank, Turns: w.o.LowRank.Turns, Threads: w.threads,
			Choose: func(mask, score kernels.Mat) error { return w.selectHost(sparse, mask, score) },
			Stop:   ctx.Err,
		}
		r, err := job.Run()
		if err != nil {
			return err
		}

		c.after = weights
		c.t.Split = &Split{First: r.First, Last: r.Last}
		for _, s := range job.Scale {
			if s == 0 {
				c.t.Dead++
			}
		}
		if !w.merged() {
			return w.o.Factors.write(l.Name, r.A, r.B)
		}

		w.multiply(weights, r.B, r.A)
		for i := range keep.Rows {
			row := keep.RowU8(i)
			for j := range row {
				row[j] = 1
			}
		}
		return nil
	})
}

// scales are the roots of the second moments of a matrix' inputs, all 1 where no token reached it.
func (c *change) scales() []float64 {
	scale := make([]float64, c.in.W.Cols)
	for j := range scale {
		scale[j] = 1
		if c.in.SumSquares != nil {
			scale[j] = math.Sqrt(c.in.SumSquares[j])
		}
	}
	return scale
}

// openFactors opens the file of factors, once it is known what each matrix loses.
func (w *walk) openFactors() error {
	if w.o.Factors == nil {
		return nil
	}

	ranks := map[string]int{}
	var linears []lm.Linear
	for l := range w.m.Blocks() {
		for _, lin := range w.m.Linears(l) {
			if rank := w.rankOf(lin); rank > 0 {
				ranks[lin.Name] = rank
				linears = append(linears, lin)
			}
		}
	}
	if len(ranks) == 0 {
		return failure.Hinted(
			fmt.Errorf("%w: %s: at this sparsity no matrix gets a low-rank part", ErrOptions, w.o.Metric.Name),
			"a lower sparsity above 0, or a larger share for the rank")
	}
	return w.o.Factors.open(linears, ranks, w.o.Out.Complete())
}

// addFactors adds the low-rank parts of a block to its weights, which are on the disk already, so that the next block
// sees the outputs of both.
func (w *walk) addFactors(linears []lm.Linear) error {
	if w.o.Factors == nil || w.o.Factors.gone {
		return nil
	}

	for _, l := range linears {
		if w.rankOf(l) == 0 {
			continue
		}
		if err := w.addFactor(l); err != nil {
			return w.fail(l.Name, err)
		}
	}
	return nil
}

func (w *walk) addFactor(l lm.Linear) error {
	a, b, err := w.o.Factors.Pair(l.Name)
	if err != nil {
		return err
	}
	own, err := w.m.MutableParam(l.Name)
	if err != nil {
		return err
	}

	view := own
	if l.Transposed {
		if view, err = hostmat.Transposed(w.dev, own); err != nil {
			return err
		}
		defer view.Buf.Free()
	}

	sum, err := hostmat.F32(w.dev, view)
	if err != nil {
		return err
	}
	w.multiply(sum, b, a)
	return hostmat.Store(w.dev, own, sum, l.Transposed)
}

// withLowRank fills in what the parts of a finished matrix are.
func (w *walk) withLowRank(l lm.Linear, t Tensor) Tensor {
	if t.Rank = w.rankOf(l); t.Rank == 0 {
		return t
	}

	sparse, _ := w.o.LowRank.divide(w.plan(l), l.Out, l.In)
	gone := rowCount(l.In, sparse.sparsity)
	if p := sparse.pattern; p.Structured() {
		gone = l.In/p.M*p.N + min(l.In%p.M, p.N)
	}
	t.Stored = int64(l.Out)*int64(l.In-gone) + int64(t.Rank)*int64(l.In+l.Out)
	return t
}

// lowRankRemarks is what a reader of the weights alone must know.
func (w *walk) lowRankRemarks(remarks []string) []string {
	switch {
	case !w.o.Metric.splits:
		return remarks
	case w.merged():
		return append(slices.Clone(remarks), "the weights are sums of a sparse and a low-rank part")
	}
	return append(slices.Clone(remarks), "the weights are the sparse parts of sums whose low-rank parts are an "+
		"adapter: without it the model is not complete")
}
