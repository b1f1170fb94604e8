package stats

import (
	"cmp"
	"math"
	"slices"
)

// Spearman is the rank correlation of two lists of equal length, ties getting their mean rank; NaN for fewer
// than two values, a list of equal ones and one with a NaN.
func Spearman(a, b []float64) float64 { return pearson(ranks(a), ranks(b)) }

// ranks are from 1, those of equal values averaged.
func ranks(v []float64) []float64 {
	at := make([]int, len(v))
	for i := range at {
		at[i] = i
	}

	slices.SortFunc(at, func(i, j int) int { return cmp.Compare(v[i], v[j]) })

	out := make([]float64, len(v))
	for lo := 0; lo < len(at); {
		hi := lo + 1
		for hi < len(at) && v[at[hi]] == v[at[lo]] {
			hi++
		}

		for _, i := range at[lo:hi] {
			out[i] = float64(lo+hi+1) / 2
			if math.IsNaN(v[i]) {
				out[i] = v[i]
			}
		}

		lo = hi
	}

	return out
}

func pearson(a, b []float64) float64 {
	var ma, mb float64
	for i := range a {
		ma += a[i] / float64(len(a))
		mb += b[i] / float64(len(b))
	}

	var ab, aa, bb float64
	for i := range a {
		ab += (a[i] - ma) * (b[i] - mb)
		aa += (a[i] - ma) * (a[i] - ma)
		bb += (b[i] - mb) * (b[i] - mb)
	}

	return ab / math.Sqrt(aa*bb)
}

// Kendall is the rank correlation τ-b of two lists of equal length; NaN for fewer than two values, a list of
// equal ones and one with a NaN. It takes time in proportion to the square of their length.
func Kendall(a, b []float64) float64 {
	var agree, tiedA, tiedB, pairs float64
	for i := range a {
		if math.IsNaN(a[i]) || math.IsNaN(b[i]) {
			return math.NaN()
		}

		for j := range i {
			x, y := cmp.Compare(a[i], a[j]), cmp.Compare(b[i], b[j])
			agree += float64(x * y)
			pairs++
			if x == 0 {
				tiedA++
			}
			if y == 0 {
				tiedB++
			}
		}
	}

	return agree / math.Sqrt((pairs-tiedA)*(pairs-tiedB))
}
