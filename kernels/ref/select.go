package ref

import (
	"cmp"
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// colSumSq computes
//
//	for i, j { acc[j] += x[i,j]² }
func colSumSq(acc, x kernels.Mat) {
	need(acc.Rows == 1 && acc.Cols == x.Cols, "ref: ColSumSq: shapes do not agree")
	a := acc.Buf.F64()[acc.Off:]
	for i := range x.Rows {
		for j, v := range x.RowF32(i) {
			a[j] += float64(v) * float64(v)
		}
	}
	acc.Buf.Changed()
}

// scores is row i of the score: |X[i,j]|·Col[j] in float32, or X[i,j]·Col[j] if Raw.
func scores(s kernels.Score, i int) []float32 {
	out := slices.Clone(row(s.X, i))
	for j, v := range out {
		if !s.Raw {
			v = math.Float32frombits(math.Float32bits(v) &^ (1 << 31))
		}
		if !s.Col.IsZero() {
			v *= s.Col.RowF32(0)[j]
		}

		out[j] = v
	}

	return out
}

func checkScore(mask kernels.Mat, s kernels.Score) {
	need(sameShape(mask, s.X), "ref: Select: the mask is not shaped like the scores")
	need(s.Col.IsZero() || (s.Col.Rows == 1 && s.Col.Cols == s.X.Cols), "ref: Select: Col is not one row of X's width")
}

// dropLowest writes 0 to keep[j] for the n lowest scores, of equal ones the lower column first, and 1 to the others.
// NaN ranks above everything.
func dropLowest(keep []uint8, score []float32, n int) {
	order := make([]int, len(score))
	for j := range order {
		order[j] = j
		keep[j] = 1
	}
	slices.SortStableFunc(order, func(a, b int) int { return compare(score[a], score[b]) })
	for _, j := range order[:max(0, min(n, len(order)))] {
		keep[j] = 0
	}
}

// compare orders scores ascending, -0 equal to +0 and NaN last.
func compare(a, b float32) int {
	switch an, bn := a != a, b != b; {
	case an && bn:
		return 0
	case an:
		return 1
	case bn:
		return -1
	}
	return cmp.Compare(a, b)
}

// selectRows computes
//
//	for i { mask[i,j] = 0 for the drop lowest scores s[i,j], of equal ones the lower j first; 1 elsewhere }
func selectRows(mask kernels.Mat, s kernels.Score, drop int) {
	checkScore(mask, s)
	for i := range mask.Rows {
		dropLowest(mask.RowU8(i), scores(s, i), drop)
	}
	mask.Buf.Changed()
}

// selectAll computes
//
//	t = sorted(s)[drop]
//	for i, j { mask[i,j] = s[i,j] > t }    // all 1 if drop < 0
func selectAll(mask kernels.Mat, s kernels.Score, drop int) {
	checkScore(mask, s)
	var all []float32
	for i := range mask.Rows {
		all = append(all, scores(s, i)...)
	}

	slices.SortFunc(all, compare)

	for i := range mask.Rows {
		keep := mask.RowU8(i)
		for j, v := range scores(s, i) {
			keep[j] = 1
			if drop >= 0 && compare(v, all[min(drop, len(all)-1)]) <= 0 {
				keep[j] = 0
			}
		}
	}

	mask.Buf.Changed()
}

// selectNM computes
//
//	for i, g {
//		mask[i, g·m : g·m+m] = 0 for the n lowest scores of the group, of equal ones the lower column first
//		                       1 elsewhere
//	}
func selectNM(mask kernels.Mat, s kernels.Score, n, m int) {
	checkScore(mask, s)
	need(m > 0 && n >= 0 && n <= m, "ref: SelectNM: not 0 ≤ n ≤ m")

	for i := range mask.Rows {
		keep, score := mask.RowU8(i), scores(s, i)
		for lo := 0; lo < len(score); lo += m {
			hi := min(lo+m, len(score))
			dropLowest(keep[lo:hi], score[lo:hi], n)
		}
	}

	mask.Buf.Changed()
}

// applyMask computes
//
//	for i, j { if mask[i,j] == 0 { w[i,j] = +0 } }
func applyMask(w, mask kernels.Mat) {
	need(sameShape(w, mask), "ref: ApplyMask: shapes do not agree")
	for i := range w.Rows {
		for j, keep := range mask.RowU8(i) {
			if keep == 0 {
				put(w.Buf, w.Off+i*w.Stride+j, 0)
			}
		}
	}
	w.Buf.Changed()
}

// nonFinite computes
//
//	for i, j { if x[i,j] is NaN or ±Inf { return i·c + j } }
//	return -1
func nonFinite(x kernels.Mat) int {
	for i := range x.Rows {
		for j, v := range row(x, i) {
			if v-v != 0 {
				return i*x.Cols + j
			}
		}
	}
	return -1
}

// countZero computes
//
//	n = 0
//	for i, j { if x[i,j] == 0 { n++ } }
//	return n
func countZero(x kernels.Mat) int {
	n := 0
	for i := range x.Rows {
		if x.DType() == kernels.U8 {
			for _, v := range x.RowU8(i) {
				if v == 0 {
					n++
				}
			}
			continue
		}

		for _, v := range row(x, i) {
			if v == 0 {
				n++
			}
		}
	}

	return n
}
