package metric

import (
	"errors"
	"math"
	"testing"
)

func items(xs ...float64) []Item {
	out := make([]Item, len(xs))
	for i, x := range xs {
		out[i].X = x
	}
	return out
}

func aggregation(t *testing.T, name string) Aggregation {
	t.Helper()
	a, err := FindAggregation(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	if math.Abs(got-want) > tol {
		t.Errorf("%s: %.12g, want %.12g", what, got, want)
	}
}

// Figures of lm-evaluation-harness on the same numbers.
func TestVectors(t *testing.T) {
	bits := items(1, 0, 1, 1, 0, 1, 0, 1, 1, 1)
	mean := aggregation(t, "mean")
	near(t, "mean", mean.Of(bits), 0.7, 1e-12)
	se, ok := mean.Stderr(bits, 1000)
	near(t, "standard error", se, 0.152752523, 1e-9)
	if !ok {
		t.Error("the mean has a standard error")
	}

	lls := items(-1, -2, -0.5, -3, -1.5)
	ppl := aggregation(t, "perplexity")
	near(t, "perplexity", ppl.Of(lls), 4.953032424, 1e-9)

	se, _ = ppl.Stderr(lls, 1000)
	near(t, "bootstrap", se, 2.217145883, 1e-9)
	near(t, "pooled", Pooled([]float64{0.1, 0.05}, []int{10, 100}), 0.0464660186, 1e-9)
	near(t, "combined", Combined([]float64{1, 0}, []int{10, 30}, true), 0.25, 1e-12)
	near(t, "combined plainly", Combined([]float64{1, 0}, []int{10, 30}, false), 0.5, 1e-12)
}

func TestAggregations(t *testing.T) {
	pairs := []Item{{X: -10, N: 4}, {X: -20, N: 6}}
	near(t, "weighted", aggregation(t, "weighted_perplexity").Of(pairs), math.Exp(3), 1e-9)
	near(t, "bits", aggregation(t, "bits_per_byte").Of(pairs), 3/math.Ln2, 1e-12)
	near(t, "median", aggregation(t, "median").Of(items(3, 1, 2, 9)), 3, 0)
	near(t, "nanmean", aggregation(t, "nanmean").Of(items(1, math.NaN(), 3)), 2, 0)
	near(t, "brier",
		aggregation(t, "brier_score").Of(
			[]Item{{Gold: 0, Probs: []float64{0.5, 0.5}}, {Gold: 1, Probs: []float64{0, 1}}}), 0.25, 1e-12)

	classes := []Item{
		{Gold: 1, Pred: 1},
		{Gold: 1, Pred: 0},
		{Gold: 0, Pred: 0},
		{Gold: 0, Pred: 1},
		{Gold: 1, Pred: 1},
	}
	near(t, "f1", aggregation(t, "f1").Of(classes), 2.0/3, 1e-12)
	near(t, "mcc", aggregation(t, "matthews_corrcoef").Of(classes), 1.0/6, 1e-12)

	for _, name := range []string{"weighted_perplexity", "bits_per_byte", "brier_score"} {
		if _, ok := aggregation(t, name).Stderr(pairs, 1000); ok {
			t.Errorf("%s has a standard error", name)
		}
	}

	if _, ok := aggregation(t, "mean").Stderr(items(1), 1000); ok {
		t.Error("a single document has a standard error")
	}
	if _, err := FindAggregation("mode"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if _, err := Find("bleu"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
}

func TestCompare(t *testing.T) {
	a, b := items(1, 0, 0, 0, 1, 0, 0, 0), items(1, 1, 1, 1, 1, 1, 1, 0)
	r := Compare(aggregation(t, "mean"), a, b, 2000, 1)
	if r.N != 8 || r.OnlyA != 0 || r.OnlyB != 5 || r.Test != "mcnemar" || r.Low > r.Difference ||
		r.High < r.Difference || r.Low <= 0 {
		t.Errorf("%+v", r)
	}

	near(t, "difference", r.Difference, 0.625, 1e-12)
	near(t, "p", r.P, 0.0625, 1e-12)
	same := Compare(aggregation(t, "perplexity"), items(-1, -2, -3), items(-1, -2, -3), 500, 1)
	if same.Difference != 0 || same.P != 1 || same.Test != "bootstrap" {
		t.Errorf("%+v", same)
	}
	if again := Compare(aggregation(t, "mean"), a, b, 2000, 1); again != r {
		t.Error("the same seed gives another result")
	}
}

// TestPairedAgainstSciPy: the numbers are of SciPy 1.17.1: bootstrap((b-a,), mean, n_resamples=200000,
// method="percentile") for the data that the loop makes, whose interval has a sampling error of about 0.002
// there and 0.01 with the 20,000 draws here.
func TestPairedAgainstSciPy(t *testing.T) {
	x := uint64(12345)
	next := func() uint64 {
		x = (1103515245*x + 12345) % (1 << 31)
		return x >> 8
	}

	var a, b []Item
	for range 200 {
		v := float64(next()%1000) / 100
		a, b = append(a, items(v)...), append(b, items(v*0.5+float64(next()%600)/100)...)
	}

	r := Compare(aggregation(t, "mean"), a, b, 20_000, 1)
	near(t, "difference", r.Difference, 0.399125, 1e-9)
	near(t, "standard error", r.Stderr, 0.15941399217566163, 1e-9)
	near(t, "low", r.Low, 0.08794937500000008, 0.012)
	near(t, "high", r.High, 0.710900625, 0.012)
	if r.P < 0.005 || r.P > 0.03 { // the paired t-test gives 0.0131
		t.Errorf("p %g", r.P)
	}
}

// f1 is defined where sklearn's f1_score of 1.9 gives a number, with its default of two classes.
func TestF1Classes(t *testing.T) {
	agg, err := FindAggregation("f1")
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		gold, pred []int
		fine       bool
	}{
		{[]int{0, 1, 1}, []int{1, 0, 1}, true},
		{[]int{0, 0}, []int{0, 0}, true},
		{[]int{2, 2}, []int{2, 2}, true},
		{[]int{1, 2}, []int{1, 1}, true},
		{[]int{0, 2}, []int{0, 0}, false},
		{[]int{0, 1}, []int{0, 2}, false},
		{[]int{0, 1, 2}, []int{0, 1, 2}, false},
	} {
		items := make([]Item, len(c.gold))
		for i := range items {
			items[i] = Item{Gold: c.gold[i], Pred: c.pred[i]}
		}
		if err := agg.Check(items); (err == nil) != c.fine || err != nil && !errors.Is(err, ErrClasses) {
			t.Errorf("%v: %v", c, err)
		}
	}

	if mean, _ := FindAggregation("mean"); mean.Check([]Item{{Gold: 1}, {Gold: 2}, {Gold: 3}}) != nil {
		t.Error("a mean of several classes")
	}
}
