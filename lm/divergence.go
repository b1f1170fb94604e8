package lm

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// Divergence says how far the next-token distributions of a model are from those of another, its baseline, over the
// predicted tokens of some texts.
type Divergence struct {
	// KL is the mean of KL(baseline ‖ model) = Σ p·(log p - log q), in nats a token, and Stderr its standard error
	// over sequences, nil for a single one.
	KL     float64  `json:"kl"`
	Stderr *float64 `json:"kl_stderr"`
	// Median, P99 and Max are of the tokens' own divergences.
	Median float64 `json:"kl_median"`
	P99    float64 `json:"kl_p99"`
	Max    float64 `json:"kl_max"`
	// Same is the share of tokens for which both find the same next one likeliest.
	Same   float64 `json:"same_top"`
	Tokens int64   `json:"tokens"`
	// WindowKL are the means of the sequences, in their order, for comparisons in pairs.
	WindowKL []float64 `json:"window_kl"`
	// Losses are those of the model, BaselineLosses those of the baseline, as [Model.SequenceLosses] gives them.
	Losses         *SequenceLosses `json:"-"`
	BaselineLosses *SequenceLosses `json:"-"`
}

// Baseline is what a model says about some texts, kept so that others can be compared with it many times. It holds the
// last hidden states, F32 [tokens, hidden]; the distributions, which are as wide as the vocabulary, are made of them
// again when they are needed. The model must stay as it is, and open.
type Baseline struct {
	m       *Model
	windows corpus.Windows
	states  []*Hidden // of each batch
}

// NewBaseline runs sequences through the blocks of the model. progress, unless nil, gets how many more tokens have
// passed a block.
func (m *Model) NewBaseline(ctx context.Context, w corpus.Windows, progress func(more int64)) (*Baseline, error) {
	b := &Baseline{m: m, windows: w}
	for _, part := range w.Batches(lossBatch) {
		h, err := m.lastHidden(ctx, part, nil, progress)
		if err != nil {
			b.Free()
			return nil, err
		}
		b.states = append(b.states, h)
	}
	return b, nil
}

// Free gives the memory back.
func (b *Baseline) Free() {
	for _, h := range b.states {
		h.Free()
	}
	b.states = nil
}

// Compare runs another model, with the same vocabulary, over the texts.
func (b *Baseline) Compare(ctx context.Context, m *Model, progress func(more int64)) (*Divergence, error) {
	return b.CompareLayers(ctx, m, nil, progress)
}

// CompareLayers is Compare for a model of which only some blocks run, ascending; nil: all.
func (b *Baseline) CompareLayers(ctx context.Context, m *Model, layers []int, progress func(more int64)) (
	*Divergence, error,
) {
	c := comparison{baseline: b.m, m: m, layers: layers, progress: progress}
	c.states = func(k int, _ corpus.Windows) (*Hidden, func(), error) { return b.states[k], func() {}, nil }
	return c.run(ctx, b.windows)
}

// DivergenceFrom compares the model with a baseline, of the same vocabulary, on sequences; both run a batch of them at
// a time. progress, unless nil, gets how much more of both models' [Model.LossWork] is done.
func (m *Model) DivergenceFrom(ctx context.Context, baseline *Model, w corpus.Windows, progress func(more int64)) (
	*Divergence, error,
) {
	c := comparison{baseline: baseline, m: m, progress: progress}
	c.states = func(_ int, part corpus.Windows) (*Hidden, func(), error) {
		h, err := baseline.lastHidden(ctx, part, nil, progress)
		if err != nil {
			return nil, nil, err
		}
		if progress != nil {
			progress(int64(h.X.Rows) * baseline.HeadBlocks()) // what its head will do
		}
		return h, h.Free, nil
	}
	return c.run(ctx, w)
}

