// Package stats has the intervals, the tests and the correlations that reports give: one formula for each, with
// its source.
package stats

import (
	"math"
	"slices"
)

// Z95 is the normal quantile of intervals of 95 %.
const Z95 = 1.959963984540054

// Wilson is the interval of a fraction (Wilson, "Probable inference, the law of succession, and statistical
// inference", 1927).
func Wilson(fraction float64, n int) (low, high float64) { return wilson(fraction, float64(n)) }

// Share is the interval of a mean of n values between 0 and 1, such as the shares of each record's prompts,
// with its standard error: that of Wilson for as many independent answers as have this error (Korn and
// Graubard, "Confidence intervals for proportions with small expected number of positive counts estimated from
// survey data", 1998), which never leaves 0 to 1 and always has a width. Where all values are the same, they
// count as n answers.
func Share(mean, stderr float64, n int) (low, high float64) {
	mean = min(1, max(0, mean))
	m := float64(n)
	if spread := mean * (1 - mean); stderr > 0 && spread > 0 {
		m = spread / (stderr * stderr)
	}
	return wilson(mean, m)
}

func wilson(fraction, m float64) (low, high float64) {
	if !(m > 0) {
		return 0, 1
	}
	fraction = min(1, max(0, fraction)) // a mean of ones may be rounded to more
	z := Z95 * Z95
	middle := (fraction + z/(2*m)) / (1 + z/m)
	half := Z95 / (1 + z/m) * math.Sqrt(fraction*(1-fraction)/m+z/(4*m*m))
	return max(0, middle-half), min(1, middle+half)
}

// Holm adjusts probabilities for being one of many (Holm, "A simple sequentially rejective multiple test
// procedure", 1979).
func Holm(p []float64) []float64 {
	out := slices.Repeat([]float64{math.NaN()}, len(p))
	var by []int
	for i := range p {
		if !math.IsNaN(p[i]) { // a test without a result is none of the family
			by = append(by, i)
		}
	}

	slices.SortStableFunc(by, func(a, b int) int {
		switch {
		case p[a] < p[b]:
			return -1
		case p[a] > p[b]:
			return 1
		}
		return a - b
	})

	last := 0.0
	for rank, i := range by {
		last = max(last, min(1, p[i]*float64(len(by)-rank)))
		out[i] = last
	}

	return out
}

// Deviation is the standard deviation of a sample, with n-1 in the denominator.
func Deviation(list []float64) float64 {
	mean := Mean(list)
	sum := 0.0
	for _, v := range list {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(list)-1))
}

// Mean is the mean of a list, NaN for none.
func Mean(list []float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	return sum / float64(len(list))
}

// Median is the middle of a list, the mean of the two middle ones where there are two; NaN for none.
func Median(list []float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
