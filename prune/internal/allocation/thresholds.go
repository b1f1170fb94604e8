package allocation

import (
	"math"
	"slices"
)

// Exponent fits a power law to the tail of eigenvalues of WᵀW: with n values from x on, 1 + n/Σ ln(λ_i/x), the
// estimate of Hill (1975). x is the median, or with peak the value in [0.95, 1.5] times the fullest of 100
// logarithmic bins for which the Kolmogorov-Smirnov distance to the power law is smallest, as in the analysis
// of Clauset, Shalizi and Newman (2009). Values below 1e-12 of the largest do not count. Without two values
// that differ the exponent is 1.
func Exponent(eigenvalues []float64, peak bool) float64 {
	largest := slices.Max(eigenvalues)
	var v []float64
	for _, x := range eigenvalues {
		if x > 1e-12*largest && x > 0 {
			v = append(v, x)
		}
	}

	slices.Sort(v)
	if len(v) < 2 || v[0] == v[len(v)-1] {
		return 1
	}
	if peak {
		return bestTail(v)
	}

	a, _ := tail(v, len(v)/2)
	return a
}

// tail fits the values from v[i] on, and gives the distance of the fit.
func tail(v []float64, i int) (alpha, distance float64) {
	n, sum := float64(len(v)-i), 0.0
	for _, x := range v[i:] {
		sum += math.Log(x / v[i])
	}
	if sum == 0 {
		return 1, 1
	}

	alpha = 1 + n/sum
	for k, x := range v[i:] {
		distance = max(distance, math.Abs(1-math.Pow(x/v[i], 1-alpha)-float64(k)/n))
	}

	return alpha, distance
}

func bestTail(v []float64) float64 {
	const bins = 100
	lo, hi := math.Log10(v[0]), math.Log10(v[len(v)-1])
	var counts [bins]int
	for _, x := range v {
		counts[min(int((math.Log10(x)-lo)/(hi-lo)*bins), bins-1)]++
	}

	fullest := 0
	for b, n := range counts {
		if n > counts[fullest] {
			fullest = b
		}
	}

	at := math.Pow(10, lo+(hi-lo)*float64(fullest)/bins)
	best, least := math.NaN(), math.Inf(1)
	for i, x := range v[:len(v)-1] {
		if x < 0.95*at || x > 1.5*at {
			continue
		}
		if a, d := tail(v, i); d < least {
			best, least = a, d
		}
	}

	if math.IsNaN(best) {
		best, _ = tail(v, len(v)/2)
	}

	return best
}

// Levels counts non-negative scores by their size over a mean: 64 levels for every factor of two between 2⁻⁴⁰ and 2²⁴.
type Levels struct {
	mean   float64
	counts [octaves * perOctave]int64
	total  int64
}

const (
	octaves, lowest = 64, -40
	perOctave       = 64
)

// NewLevels starts counting.
func NewLevels(mean float64) *Levels { return &Levels{mean: mean} }

// Add counts a score. It returns false for a negative one.
func (l *Levels) Add(v float32) bool {
	if v < 0 {
		return false
	}

	at := 0
	if v > 0 && l.mean > 0 {
		at = int(math.Floor((math.Log2(float64(v)/l.mean) - lowest) * perOctave))
	}

	l.counts[max(0, min(at, len(l.counts)-1))]++
	l.total++
	return true
}

// Below finds a threshold such that share of all scores lie below it, where a matrix counts with at most most of its
// scores, and returns the shares of each matrix. The level in which the threshold lies is divided evenly.
func Below(all []*Levels, share, most float64) []float64 {
	below := make([]float64, len(all)) // scores of each matrix
	total := 0.0
	for _, l := range all {
		total += float64(l.total)
	}

	taken := func(level, part float64) (sum float64) {
		for i, l := range all {
			sum += min(below[i]+part*float64(l.counts[int(level)]), most*float64(l.total))
		}
		return sum
	}

	for level := range len(all[0].counts) {
		if taken(float64(level), 1) >= share*total {
			// Which part of the level goes is found by bisection: the bound on each matrix makes what is taken no
			// simple function of it.
			lo, hi := 0.0, 1.0
			for range 60 {
				if mid := (lo + hi) / 2; taken(float64(level), mid) >= share*total {
					hi = mid
				} else {
					lo = mid
				}
			}

			for i, l := range all {
				below[i] += hi * float64(l.counts[level])
			}

			break
		}

		for i, l := range all {
			below[i] += float64(l.counts[level])
		}
	}

	for i, l := range all {
		below[i] = min(below[i]/float64(l.total), most)
	}

	return below
}
