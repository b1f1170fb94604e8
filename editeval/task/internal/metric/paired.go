package metric

import (
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/canon"
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
	P          float64 `json:"p"`      // two-sided: of McNemar's exact test where values are 0 and 1, otherwise of the bootstrap
	OnlyA      int     `json:"only_a"` // documents that only the first run has right
	OnlyB      int     `json:"only_b"`
	Test       string  `json:"test"` // mcnemar or bootstrap
	Draws      int     `json:"draws"`
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
		r.Stderr = sampleDeviation(diffs) / math.Sqrt(float64(len(a)))
	}
	r.resample(agg, a, b, seed)
	if binary {
		r.Test, r.P = "mcnemar", McNemar(r.OnlyA, r.OnlyB)
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
	rnd, diffs := canon.NewRandom(seed), make([]float64, r.Draws)
	some, same := make([]Item, len(a)), make([]Item, len(a))
	below, above := 0, 0
	for i := range diffs {
		for j := range some {
			k := int(rnd.Float64() * float64(len(a)))
			some[j], same[j] = a[k], b[k]
		}
		diffs[i] = agg.Of(same) - agg.Of(some)
		if diffs[i] <= 0 {
			below++
		}
		if diffs[i] >= 0 {
			above++
		}
	}
	slices.Sort(diffs)
	at := func(q float64) float64 { return diffs[int(q*float64(len(diffs)-1)+0.5)] }
	r.Low, r.High = at(0.025), at(0.975)
	r.P = min(1, 2*float64(min(below, above)+1)/float64(r.Draws+1))
}

// McNemar is the two-sided exact probability of a split of b+c discordant pairs at least as uneven as b to c where both sides are
// equally likely (McNemar, "Note on the sampling error of the difference between correlated proportions or percentages", 1947).
func McNemar(b, c int) float64 {
	n, k := b+c, min(b, c)
	if n == 0 {
		return 1
	}
	all, _ := math.Lgamma(float64(n + 1))
	p := 0.0
	for i := 0; i <= k; i++ {
		x, _ := math.Lgamma(float64(i + 1))
		y, _ := math.Lgamma(float64(n - i + 1))
		p += math.Exp(all - x - y - float64(n)*math.Ln2)
	}
	return min(1, 2*p)
}
