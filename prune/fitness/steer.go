package fitness

import (
	"math"

	"github.com/modelcompress/compress/internal/stats"
)

// How far a cheap rung is trusted follows from how well it has ordered candidates so far. Those that reached two rungs
// show how they agree, but they are the better part of what was measured on the lower one, and over a part of the range
// a correlation is lower than over the whole: it is corrected by the ratio of the two spreads of the lower rung, its
// ranks taken for those of a normal distribution (Thorndike, 1949, case 2).
//
// With both rungs taken for normal, and correlated by ρ, the best of n candidates on the upper rung lies
// z = Φ⁻¹(n/(n+1)) above the mean there, and on the lower rung around ρ·z with variance 1-ρ². So many candidates go on
// that it is among them in four of five generations:
//
//	share = 1 - Φ(ρ·z - Φ⁻¹(0.8)·√(1-ρ²))
//
// A rung that tells nothing lets four of five through, one that orders perfectly the best alone; Keep's half and its
// double are the bounds.

// Constants of steering.
const (
	steerLeast = 12  // candidates on both of two rungs, from which on their agreement counts
	steerSure  = 0.8 // of the generations in which the best one is to go on
)

// Steer tells the ladder how all candidates of the search so far climbed: of the batches that follow, so many go on as
// the rungs' agreement asks for. What it does depends on these candidates alone, not on what was told before. It is not
// to be called while a batch is measured.
func (l *Ladder) Steer(climbs []Climb) {
	for i, low := range rungs[:len(rungs)-1] {
		l.trust[low] = agreement(climbs, low, rungs[i+1])
	}
}

// Agreement is the rank correlation of a rung with the one above it that the ladder goes by, as it would be over all
// candidates; false as long as it is not known.
func (l *Ladder) Agreement(low Rung) (float64, bool) {
	rho, known := l.trust[low]
	return rho, known && !math.IsNaN(rho)
}

// agreement is the rank correlation of two rungs, NaN where too few candidates reached both.
func agreement(climbs []Climb, lower, upper Rung) float64 {
	var all, low, high []float64
	for i := range climbs {
		a, b := climbs[i].on(lower), climbs[i].on(upper)
		if a != nil {
			all = append(all, *a)
		}
		if a != nil && b != nil {
			low, high = append(low, *a), append(high, *b)
		}
	}

	if len(low) < steerLeast {
		return math.NaN()
	}

	rho := stats.Spearman(low, high)
	if !(rho > 0) {
		return rho // of a part that is ordered backwards nothing follows for the whole
	}
	u := 1.0
	if part := stats.Deviation(normalScores(all, low)); part > 0 {
		u = max(1, stats.Deviation(normalScores(all, all))/part)
	}
	return rho * u / math.Sqrt(1+rho*rho*(u*u-1))
}

// normalScores are the normal distribution's quantiles at the places of values among others.
func normalScores(all, values []float64) []float64 {
	scores := make([]float64, len(values))
	for i, v := range values {
		place := 0.0
		for _, o := range all {
			switch {
			case o < v:
				place++
			case o == v:
				place += 0.5
			}
		}
		scores[i] = normalQuantile((place + 0.5) / float64(len(all)+1))
	}
	return scores
}

// on is the quality on a rung, nil where the candidate did not reach it.
func (c *Climb) on(r Rung) *float64 {
	switch r {
	case Layers:
		return c.Layers
	case Few:
		return c.Few
	case Full:
		return c.Full
	}
	return nil
}

// share is the part of a batch of n that goes on from a rung.
func (l *Ladder) share(r Rung, n int) float64 {
	rho, known := l.Agreement(r)
	if !known || l.o.Keep == 1 {
		return l.o.Keep
	}

	best := normalQuantile(float64(n) / float64(n+1))
	out := 1 - normal(rho*best-normalQuantile(steerSure)*math.Sqrt(max(0, 1-rho*rho)))
	return min(max(out, l.o.Keep/2), min(1, 2*l.o.Keep))
}

// normal is the distribution function of the standard normal distribution.
func normal(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

// normalQuantile is its inverse.
func normalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }
