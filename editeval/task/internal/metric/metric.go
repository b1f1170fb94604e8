// Package metric has the figures of a task: what each document contributes, how contributions are aggregated,
// and how far the result can be trusted. Conventions and random draws are those of lm-evaluation-harness, so
// that figures agree to the last digits.
package metric

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/pyrandom"
	"github.com/modelcompress/compress/internal/stats"
)

// ErrUnknown: no metric or aggregation has the name.
var ErrUnknown = errors.New("unknown metric")

// ErrClasses: documents have classes that a metric is not defined for.
var ErrClasses = errors.New("f1 is for the classes 0 and 1")

// Item is what a document contributes: a number X; with a weight N where totals are divided; Gold and Pred of
// classifications; or Gold and the probabilities Probs of all classes.
type Item struct {
	X, N       float64
	Gold, Pred int
	Probs      []float64
}

// Aggregation makes one figure of the items of all documents.
type Aggregation struct {
	Name string
	Of   func(items []Item) float64
	err  kind // how its standard error is found
	// sum is the same of the sum of n numbers X, where that is all that counts; nil where it is not.
	sum func(total float64, n int) float64
}

// kind of a standard error.
type kind uint8

const (
	none kind = iota
	closed
	bootstrapped
)

// aggregations lists them.
var aggregations = map[string]Aggregation{
	"brier_score": {"brier_score", brier, none, nil},
	"bits_per_byte": {
		"bits_per_byte", func(items []Item) float64 { return -weighted(items) / math.Ln2 }, none,
		nil,
	},
	"f1":                {"f1", f1, bootstrapped, nil},
	"matthews_corrcoef": {"matthews_corrcoef", matthews, bootstrapped, nil},
	"mean":              {"mean", mean, closed, nil},
	"median":            {"median", median, bootstrapped, nil},
	"nanmean":           {"nanmean", nanMean, bootstrapped, nil},
	"perplexity": {
		"perplexity", func(items []Item) float64 { return math.Exp(-mean(items)) }, bootstrapped,
		expOfMean,
	},
	"weighted_perplexity": {
		"weighted_perplexity", func(items []Item) float64 { return math.Exp(-weighted(items)) },
		none, nil,
	},
}

// Metric is what the name of a metric stands for.
type Metric struct {
	Aggregation    string
	HigherIsBetter bool
}

// metrics lists them with what they are where a task does not say.
var metrics = map[string]Metric{
	"acc":             {"mean", true},
	"acc_bytes":       {"mean", true},
	"acc_mutual_info": {"mean", true},
	"acc_norm":        {"mean", true},
	"bits_per_byte":   {"bits_per_byte", false},
	"brier_score":     {"brier_score", false},
	"byte_perplexity": {"weighted_perplexity", false},
	"exact_match":     {"mean", true},
	"f1":              {"f1", true},
	"mcc":             {"matthews_corrcoef", true},
	"perplexity":      {"perplexity", false},
	"word_perplexity": {"weighted_perplexity", false},
}

// Find gives a metric by its name.
func Find(name string) (Metric, error) {
	if m, ok := metrics[name]; ok {
		return m, nil
	}
	return Metric{}, fmt.Errorf("%w %q; known: %s", ErrUnknown, name,
		strings.Join(slices.Sorted(maps.Keys(metrics)), ", "))
}

// FindAggregation gives an aggregation by its name.
func FindAggregation(name string) (Aggregation, error) {
	if a, ok := aggregations[name]; ok {
		return a, nil
	}
	return Aggregation{}, fmt.Errorf("%w: aggregation %q; known: %s", ErrUnknown, name,
		strings.Join(slices.Sorted(maps.Keys(aggregations)), ", "))
}

func expOfMean(total float64, n int) float64 { return math.Exp(-(total / float64(n))) }

func mean(items []Item) float64 {
	sum := 0.0
	for _, x := range items {
		sum += x.X
	}
	return sum / float64(len(items))
}

func weighted(items []Item) float64 {
	sum, n := 0.0, 0.0
	for _, x := range items {
		sum, n = sum+x.X, n+x.N
	}
	return sum / n
}

func median(items []Item) float64 {
	xs := make([]float64, len(items))
	for i, x := range items {
		xs[i] = x.X
	}
	slices.Sort(xs)
	return xs[len(xs)/2]
}

func nanMean(items []Item) float64 {
	kept := slices.DeleteFunc(slices.Clone(items), func(x Item) bool { return math.IsNaN(x.X) })
	return mean(kept)
}

// brier is the mean over documents of Σ (p - [class is gold])².
func brier(items []Item) float64 {
	total := 0.0
	for _, x := range items {
		for c, p := range x.Probs {
			if c == x.Gold {
				p--
			}
			total += p * p
		}
	}

	return total / float64(len(items))
}

