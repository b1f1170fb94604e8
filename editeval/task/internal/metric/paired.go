package metric

import (
	"math"

	"github.com/modelcompress/compress/internal/stats"
)

// Paired compares two runs on the same documents.
type Paired struct {
	N          int     `json:"n"`
	A          float64 `json:"a"` // figure of the first run
	B          float64 `json:"b"`
	Difference float64 `json:"difference"` // b - a
	Stderr     float64 `json:"stderr"`     // of the mean difference of the documents' values
	Low        float64 `json:"low"`        // of the 95 % interval of the difference: paired bootstrap, percentiles
	High       float64 `json:"high"`
	// two-sided: of McNemar's exact test where values are 0 and 1, otherwise of the bootstrap
	P     float64 `json:"p"`
	OnlyA int     `json:"only_a"` // documents that only the first run has right
	OnlyB int     `json:"only_b"`
	Test  string  `json:"test"` // mcnemar or bootstrap
	Draws int     `json:"draws"`
}

// Compare tests the difference of an aggregation between two runs. Items at the same place belong to the same document.
func Compare(agg Aggregation, a, b []Item, draws int, seed uint64) Paired {
	r := Paired{N: len(a), A: agg.Of(a), B: agg.Of(b), Draws: draws, Test: "bootstrap"}
	r.Difference = r.B - r.A

	binary := agg.err == closed
	diffs := make([]float64, len(a))
	for i := range a {
		diffs[i] = b[i].X - a[i].X
		binary = binary && zeroOne(a[i].X) && zeroOne(b[i].X)

		switch {
		case a[i].X > b[i].X:
			r.OnlyA++
		case b[i].X > a[i].X:
			r.OnlyB++
		}
	}

	if len(a) > 1 {
		r.Stderr = stats.Deviation(diffs) / math.Sqrt(float64(len(a)))
	}

	r.resample(agg, a, b, seed)
	if binary {
		r.Test, r.P = "mcnemar", stats.McNemar(r.OnlyA, r.OnlyB)
	}

	return r
}

func zeroOne(x float64) bool { return x == 0 || x == 1 }

// resample draws documents with replacement, the same ones for both runs.
func (r *Paired) resample(agg Aggregation, a, b []Item, seed uint64) {
	if r.Draws < 1 || len(a) == 0 {
		r.P = 1
		return
	}

	some, same := make([]Item, len(a)), make([]Item, len(a))
	r.Low, r.High, r.P = stats.PairedBootstrap(len(a), r.Draws, seed, func(picked []int) float64 {
		for j, k := range picked {
			some[j], same[j] = a[k], b[k]
		}
		return agg.Of(same) - agg.Of(some)
	})
}
