package prune

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// On a trained model: updates beat masks, and the pairs agree with the windows.
func TestCompare(t *testing.T) {
	tok, err := tokenizer.Load(nano + "base")
	if err != nil {
		t.Fatal(err)
	}
	calib, err := corpus.Sample(ctx, nano+"text/calib.txt", tok, corpus.SampleOptions{Samples: 16, SeqLen: 128})
	if err != nil {
		t.Fatal(err)
	}
	test, err := corpus.Cut(ctx, nano+"text/test.txt", tok, corpus.CutOptions{SeqLen: 128, Limit: 16})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := device.Open("cpu", device.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	open := func(ctx context.Context) (*lm.Model, error) { return lm.Load(ctx, nano+"base", dev, lm.Options{}) }
	var runs []Contender
	for _, name := range MetricNames() {
		m, err := MetricByName(name)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, Contender{name, Options{Metric: m, Sparsity: .6}})
	}
	runs = append(runs,
		Contender{"wanda+sparsegpt", Options{Sparsity: .6, Update: Update{Name: SparseGPTUpdate}}},
		Contender{"wanda+admm", Options{Sparsity: .6, Update: Update{Name: ADMM}}},
		Contender{"wanda+admm mask", Options{Sparsity: .6, Update: Update{Name: ADMM, MaskSteps: 15}}},
		Contender{"wanda+dsnot", Options{Sparsity: .6, Update: Update{Name: DSnoT}}},
		Contender{"wanda+dsnot strict", Options{Sparsity: .6, Update: Update{Name: DSnoT, Strict: true}}},
		Contender{"wanda owl", Options{Sparsity: .6, Allocation: Allocation{Name: OWL}}},
		Contender{"wanda alpha", Options{Sparsity: .6, Allocation: Allocation{Name: Alpha}}},
		Contender{"wanda global", Options{Sparsity: .6, Allocation: Allocation{Name: Global}}},
	)
	c, err := Compare(ctx, open, calib, test, runs, nil)
	if err != nil {
		t.Fatal(err)
	}
	loss := map[string]float64{}
	for _, r := range append(c.Runs, c.Dense) {
		loss[r.Name] = r.Loss
		t.Logf("%-20s sparsity %.4f, loss %.4f ± %.4f, perplexity %.3f ± %.3f", r.Name, r.Sparsity, r.Loss, r.LossSE, r.Perplexity, r.PPLSE)
		if math.Abs(r.Perplexity-math.Exp(r.Loss)) > 1e-12*r.Perplexity || len(r.Windows) != len(test.IDs) || !(r.LossSE > 0) {
			t.Errorf("%s: %+v", r.Name, r)
		}
	}
	for _, better := range [][2]string{{"dense", "sparsegpt"}, {"wanda+sparsegpt", "wanda"}, {"wanda+admm", "wanda"}, {"sparsegpt", "wanda"}} {
		if loss[better[0]] >= loss[better[1]] {
			t.Errorf("%s has loss %.4f, %s %.4f", better[0], loss[better[0]], better[1], loss[better[1]])
		}
	}
	if n := len(c.Runs); len(c.Pairs) != n*(n-1)/2 {
		t.Errorf("%d pairs of %d runs", len(c.Pairs), n)
	}
	for _, p := range c.Pairs {
		if math.Abs(p.Difference-(loss[p.A]-loss[p.B])) > 1e-9 || !(p.P >= 0 && p.P <= 1) {
			t.Errorf("%+v: losses %g, %g", p, loss[p.A], loss[p.B])
		}
	}
	for _, bad := range [][]Contender{{{"", Options{}}}, {{"a", Options{}}, {"a", Options{}}}, {{"a", Options{Sparsity: 2}}}} {
		if _, err := Compare(ctx, open, calib, test, bad, nil); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := Compare(ctx, open, calib, corpus.Windows{}, runs, nil); !errors.Is(err, ErrOptions) {
		t.Errorf("no test windows: %v", err)
	}
}