// lastHidden runs blocks on sequences, all of them if layers is nil.
func (m *Model) lastHidden(ctx context.Context, w corpus.Windows, layers []int, progress func(more int64)) (
	*Hidden, error,
) {
	h, err := m.Embed(w.IDs)
	if err != nil {
		return nil, err
	}

	for _, l := range (&arch.Cut{Layers: layers}).Blocks(m.config) {
		if err := m.RunBlock(ctx, l, h, nil); err != nil {
			h.Free()
			return nil, err
		}
		if progress != nil {
			progress(int64(h.X.Rows))
		}
	}
	return h, nil
}

// comparison is a model beside its baseline.
type comparison struct {
	baseline, m *Model
	layers      []int                                                                   // of m that run; nil: all
	progress    func(more int64)                                                        // nil: nobody asks
	states      func(k int, part corpus.Windows) (last *Hidden, done func(), err error) // of the baseline, by batches
}

// run compares the two batch by batch.
func (c *comparison) run(ctx context.Context, w corpus.Windows) (*Divergence, error) {
	sum := &divergences{}
	for k, part := range w.Batches(lossBatch) {
		part, err := labelled(c.baseline, c.m, part)
		if err != nil {
			return nil, err
		}

		was, done, err := c.states(k, part)
		if err != nil {
			return nil, err
		}
		now, err := c.m.lastHidden(ctx, part, c.layers, c.progress)
		if err != nil {
			done()
			return nil, err
		}

		tokens := int64(now.X.Rows)
		err = compareBatch(ctx, c.baseline, c.m, was, part, []tally{{sum: sum, now: now}})
		now.Free()
		done()
		if err != nil {
			return nil, err
		}
		if c.progress != nil {
			c.progress(tokens * c.m.HeadBlocks())
		}
	}
	return sum.summary()
}

// labelled refuses models and sequences that cannot be compared, and gives the sequences with their labels.
func labelled(baseline, m *Model, part corpus.Windows) (corpus.Windows, error) {
	if a, b := baseline.config.Vocab, m.config.Vocab; a != b {
		return part, fmt.Errorf("%w: %s has %d tokens in its vocabulary, %s has %d", ErrInput, m.dir, b,
			baseline.dir, a)
	}
	if part.Labels == nil {
		part.Labels = part.IDs
	}
	return part, m.checkLabels(part.Labels, lengths(part.IDs))
}

// divergences are those of single tokens.
type divergences struct {
	kl      []float64      // of each token
	windows SequenceLosses // divergences by sequences
	losses  [2]SequenceLosses
	same    int
}

// tally is what a batch comes to for a model.
type tally struct {
	sum  *divergences
	now  *Hidden
	each [3][]float64 // divergences and both models' losses, 0 where a label does not count
}

// compareBatch compares the last hidden states of a model, in one or several forms, with those of its baseline, whose
// distributions are made once for all of them.
func compareBatch(ctx context.Context, baseline, m *Model, was *Hidden, part corpus.Windows, forms []tally) error {
	rows, labels := layer.Predictions(was.Lens, part.Labels)
	counted, want, at := layer.CountedRows(rows, labels)
	for i := range forms {
		for k := range forms[i].each {
			forms[i].each[k] = make([]float64, len(rows))
		}
	}

	for lo := 0; lo < len(counted); {
		if err := ctx.Err(); err != nil {
			return err
		}

		hi := lo + m.chunk(len(counted)-lo)
		p, err := baseline.spread(was, counted[lo:hi], want[lo:hi])
		if err != nil {
			return err
		}
		for _, t := range forms {
			q, err := m.spread(t.now, counted[lo:hi], want[lo:hi])
			if err != nil {
				return err
			}

			kl := t.sum.tokens(p, q, m.info.Threads)
			for i, v := range kl {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					return fmt.Errorf("%s: divergence from %s at row %d: %w: %g", m.dir, baseline.dir, counted[lo+i],
						ErrNonFinite, v)
				}
				t.each[0][at[lo+i]] = v
				t.each[1][at[lo+i]] = p.loss[i]
				t.each[2][at[lo+i]] = q.loss[i]
			}
			t.sum.kl = append(t.sum.kl, kl...)
		}
		lo = hi
	}

	for _, t := range forms {
		t.close(part)
	}
	return nil
}

