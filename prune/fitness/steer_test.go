package fitness

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// climbs draws candidates whose rungs are correlated by rho, of which the best on the lower one alone climb on.
func climbsOf(n int, rho, keep float64) []Climb {
	draw := rand.New(rand.NewPCG(1, 2))
	type pair struct{ low, high float64 }
	all := make([]pair, n)
	for i := range all {
		all[i].low = draw.NormFloat64()
		all[i].high = rho*all[i].low + math.Sqrt(1-rho*rho)*draw.NormFloat64()
	}
	slices.SortFunc(all, func(a, b pair) int {
		if a.low < b.low {
			return -1
		}
		return 1
	})

	out := make([]Climb, n)
	for i := range all {
		out[i].Layers = &all[i].low
		if float64(i) < keep*float64(n) {
			out[i].Few = &all[i].high
		}
	}
	return out
}

// The agreement over those that climbed on, corrected, is that over all.
func TestAgreementOfAll(t *testing.T) {
	for _, rho := range []float64{0, 0.5, 0.8, 0.95} {
		whole := agreement(climbsOf(4000, rho, 1), Layers, Few)
		part := agreement(climbsOf(4000, rho, 0.3), Layers, Few)
		if math.Abs(whole-rho) > 0.05 || math.Abs(part-rho) > 0.12 {
			t.Errorf("%v: %.3f over all, %.3f from the best 30 %%", rho, whole, part)
		}
	}

	if got := agreement(climbsOf(4000, 0.9, 0.002), Layers, Few); !math.IsNaN(got) {
		t.Errorf("eight candidates say %v", got)
	}
}

// The better a rung orders, the fewer go on, between half of Keep and twice as many; and so many that the best of a
// batch is among them in about four of five.
func TestShares(t *testing.T) {
	l := &Ladder{o: LadderOptions{Keep: 0.3, Least: 1}, trust: map[Rung]float64{}}
	if got := l.kept(Layers, 50); got != 15 {
		t.Errorf("not steered: %d of 50", got)
	}

	last := 1.0
	for _, rho := range []float64{-0.5, 0, 0.5, 0.6, 0.7, 0.9, 1} {
		l.trust[Layers] = rho
		got := l.share(Layers, 50)
		if got > last || got < 0.15 || got > 0.6 {
			t.Errorf("%v: %v go on, of a worse rung %v", rho, got, last)
		}
		last = got
	}
	if last != 0.15 {
		t.Errorf("a perfect rung lets %v through", last)
	}

	const rho, n, rounds = 0.6, 50, 4000
	l.trust[Layers] = rho
	kept, draw, found := l.kept(Layers, n), rand.New(rand.NewPCG(3, 4)), 0
	for range rounds {
		best, at := math.Inf(1), 0.0
		low := make([]float64, n)
		for i := range low {
			low[i] = draw.NormFloat64()
			if high := rho*low[i] + math.Sqrt(1-rho*rho)*draw.NormFloat64(); high < best {
				best, at = high, low[i]
			}
		}
		slices.Sort(low)
		if at <= low[kept-1] {
			found++
		}
	}
	if got := float64(found) / rounds; math.Abs(got-steerSure) > 0.07 {
		t.Errorf("the best of %d is among %d in %.3f", n, kept, got)
	}

	l.o.Keep = 1
	if got := l.kept(Layers, 50); got != 50 {
		t.Errorf("all are to go on, %d do", got)
	}
}
