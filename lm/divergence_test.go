package lm

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/lm/corpus"
)

// TestDivergence: the figures are those that the logits of both models give token by token, whatever the batches, with
// a baseline that is kept and with one that runs beside; a model does not diverge from itself.
func TestDivergence(t *testing.T) {
	ctx := context.Background()
	config := tiny()["llama"]
	a := load(t, recipe{config: config, seed: 3, std: 0.3}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
	b := load(t, recipe{config: config, seed: 4, std: 0.3}.write(t, t.TempDir()), cpuDevice(t, 2),
		Options{Stream: true})

	ids := tokens(5, a.config.Vocab, 9, 4, 7, 2)
	w := corpus.New(ids, "made up")
	for _, row := range ids {
		labels := slices.Clone(row)
		labels[len(row)/2] = corpus.Ignore
		w.Labels = append(w.Labels, labels)
	}

	var means []float64
	count, same := 0, 0
	total := 0.0
	for i, row := range ids {
		p := logSoftmax(t, a, row)
		q := logSoftmax(t, b, row)
		sum, n := 0.0, 0
		for at := range len(row) - 1 {
			if w.Labels[i][at+1] == corpus.Ignore {
				continue
			}
			for j, v := range p[at] {
				sum += math.Exp(v) * (v - q[at][j])
			}
			if slices.Index(p[at], slices.Max(p[at])) == slices.Index(q[at], slices.Max(q[at])) {
				same++
			}
			n++
		}
		total += sum
		count += n
		means = append(means, sum/max(float64(n), 1))
	}

	base, err := a.NewBaseline(ctx, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Free()
	done := int64(0)
	beside, err := b.DivergenceFrom(ctx, a, w, func(more int64) { done += more })
	if err != nil {
		t.Fatal(err)
	}
	if all := a.LossWork(w) + b.LossWork(w); done != all {
		t.Errorf("%d of %d of the work was told", done, all)
	}
	kept, err := base.Compare(ctx, b, nil)
	if err != nil {
		t.Fatal(err)
	}

	for _, d := range []*Divergence{beside, kept} {
		if math.Abs(d.KL-total/float64(count)) > 1e-5*d.KL || d.Tokens != int64(count) ||
			d.Same != float64(same)/float64(count) || d.Stderr == nil {
			t.Errorf("%+v; want a divergence of %g over %d tokens, %d of them alike", d, total/float64(count), count,
				same)
		}
		for i, v := range d.WindowKL {
			if math.Abs(v-means[i]) > 1e-5*means[i] {
				t.Errorf("sequence %d: %g, want %g", i, v, means[i])
			}
		}
		if !(d.Median <= d.P99 && d.P99 <= d.Max && d.Max > 0) {
			t.Errorf("quantiles %g, %g, %g", d.Median, d.P99, d.Max)
		}

		for m, got := range map[*Model]*SequenceLosses{a: d.BaselineLosses, b: d.Losses} {
			s, err := m.SequenceLosses(ctx, w, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range s.Loss {
				if math.Abs(v-got.Loss[i]) > 1e-9*math.Abs(v) || s.Count[i] != got.Count[i] {
					t.Errorf("loss of sequence %d: %g of %g tokens, want %g of %g", i, got.Loss[i], got.Count[i], v,
						s.Count[i])
				}
			}
		}
	}

	if d, err := base.Compare(ctx, a, nil); err != nil || d.KL > 1e-12 || d.Same != 1 {
		t.Errorf("a model and itself: %+v, %v", d, err)
	}
}

// logSoftmax is log p of every token after each position.
func logSoftmax(t *testing.T, m *Model, ids []int32) (rows [][]float64) {
	t.Helper()
	r, err := m.Forward(context.Background(), [][]int32{ids}, ForwardOptions{Logits: true, NoLoss: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range ids {
		var row []float64
		sum := 0.0
		for _, v := range r.Logits.RowF32(i) {
			row = append(row, float64(v))
			sum += math.Exp(float64(v))
		}
		for j := range row {
			row[j] -= math.Log(sum)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestDivergenceRefuses: models of other vocabularies, and texts in which nothing is predicted.
func TestDivergenceRefuses(t *testing.T) {
	ctx := context.Background()
	config := tiny()["llama"]
	a := load(t, recipe{config: config, seed: 3, std: 0.3}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
	b := load(t, nanoBase, cpuDevice(t, 2), Options{})

	w := corpus.New(tokens(5, a.config.Vocab, 9), "made up")
	if _, err := b.DivergenceFrom(ctx, a, w, nil); !errors.Is(err, ErrInput) {
		t.Errorf("another vocabulary: %v", err)
	}
	w = corpus.New(tokens(5, a.config.Vocab, 1), "made up")
	if _, err := a.DivergenceFrom(ctx, a, w, nil); !errors.Is(err, ErrInput) {
		t.Errorf("nothing predicted: %v", err)
	}
}
