package structure

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// The ways to choose layers; the package's documentation says what each does.
const (
	Influence = "influence"
	Angular   = "angular"
	Taylor    = "taylor"
	Greedy    = "greedy"
	Search    = "search"
)

// Ways lists the ways to choose layers.
func Ways() []string { return []string{Influence, Angular, Taylor, Greedy, Search} }

// depth is a choice of layers under way.
type depth struct {
	m     *lm.Model
	calib corpus.Windows
	o     Options
	keep  int

	progress    func(done, of int64)
	done, total int64 // of the work, in tokens that pass a layer
}

// batchTokens is about how many tokens run at a time.
const batchTokens = 8192

// batches divides the text into those sequences that run at a time.
func (d *depth) batches() []corpus.Windows { return d.calib.Batches(batchTokens) }

// did counts work.
func (d *depth) did(tokens int64) {
	d.done = min(d.done+tokens, d.total)
	d.progress(d.done, d.total)
}

func (d *depth) choose(ctx context.Context) (*Depth, error) {
	if kept := d.o.given(d.m.Blocks()); kept != nil {
		r := &Depth{Layers: d.m.Blocks(), Kept: kept, By: Given}
		r.Dropped = others(kept, r.Layers)
		return r, nil
	}

	way := map[string]func(context.Context) (*Depth, error){
		Influence: d.influence, Angular: d.angular, Taylor: d.taylor, Greedy: d.greedy, Search: d.search,
	}
	choose := way[d.o.By]
	if choose == nil {
		p, err := partsFormula(d.o.By)
		if err != nil {
			return nil, err
		}
		choose = func(ctx context.Context) (*Depth, error) { return d.formula(ctx, p) }
	}
	r, err := choose(ctx)
	if err != nil {
		return nil, err
	}

	r.Layers, r.By = d.m.Blocks(), d.o.By
	r.Kept = others(r.Dropped, r.Layers)
	return r, nil
}

// lowest is the choice where every layer has a score of its own: those of least go, of equal ones the later.
func (d *depth) lowest(scores []float64) *Depth {
	order := upTo(len(scores))
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case scores[a] < scores[b] || scores[a] == scores[b] && a > b:
			return -1
		case a == b:
			return 0
		}
		return 1
	})

	return &Depth{Scores: scores, Dropped: order[:len(scores)-d.keep]}
}

// tokens is how many the text has.
func (d *depth) tokens() (n int64) {
	for _, ids := range d.calib.IDs {
		n += int64(len(ids))
	}
	return n
}

// influence measures how little each layer turns the stream.
func (d *depth) influence(ctx context.Context) (*Depth, error) {
	streams, err := d.streams(ctx)
	if err != nil {
		return nil, err
	}
	return d.lowest(streams[gp.Bi]), nil
}

// walk runs the model once and shows the stream before and behind every layer, in host memory, of batches of sequences
// that begin with the one of number first.
func (d *depth) walk(ctx context.Context, see func(l, first int, before, after kernels.Mat, lens []int)) error {
	dev := d.m.Device()
	d.total = d.tokens() * int64(d.m.Blocks())
	return through(ctx, d.m, d.calib, batchTokens, func(l, first int, h *lm.Hidden) error {
		before, err := hostmat.F32(dev, h.X)
		if err != nil {
			return err
		}
		if err := d.m.RunBlock(ctx, l, h, nil); err != nil {
			return err
		}
		after, err := hostmat.F32(dev, h.X)
		if err != nil {
			return err
		}

		see(l, first, before, after, h.Lens)
		d.did(int64(h.X.Rows))
		return nil
	})
}

// through goes through the model layer by layer, so that one that is streamed is read once: run gets every layer with
// all sequences, about tokens at a time, to run it on them in place; first is the number of the first of them.
func through(ctx context.Context, m *lm.Model, calib corpus.Windows, tokens int,
	run func(l, first int, h *lm.Hidden) error,
) error {
	states, err := actstats.NewStates(ctx, m, calib.IDs, tokens)
	if err != nil {
		return err
	}
	defer states.Free()

	for l := range m.Blocks() {
		err := states.Each(func(first int, h *lm.Hidden) error { return run(l, first, h) })
		if err != nil {
			return err
		}
	}

	return nil
}

// cosine is that of the angle between two vectors; 0 for one without a direction.
func cosine(a, b []float32) float64 {
	dot := 0.0
	aa, bb := 0.0, 0.0
	for i, v := range a {
		x, y := float64(v), float64(b[i])
		dot += x * y
		aa += x * x
		bb += y * y
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return dot / math.Sqrt(aa*bb)
}

// angular looks for the run of layers that turns the last token of each sequence least.
func (d *depth) angular(ctx context.Context) (*Depth, error) {
	// The stream of each sequence's last token before each layer, and behind the last one.
	last := make([][][]float32, len(d.calib.IDs))
	err := d.walk(ctx, func(l, first int, before, after kernels.Mat, lens []int) {
		row := -1
		for i, n := range lens {
			row += n
			s := first + i
			if l == 0 {
				last[s] = append(last[s], slices.Clone(before.RowF32(row)))
			}
			last[s] = append(last[s], slices.Clone(after.RowF32(row)))
		}
	})
	if err != nil {
		return nil, err
	}

	n := d.m.Blocks() - d.keep
	scores := make([]float64, d.keep+1)
	best := 0
	for l := range scores {
		for _, streams := range last {
			scores[l] += math.Acos(min(max(cosine(streams[l], streams[l+n]), -1), 1)) / math.Pi
		}
		scores[l] /= float64(len(last))
		if math.IsNaN(scores[l]) {
			return nil, fmt.Errorf("layer %d: %w: angular distance", l, lm.ErrNonFinite)
		}
		if scores[l] < scores[best] {
			best = l
		}
	}

	r := &Depth{Scores: scores}
	for i := range n {
		r.Dropped = append(r.Dropped, best+i)
	}

	return r, nil
}

// taylor sums what the loss would change by, to first order, if each weight of a layer went.
func (d *depth) taylor(ctx context.Context) (*Depth, error) {
	d.total = d.tokens() * int64(d.m.Blocks()) * 3 // a pass back is two forward
	scores := make([]float64, d.m.Blocks())
	block := map[string]int{}
	for l := range d.m.Blocks() {
		for _, p := range d.m.Params(l) {
			block[p.Name] = l
		}
	}

	hooks := &lm.Hooks{WeightGrad: func(name string, g kernels.Mat) error {
		w, err := d.m.Param(name)
		if err != nil {
			return err
		}
		if w, err = hostmat.F32(d.m.Device(), w); err != nil {
			return err
		}
		if g, err = hostmat.F32(d.m.Device(), g); err != nil {
			return err
		}

		sum := 0.0
		for i := range w.Rows {
			grads := g.RowF32(i)
			for j, v := range w.RowF32(i) {
				sum += math.Abs(float64(v) * float64(grads[j]))
			}
		}
		scores[block[name]] += sum / float64(len(d.calib.IDs))
		return nil
	}}
	want := func(name string) bool { _, ok := block[name]; return ok }
	for i, ids := range d.calib.IDs {
		o := lm.BackwardOptions{Hooks: hooks, Want: want, WantHidden: func(int) bool { return false }}
		if d.calib.Labels != nil {
			o.Labels = d.calib.Labels[i : i+1]
		}
		if _, err := d.m.Backward(ctx, [][]int32{ids}, o); err != nil {
			return nil, err
		}
		d.did(int64(len(ids)) * int64(d.m.Blocks()) * 3)
	}

	return d.lowest(scores), nil
}
