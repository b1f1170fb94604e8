// Package permute reorders the inputs of a matrix so that an N:M pattern loses less of its score, after RIA
// (ICLR 2024).
package permute

import (
	"cmp"
	"context"
	"slices"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Scores is a matrix [rows, cols] of scores, row-major.
type Scores struct {
	Data       []float32
	Rows, Cols int
	Threads    int // 0 means GOMAXPROCS
}

// Heuristic spreads strong and weak columns evenly: columns are sorted by their sum, cut into m strips of equal length,
// and each group of m takes one of every strip, from alternating ends. The columns must be a multiple of m. order[p] is
// the column at position p.
func (s Scores) Heuristic(m int) (order []int32) {
	sums := make([]float64, s.Cols)
	for i := range s.Rows {
		for j, v := range s.Data[i*s.Cols : (i+1)*s.Cols] {
			sums[j] += float64(v)
		}
	}

	sorted := make([]int32, s.Cols)
	for j := range sorted {
		sorted[j] = int32(j)
	}

	slices.SortStableFunc(sorted, func(a, b int32) int { return cmp.Compare(sums[a], sums[b]) })
	groups := s.Cols / m
	order = make([]int32, s.Cols)
	for c := range m {
		strip := sorted[c*groups : (c+1)*groups]
		for d := range groups {
			at := d
			if c%2 == 1 {
				at = groups - 1 - d
			}
			order[d*m+c] = strip[at]
		}
	}

	return order
}

// Moved is the scores in the given order of the columns, F32 in host memory.
func (s Scores) Moved(order []int32) kernels.Mat {
	moved := kernels.MatOf(kernels.NewHost(kernels.F32, s.Rows*s.Cols), s.Rows, s.Cols)
	for i := range s.Rows {
		row := moved.RowF32(i)
		for at, j := range order {
			row[at] = s.Data[i*s.Cols+int(j)]
		}
	}
	return moved
}

// Kept is the sum of the scores that a pattern which drops n of m keeps, in the given order; nil is the order as it is.
func (s Scores) Kept(order []int32, n, m int) (total float64) {
	if order == nil {
		for j := range s.Cols {
			order = append(order, int32(j))
		}
	}

	top := make([]float32, m)
	for i := range s.Rows {
		row := s.Data[i*s.Cols : (i+1)*s.Cols]
		for d := 0; d < len(order); d += m {
			for c := range m {
				top[c] = row[order[d+c]]
			}

			slices.Sort(top)
			for _, v := range top[n:] {
				total += float64(v)
			}
		}
	}

	return total
}

// Refine improves an order in place: for each place c of the groups in turn, it exchanges the columns at c between
// groups such that the score kept grows most, by a linear assignment.
func (s Scores) Refine(ctx context.Context, order []int32, n, m int) error {
	// One column of each group at a time is an assignment problem, which is solved exactly; all columns together are
	// not.
	groups := s.Cols / m
	for c := range m {
		gain, err := s.gains(ctx, order, n, m, c)
		if err != nil {
			return err
		}

		from, _, err := linalg.MaxAssignment(linalg.Of(gain, groups, groups))
		if err != nil {
			return err
		}

		moved := make([]int32, groups)
		for d := range groups {
			moved[d] = order[from[d]*m+c]
		}
		for d := range groups {
			order[d*m+c] = moved[d]
		}
	}

	return nil
}

// gains is, for groups d and s, the score that d keeps with the column c of s in place of its own, up to a part that
// depends on d alone.
func (s Scores) gains(ctx context.Context, order []int32, n, m, c int) ([]float64, error) {
	groups, keep := s.Cols/m, m-n
	gain := make([]float64, groups*groups)
	columns := make([]float32, groups*s.Rows) // the columns at c, one after another
	for g := range groups {
		for i := range s.Rows {
			columns[g*s.Rows+i] = s.Data[i*s.Cols+int(order[g*m+c])]
		}
	}

	mmapsafe.Split(s.Threads, groups, func(lo, hi int) {
		others, last := make([]float32, m-1), make([]float32, s.Rows)
		for d := lo; d < hi && ctx.Err() == nil; d++ {
			s.last(last, others, order[d*m:(d+1)*m], c, keep)
			for g := range groups {
				gain[d*groups+g] = excess(columns[g*s.Rows:(g+1)*s.Rows], last)
			}
		}
	})

	return gain, ctx.Err()
}

// last is, for every row, the lowest score that a group without its column c keeps: what a column in its place
// has to beat.
func (s Scores) last(last, others []float32, group []int32, c, keep int) {
	for i := range last {
		row := s.Data[i*s.Cols : (i+1)*s.Cols]
		k := 0
		for p, j := range group {
			if p != c {
				others[k] = row[j]
				k++
			}
		}

		slices.Sort(others)
		last[i] = others[len(others)-keep]
	}
}

// excess is how much a column adds to what a group keeps without it: Σ max(x - last, 0).
func excess(x, last []float32) float64 {
	var a, b float64
	i := 0
	for ; i+1 < len(x); i += 2 {
		a += float64(max(x[i]-last[i], 0))
		b += float64(max(x[i+1]-last[i+1], 0))
	}

	if i < len(x) {
		a += float64(max(x[i]-last[i], 0))
	}

	return a + b
}
