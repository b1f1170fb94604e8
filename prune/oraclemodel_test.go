package prune

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// End to end: masks, weights, statistics, zero counts, ratios and the losses of the pruned model. Tolerances:
// statistics 2e-6 relative, weights 5e-6 of their norm and losses 1e-5 are what single precision leaves between
// two orders of summation; masks are exact, see compareMasks.
func TestModelOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		for _, r := range c.runs {
			t.Run(r.name, func(t *testing.T) { c.repeat(t, &r) })
		}
	})
}

func (c *oracleCase) repeat(t *testing.T, r *oracleRun) {
	m := load(t, c.model, 2, lm.Options{})
	o := r.options
	masks, worst := map[string][]byte{}, 0.0
	o.Events.Mask = func(name string, keep kernels.Mat) {
		masks[name] = append([]byte(nil), keep.Buf.Bytes()[keep.Off:keep.Off+keep.Len()]...)
	}
	stage := Allocate
	o.Events.Step = func(s Step) { stage = s.Stage }

	score := o.Metric.Score
	if o.Metric.program == nil {
		o.Metric.Score = func(in Inputs) (kernels.Score, error) {
			want := floats(r.tensors, strings.TrimSuffix(in.Name, ".weight")+".X")
			for j := range want {
				if stage != Allocate && in.SumSquares != nil {
					worst = max(worst, math.Abs(in.SumSquares[j]-want[j])/want[j])
				}
			}
			return score(in)
		}
	}

	report, err := Model(ctx, m, c.ids, o)
	if errors.Is(err, ErrNonFinite) && r.overflows() {
		t.Logf("refused: %v", err)
		return
	}

	if err != nil {
		t.Fatal(err)
	}

	same := c.compareMasks(t, m, r, masks)
	loss, far := c.losses(t, m, r.result.WindowNLL)
	if !same {
		t.Logf("loss %.6f after near ties went the other way", loss)
		return
	}

	if worst > 2e-6 {
		t.Errorf("statistics differ by up to %.2g", worst)
	}

	weights := c.compareWeights(t, m, r)
	c.compareReport(t, r, report)
	if far > 1e-5 {
		t.Errorf("window losses differ by up to %.2g", far)
	}

	t.Logf("sparsity %.4f, loss %.6f (dense %.6f), largest differences: statistics %.1e, weights %.1e, loss %.1e",
		report.Total.Sparsity, loss, mean(c.dense.WindowNLL), worst, weights, far)
}

// compareMasks wants equal masks. A near tie may go either way; what follows sees other inputs then and is only
// compared roughly. Formulas have cancellations that magnify the differences of statistics: two elements of
// theirs may differ at first.
func (c *oracleCase) compareMasks(t *testing.T, m *lm.Model, r *oracleRun, masks map[string][]byte) (same bool) {
	t.Helper()
	same = true
	strays := 0
	for l := range m.Blocks() {
		now := same
		for _, lin := range m.Linears(l) {
			mask := masks[lin.Name]
			if mask == nil {
				mask = bytes.Repeat([]byte{1}, lin.In*lin.Out)
			}

			n, all := compareBits(r, lin, mask), compareAll(r, lin, mask)
			now = now && all == 0

			switch {
			case same && n > 0 && r.options.Metric.program != nil && n+strays <= 2:
				strays += n
			case same && n > 0:
				t.Errorf("%s: %d elements of the mask differ", lin.Name, n)
			case all > lin.In*lin.Out/50 && r.result.ExactTies == 0:
				t.Errorf("%s: %d elements of the mask differ after near ties went the other way", lin.Name, all)
			}
		}

		same = now
	}

	return same
}

func (c *oracleCase) compareWeights(t *testing.T, m *lm.Model, r *oracleRun) (worst float64) {
	t.Helper()

	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			want := floats(r.tensors, strings.TrimSuffix(l.Name, ".weight")+".weight")
			if want == nil {
				continue
			}

			got, err := m.Param(l.Name)
			if err != nil {
				t.Fatal(err)
			}

			var diff, norm float64
			for i, v := range want {
				d := v - float64(got.Buf.F32()[got.Off+i])
				diff, norm = diff+d*d, norm+v*v
			}

			if far := math.Sqrt(diff / norm); far > 5e-6 {
				t.Errorf("%s: weights differ by %.2g of their norm", l.Name, far)
			} else {
				worst = max(worst, far)
			}
		}
	}

	return worst
}

func (c *oracleCase) compareReport(t *testing.T, r *oracleRun, report *Report) {
	t.Helper()

	for _, x := range report.Tensors {
		name := strings.TrimSuffix(x.Name, ".weight")
		if want := r.result.Zeros[name]; x.Zeros != want {
			t.Errorf("%s: %d zeros, want %d", x.Name, x.Zeros, want)
		}
		// The reference sums in single precision.
		if want, ok := r.result.Loss[name]; ok && math.Abs(x.Loss-want) > 1e-4*want {
			t.Errorf("%s: loss %g, want %g", x.Name, x.Loss, want)
		}
	}

	for l, want := range r.result.Outliers {
		b := report.Blocks[l]
		switch {
		case r.result.LayerN != nil && b.Target != r.result.LayerN[l]/float64(r.options.Pattern.M):
			t.Errorf("block %d: sparsity %g, want %g of %d", l, b.Target, r.result.LayerN[l], r.options.Pattern.M)
		case r.options.Pattern.Structured():
		// One score in a hundred thousand may fall on the other side of the threshold.
		case math.Abs(b.Outliers-want) > 1e-3 || math.Abs(b.Target-r.result.LayerSparsity[l]) > 1e-6:
			t.Errorf("block %d: %.6f %% outliers, sparsity %.6f; want %.6f, %.6f", l, b.Outliers, b.Target, want,
				r.result.LayerSparsity[l])
		}
	}
}

// losses gives the mean over windows and the largest difference from the reference.
func (c *oracleCase) losses(t *testing.T, m *lm.Model, want []float64) (loss, far float64) {
	t.Helper()
	r, err := m.Forward(ctx, c.eval.IDs, lm.ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for i, window := range r.LossPerToken {
		far = max(far, math.Abs(mean(window)-want[i]))
		loss += mean(window) / float64(len(want))
	}

	return loss, far
}

func mean(v []float64) (sum float64) {
	for _, x := range v {
		sum += x / float64(len(v))
	}
	return sum
}
