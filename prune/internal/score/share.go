package score

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// shareRows are the scores of a matrix with those of every row sorted and summed up.
type shareRows struct {
	h      Scores
	sorted []float32
	totals []float64
	cuts   []float32 // the highest score of every row that goes; -1: none
	gone   []int
}

// ShareMask writes the keep mask that takes from every row the lowest scores that make up no more than a share
// alpha of its total, and what equals the highest of them. alpha is found by bisection from 0.4 on [0, 0.8],
// until the matrix loses its sparsity within 0.001 or the interval is shorter than that: Wanda's appendix. A
// row whose lowest score is more than the share of its total loses nothing.
func ShareMask(keep kernels.Mat, h Scores, sparsity float64) (alpha float64, err error) {
	// Sorted once: every step of the bisection looks for another place in the same order.
	s := &shareRows{
		h: h, sorted: h.All(), totals: make([]float64, h.Rows), cuts: make([]float32, h.Rows),
		gone: make([]int, h.Rows),
	}
	for i := range h.Rows {
		row := s.sorted[i*h.Cols : (i+1)*h.Cols]
		slices.Sort(row)
		if len(row) > 0 && row[0] < 0 {
			return 0, fmt.Errorf("output %d: %w: %g", i, ErrNegative, row[0])
		}
		for _, v := range row {
			s.totals[i] += float64(v)
		}
	}

	if sparsity > 0 {
		alpha = s.bisect(sparsity)
	} else {
		for i := range s.cuts {
			s.cuts[i] = -1
		}
	}

	mmapsafe.Split(h.Threads, h.Rows, func(lo, hi int) {
		buf := make([]float32, h.Cols)
		for i := lo; i < hi; i++ {
			mask := keep.RowU8(i)
			for j, v := range h.Row(buf, i) {
				mask[j] = 1
				if v <= s.cuts[i] {
					mask[j] = 0
				}
			}
		}
	})

	return alpha, nil
}

func (s *shareRows) bisect(sparsity float64) float64 {
	alpha := 0.4
	lo := 0.0
	hi := 0.8
	for {
		got := s.cut(alpha)
		if math.Abs(got-sparsity) <= 0.001 || hi-lo < 0.001 {
			return alpha
		}

		if got > sparsity {
			alpha, hi = (alpha+lo)/2, alpha
		} else {
			alpha, lo = (alpha+hi)/2, alpha
		}
	}
}

// cut finds what goes of every row for a share, and returns the sparsity.
func (s *shareRows) cut(alpha float64) float64 {
	mmapsafe.Split(s.h.Threads, s.h.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := s.sorted[i*s.h.Cols : (i+1)*s.h.Cols]
			limit := s.totals[i] * alpha
			sum := 0.0
			c := 0
			for c < len(row) {
				if sum += float64(row[c]); sum > limit {
					break
				}
				c++
			}

			// What equals the cut goes with it: the mask is made by comparing with it.
			s.cuts[i] = -1
			if c > 0 {
				s.cuts[i] = row[c-1]
				for c < len(row) && row[c] == row[c-1] {
					c++
				}
			}

			s.gone[i] = c
		}
	})

	total := 0
	for _, n := range s.gone {
		total += n
	}

	return float64(total) / float64(s.h.Rows*s.h.Cols)
}