// close adds the tokens up by sequences.
func (t tally) close(part corpus.Windows) {
	first := 0
	for i, n := range t.now.Lens {
		n = max(n-1, 0)
		for k, to := range []*SequenceLosses{&t.sum.windows, &t.sum.losses[0], &t.sum.losses[1]} {
			to.Add(t.each[k][first:first+n], part.Labels[i])
		}
		first += n
	}
}

// tokens compares the distributions of a few tokens.
func (s *divergences) tokens(p, q *spread, threads int) []float64 {
	kl := make([]float64, len(p.norm))
	same := make([]bool, len(kl))
	mmapsafe.Split(threads, len(kl), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			kl[i], same[i] = between(p, q, i)
		}
	})

	for _, is := range same {
		if is {
			s.same++
		}
	}
	return kl
}

// spread is the distributions of a few tokens: probabilities are exp(logits - norm).
type spread struct {
	logits kernels.Mat // F32, in host memory
	norm   []float64   // log Σ exp of the logits
	loss   []float64   // of the labels
}

func (m *Model) spread(h *Hidden, rows, labels []int32) (*spread, error) {
	chosen := make([]int, len(rows))
	for i, r := range rows {
		chosen[i] = int(r)
	}
	logits, err := m.Logits(h, chosen...)
	if err != nil {
		return nil, err
	}
	defer logits.Buf.Free()

	scratch := m.borrow()
	defer m.giveBack(scratch)
	losses, err := m.outside(scratch, nil).crossEntropy(logits, labels)
	if err != nil {
		return nil, err
	}

	x := &spread{loss: slices.Clone(losses), norm: make([]float64, len(rows))}
	if x.logits, err = m.hostCopy(logits); err != nil {
		return nil, err
	}
	for i, y := range labels {
		x.norm[i] = x.loss[i] + float64(x.logits.RowF32(i)[y])
	}
	return x, nil
}

// hostCopy copies a matrix without gaps to host memory of its own.
func (m *Model) hostCopy(x kernels.Mat) (kernels.Mat, error) {
	out := kernels.MatOf(kernels.NewHost(kernels.F32, x.Len()), x.Rows, x.Cols)
	return out, m.dev.Download(out.Buf.Bytes(), x.Buf, 0)
}

// between is KL(p ‖ q) of a token, and whether both have the same likeliest next one. It is not below 0 but for
// rounding, which is cut off.
func between(p, q *spread, i int) (kl float64, same bool) {
	a, b := p.logits.RowF32(i), q.logits.RowF32(i)
	first, second := 0, 0
	for j, v := range a {
		was := float64(v) - p.norm[i]
		if v > a[first] {
			first = j
		}
		if b[j] > b[second] {
			second = j
		}
		if chance := math.Exp(was); chance > 0 { // 0·(-∞) is 0
			kl += chance * (was - (float64(b[j]) - q.norm[i]))
		}
	}
	return max(kl, 0), first == second
}

// summary sums the tokens up.
func (s *divergences) summary() (*Divergence, error) {
	if len(s.kl) == 0 {
		return nil, fmt.Errorf("%w: no token is predicted", ErrInput)
	}

	n := float64(len(s.kl))
	d := &Divergence{
		Same: float64(s.same) / n, Tokens: s.windows.Tokens, WindowKL: s.windows.Means(), BaselineLosses: &s.losses[0],
		Losses: &s.losses[1],
	}
	d.KL, d.Stderr = s.windows.Mean()

	slices.Sort(s.kl)
	d.Median = s.kl[len(s.kl)/2]
	d.P99 = s.kl[min(len(s.kl)-1, int(0.99*n))]
	d.Max = s.kl[len(s.kl)-1]
	return d, nil
}
