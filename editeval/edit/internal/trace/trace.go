package trace

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/editeval/edit/internal/site"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// Options configure [Run].
type Options struct {
	Samples int     // noisy copies; 0 means 10
	Noise   float64 // standard deviations of the subject's embeddings; 0 means 3
	Window  int     // layers whose MLP or attention is restored together; 0 means 10, at most half of the model's
	Seed    uint64
	// Draws is the noise itself, one row a sample and subject token, instead of a draw.
	Draws linalg.Matrix
}

// Result is where a model keeps a fact: the mean probability of the answer over noisy runs in which one state
// is what it is in the clean run, by token and decoder layer.
type Result struct {
	Answer    int32
	Clean     float64 // probability without noise
	Corrupted float64 // and with
	Sigma     float64 // standard deviation of the noise
	Window    int
	Hidden    [][]float64 // what leaves a layer
	MLP       [][]float64
	Attention [][]float64
}

// tracer is a trace under way.
type tracer struct {
	m        *lm.Model
	o        Options
	ids      []int32
	from, to int // the subject
	answer   int32
	clean    *seenAll
	noise    linalg.Matrix
}

// seenAll is what every layer gives at every token, in the clean run: the stream, the MLP and attention.
type seenAll struct{ stream, mlp, attn []linalg.Matrix }

// Run does causal tracing (ROME: causal_trace.py): noise is added to the embeddings of the tokens from … to-1,
// the subject, and one state after another is restored. A negative answer means the top-1 token of
// the clean model.
func Run(ctx context.Context, m *lm.Model, ids []int32, from, to int, answer int32, o Options) (*Result, error) {
	if from < 0 || to <= from || to > len(ids) {
		return nil, fmt.Errorf("%w: tokens %d to %d of %d", site.ErrSubject, from, to, len(ids))
	}

	t := &tracer{m: m, o: o, ids: ids, from: from, to: to, answer: answer}
	if t.o.Samples == 0 {
		t.o.Samples = 10
	}
	if t.o.Window == 0 {
		t.o.Window = max(1, min(10, m.Blocks()/2))
	}
	if t.o.Samples < 1 || t.o.Samples > 10_000 || t.o.Window < 1 || !(t.o.Noise >= 0) {
		return nil, fmt.Errorf("%w: samples %d, window %d, noise %g", site.ErrOptions, o.Samples, o.Window, o.Noise)
	}

	r := &Result{Window: t.o.Window}
	if err := t.cleanRun(ctx, r); err != nil {
		return nil, err
	}
	if err := t.draw(r); err != nil {
		return nil, err
	}

	p, err := t.run(ctx, []int{-1}, 0, 0, nil)
	if err != nil {
		return nil, err
	}

	r.Corrupted = p[0]

	for _, k := range []struct {
		to    *[][]float64
		role  arch.Role
		clean []linalg.Matrix
	}{{&r.Hidden, "", t.clean.stream}, {&r.MLP, arch.Down, t.clean.mlp}, {&r.Attention, arch.O, t.clean.attn}} {
		if *k.to, err = t.grid(ctx, k.role, k.clean); err != nil {
			return nil, err
		}
	}

	return r, nil
}

// cleanRun runs the prompt as it is.
func (t *tracer) cleanRun(ctx context.Context, r *Result) error {
	n, blocks := len(t.ids), t.m.Blocks()
	t.clean = &seenAll{make([]linalg.Matrix, blocks), make([]linalg.Matrix, blocks), make([]linalg.Matrix, blocks)}
	var names []string
	for b := range blocks {
		for _, role := range []arch.Role{arch.Down, arch.O} {
			l, err := site.Linear(t.m, b, role)
			if err != nil {
				return err
			}
			names = append(names, l.Name)
		}

		for _, list := range [][]linalg.Matrix{t.clean.stream, t.clean.mlp, t.clean.attn} {
			list[b] = linalg.New(n, t.m.Config().Hidden)
		}
	}

	look := &site.Tap{Rows: site.Rows{Dev: t.m.Device()}}
	for i := range n {
		look.At = append(look.At, i)
	}

	look.See = func(l lm.Linear, i int, _, y []float64) []float64 {
		list := t.clean.mlp
		if l.Role == arch.O {
			list = t.clean.attn
		}
		copy(list[l.Block].Row(i), y)
		return nil
	}

	undo, err := t.m.Attach(look, names...)
	if err != nil {
		return err
	}
	defer undo()

	h, err := t.m.Embed([][]int32{t.ids})
	if err != nil {
		return err
	}
	defer h.Free()

	for b := range blocks {
		if err := t.m.RunBlock(ctx, b, h, nil); err != nil {
			return err
		}

		for i := range n {
			v, err := look.Rows.Get(h.X, i)
			if err != nil {
				return err
			}
			copy(t.clean.stream[b].Row(i), v)
		}
	}

	losses, best, err := t.m.Score(ctx, h, []int32{int32(n - 1)}, [][]int32{{max(t.answer, 0)}})
	if err != nil {
		return err
	}

	if t.answer < 0 && best[0] >= 0 { // which is known only now
		t.answer = best[0]
		losses, _, err = t.m.Score(ctx, h, []int32{int32(n - 1)}, [][]int32{{t.answer}})
	}

	r.Answer, r.Clean = t.answer, math.Exp(-losses[0][0])
	return err
}

