package linalg

import "math"

// LowRankFactor returns rows l [r, n] with a ≈ lᵀ·l for a symmetric positive semi-definite a [n, n]: Cholesky's
// factorisation that takes the largest remaining diagonal first and ends once what is left has no more than tolerance
// of a's trace, which bounds its norm (Harbrecht, Peters and Schneider, "On the low-rank approximation by the pivoted
// Cholesky decomposition", 2012). It reports false, with no factor, where that takes more than most rows. Of equal
// diagonals the first is taken. The cost is r²·n.
func LowRankFactor(a Matrix, tolerance float64, most int) (l Matrix, ok bool) {
	n := a.Rows
	left, trace := make([]float64, n), 0.0
	for i := range left {
		left[i] = a.At(i, i)
		trace += left[i]
	}

	var rows []float64
	for r := 0; ; r++ {
		pivot, rest := 0, 0.0
		for i, v := range left {
			rest += v
			if v > left[pivot] {
				pivot = i
			}
		}
		if rest <= tolerance*trace {
			return Of(rows, r, n), true
		}
		if r == most || left[pivot] <= 0 {
			return Matrix{}, false
		}

		rows = append(rows, a.Row(pivot)[:n]...)
		row := rows[r*n:]
		for k := range r {
			earlier := rows[k*n : (k+1)*n]
			f := earlier[pivot]
			for i, v := range earlier {
				row[i] -= f * v
			}
		}

		f := 1 / math.Sqrt(left[pivot])
		for i := range row {
			row[i] *= f
			left[i] = max(0, left[i]-row[i]*row[i])
		}
		left[pivot] = 0
	}
}
