package fitness

import (
	"cmp"
	"math"
	"slices"
)

// Spearman is the rank correlation of two lists of equal length, ties getting their mean rank; NaN for fewer than two values or a
// list of equal ones.
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
		hi := lo
		for hi < len(at) && v[at[hi]] == v[at[lo]] {
			hi++
		}
		for _, i := range at[lo:hi] {
			out[i] = float64(lo+hi+1) / 2
		}
		lo = hi
	}
	return out
}

func pearson(a, b []float64) float64 {
	ma, mb := mean(a), mean(b)
	var ab, aa, bb float64
	for i := range a {
		ab += (a[i] - ma) * (b[i] - mb)
		aa += (a[i] - ma) * (a[i] - ma)
		bb += (b[i] - mb) * (b[i] - mb)
	}
	return ab / math.Sqrt(aa*bb)
}

// Kendall is the rank correlation τ-b of two lists of equal length; NaN for fewer than two values or a list of equal ones. It takes
// time in proportion to the square of their length.
func Kendall(a, b []float64) float64 {
	var agree, tiedA, tiedB, pairs float64
	for i := range a {
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