// draw makes the noise.
func (t *tracer) draw(r *Result) error {
	width := t.to - t.from
	if t.o.Draws.Rows > 0 {
		t.noise = t.o.Draws
		if t.noise.Rows != t.o.Samples*width || t.noise.Cols != t.m.Config().Hidden {
			return fmt.Errorf("%w: noise of %d × %d", site.ErrOptions, t.noise.Rows, t.noise.Cols)
		}
		return nil
	}

	h, err := t.m.Embed([][]int32{t.ids[t.from:t.to]})
	if err != nil {
		return err
	}
	defer h.Free()

	var all []float64
	for i := range width {
		v, err := (site.Rows{Dev: t.m.Device()}).Get(h.X, i)
		if err != nil {
			return err
		}
		all = append(all, v...)
	}

	mean, s := 0.0, 0.0
	for _, v := range all {
		mean += v / float64(len(all))
	}
	for _, v := range all {
		s += (v - mean) * (v - mean) / float64(len(all))
	}

	factor := t.o.Noise
	if factor == 0 {
		factor = 3
	}

	r.Sigma = factor * math.Sqrt(s)
	draw := rand.New(rand.NewPCG(t.o.Seed, 0x7261636574))
	t.noise = linalg.New(t.o.Samples*width, t.m.Config().Hidden)
	for i := range t.noise.Data {
		t.noise.Data[i] = r.Sigma * draw.NormFloat64()
	}

	return nil
}

// grid restores every token at every layer.
func (t *tracer) grid(ctx context.Context, role arch.Role, clean []linalg.Matrix) ([][]float64, error) {
	out := make([][]float64, len(t.ids))
	for i := range out {
		out[i] = make([]float64, t.m.Blocks())
	}

	// A single MLP or attention changes too little to be seen against the noise, so a window of layers is restored; a
	// hidden state holds everything below it, and is restored alone.
	per := max(1, site.PassTokens/(t.o.Samples*len(t.ids)))
	for b := range t.m.Blocks() {
		lo, hi := b, b+1
		if role != "" {
			lo, hi = max(0, b-t.o.Window/2), min(t.m.Blocks(), b+(t.o.Window+1)/2)
		}

		for first := 0; first < len(t.ids); first += per {
			var tokens []int
			for i := first; i < min(first+per, len(t.ids)); i++ {
				tokens = append(tokens, i)
			}

			p, err := t.run(ctx, tokens, lo, hi, func(r *restore) { r.role, r.clean = role, clean })
			if err != nil {
				return nil, err
			}

			for i, v := range p {
				out[tokens[i]][b] = v
			}
		}
	}

	return out, nil
}

// restore says what is put back into noisy runs.
type restore struct {
	role  arch.Role // "": what leaves the layers
	clean []linalg.Matrix
}

// run runs the noisy copies once for each of the tokens (-1: none), which is restored in the layers lo … hi-1,
// and returns the probabilities of the answer.
func (t *tracer) run(ctx context.Context, tokens []int, lo, hi int, set func(*restore)) ([]float64, error) {
	var r restore
	if set != nil {
		set(&r)
	}

	n, dev := len(t.ids), site.Rows{Dev: t.m.Device()}
	var ids [][]int32
	for range len(tokens) * t.o.Samples {
		ids = append(ids, t.ids)
	}

	h, err := t.m.Embed(ids)
	if err != nil {
		return nil, err
	}
	defer h.Free()

	var at, token []int // rows that are restored
	for s := range ids {
		sample := s % t.o.Samples
		for k := t.from; k < t.to; k++ {
			if err := dev.Add(h.X, s*n+k, t.noise.Row(sample*(t.to-t.from)+k-t.from)); err != nil {
				return nil, err
			}
		}

		if i := tokens[s/t.o.Samples]; i >= 0 {
			at, token = append(at, s*n+i), append(token, i)
		}
	}

	if r.role != "" {
		undo, err := t.attach(r, at, token, lo, hi)
		if err != nil {
			return nil, err
		}
		defer undo()
	}

	for b := range t.m.Blocks() {
		if err := t.m.RunBlock(ctx, b, h, nil); err != nil {
			return nil, err
		}
		if r.role != "" || b < lo || b >= hi {
			continue
		}

		for i, row := range at {
			if err := dev.Put(h.X, row, r.clean[b].Row(token[i])); err != nil {
				return nil, err
			}
		}
	}

	return t.probabilities(ctx, h, len(tokens))
}

// attach puts what MLP or attention gave in the clean run back.
func (t *tracer) attach(r restore, at, token []int, lo, hi int) (func(), error) {
	var names []string
	for b := lo; b < hi; b++ {
		l, err := site.Linear(t.m, b, r.role)
		if err != nil {
			return nil, err
		}
		names = append(names, l.Name)
	}

	return t.m.Attach(&site.Tap{
		Rows: site.Rows{Dev: t.m.Device()}, At: at,
		See: func(l lm.Linear, i int, _, y []float64) []float64 {
			return site.Minus(r.clean[l.Block].Row(token[i]), y)
		},
	}, names...)
}

// probabilities are the means over samples.
func (t *tracer) probabilities(ctx context.Context, h *lm.Hidden, groups int) ([]float64, error) {
	n := len(t.ids)
	var last []int32
	var want [][]int32
	for s := range groups * t.o.Samples {
		last, want = append(last, int32(s*n+n-1)), append(want, []int32{t.answer})
	}

	losses, _, err := t.m.Score(ctx, h, last, want)
	if err != nil {
		return nil, err
	}

	out := make([]float64, groups)
	for i := range losses {
		out[i/t.o.Samples] += math.Exp(-losses[i][0]) / float64(t.o.Samples)
	}

	return out, nil
}