// counts of a classification into 1 and the rest: true and false positives, false and true negatives.
func counts(items []Item) (tp, fp, fn, tn float64) {
	for _, x := range items {
		switch {
		case x.Pred == 1 && x.Gold == 1:
			tp++
		case x.Pred == 1:
			fp++
		case x.Gold == 1:
			fn++
		default:
			tn++
		}
	}

	return tp, fp, fn, tn
}

// Check returns nil if the figure is defined: f1 is not where there are more than two classes, or two of which none
// is 1.
func (a Aggregation) Check(items []Item) error {
	if a.Name != "f1" {
		return nil
	}

	classes := map[int]bool{}
	for _, x := range items {
		classes[x.Gold], classes[x.Pred] = true, true
	}

	if len(classes) > 2 || len(classes) == 2 && !classes[1] {
		return fmt.Errorf("%w; right and chosen answers have %v (HINT: mcc takes any number of classes)", ErrClasses,
			slices.Sorted(maps.Keys(classes)))
	}

	return nil
}

// f1 is 2tp/(2tp+fp+fn) of class 1, 0 where nothing is positive.
func f1(items []Item) float64 {
	tp, fp, fn, _ := counts(items)
	if tp+fp+fn == 0 {
		return 0
	}
	return 2 * tp / (2*tp + fp + fn)
}

// matthews is the correlation of two classifications into any number of classes (Gorodkin, "Comparing two
// K-category assignments by a K-category correlation coefficient", 2004); 0 where one of them has a single
// class.
func matthews(items []Item) float64 {
	gold, pred := map[int]float64{}, map[int]float64{}
	right, n := 0.0, float64(len(items))
	for _, x := range items {
		gold[x.Gold]++
		pred[x.Pred]++
		if x.Gold == x.Pred {
			right++
		}
	}

	cross := 0.0
	pp := 0.0
	gg := 0.0

	for c, p := range pred {
		cross += p * gold[c]
		pp += p * p
	}

	for _, g := range gold {
		gg += g * g
	}

	below := (n*n - pp) * (n*n - gg)
	if below == 0 {
		return 0
	}

	return (right*n - cross) / math.Sqrt(below)
}

// Stderr is the standard error of an aggregation; false where there is none: a single document, no draws, or a
// figure that the conventions give none for.
func (a Aggregation) Stderr(items []Item, draws int) (float64, bool) {
	switch {
	case draws <= 0 || len(items) < 2:
		return 0, false
	case a.err == closed:
		xs := make([]float64, len(items))
		for i, x := range items {
			xs[i] = x.X
		}
		return stats.Deviation(xs) / math.Sqrt(float64(len(xs))), true
	case a.err == bootstrapped:
		return stats.BootstrapStderr(draws, func(random *pyrandom.Random, figures []float64) {
			a.resample(items, random, figures)
		}), true
	}

	return 0, false
}

// resample fills results with the figures of resamples.
func (a Aggregation) resample(items []Item, rnd *pyrandom.Random, results []float64) {
	if a.sum != nil {
		xs := make([]float64, len(items))
		for i, x := range items {
			xs[i] = x.X
		}

		for i := range results {
			total := 0.0
			for range xs {
				total += xs[int(rnd.Float64()*float64(len(xs)))]
			}
			results[i] = a.sum(total, len(xs))
		}

		return
	}

	some := make([]Item, len(items))
	for i := range results {
		for j := range some {
			some[j] = items[int(rnd.Float64()*float64(len(items)))]
		}
		results[i] = a.Of(some)
	}
}

// Unweighted is the standard error of the plain mean of the figures of several tasks, from theirs: sqrt(Σ
// se²)/k, as their errors are independent.
func Unweighted(stderrs []float64) float64 {
	sum := 0.0
	for _, se := range stderrs {
		sum += se * se
	}
	return math.Sqrt(sum) / float64(len(stderrs))
}

// Pooled is the standard error of the mean over all documents of several tasks, from theirs.
func Pooled(stderrs []float64, sizes []int) float64 {
	sum, n := 0.0, 0
	for i, se := range stderrs {
		sum += float64(sizes[i]-1) * se * se * float64(sizes[i])
		n += sizes[i]
	}
	return math.Sqrt(sum / float64(n-len(sizes)) / float64(n))
}

// Combined is the mean of the figures of several tasks, weighted by their sizes or not.
func Combined(values []float64, sizes []int, bySize bool) float64 {
	sum, n := 0.0, 0.0
	for i, v := range values {
		w := 1.0
		if bySize {
			w = float64(sizes[i])
		}
		sum, n = sum+v*w, n+w
	}
	return sum / n
}
