// Package dsnot refines a mask without changing weights, after DSnoT (arXiv:2310.08915): in every row it
// exchanges pruned and kept weights until the mean of what pruning takes away from the output is small.
package dsnot

import (
	"cmp"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Options are the limits of the exchange.
type Options struct {
	Cycles    int     // exchanges of a row at most
	Threshold float64 // a row is left alone once the expected change of its output is no more than this
	SameSign  bool    // stop before the expected change would change its sign; always so with groups
	Strict    bool    // stop where the weight that would go does not help; only unstructured
	M         int     // group size of an N:M pattern, whose counts are kept; 0: unstructured
}

// Row is one row of a matrix.
type Row struct {
	W     []float32 // weights, with their signs
	Score []float32 // |W|·√s, Wanda's
	Mean  []float64 // Σ over the tokens of a sequence of each input, averaged over sequences
	Var   []float64 // variance of each input
	Keep  []uint8   // the mask, refined in place
}

// Refine exchanges weights of the row and returns how many exchanges it made. It keeps the number of kept
// weights, and with Options.M that of every group.
//
// The change of the output is ε = Σ W_j·Mean_j over the pruned weights. The weight that comes back is the one
// with the largest W_j·Mean_j/Var_j of ε's sign; without one the row is done. Unstructured, the one that goes
// has the lowest score among those with W_j·Mean_j of the opposite sign; when these are used up, the published
// code goes on with the highest score among the others, which Options.Strict does not. In a pattern, it has the
// lowest score among those of the same group that were kept at first.
func (r Row) Refine(o Options) (swaps int) {
	x := newExchange(r, o.M)
	first := x.eps
	for range o.Cycles {
		if !(math.Abs(x.eps) > o.Threshold) {
			break
		}

		back := x.nextBack()
		if back < 0 {
			break
		}

		gone := x.nextGone(back, o.M, o.Strict)
		if gone < 0 {
			break
		}

		after := x.eps + x.m[gone] - x.m[back]
		if (o.SameSign || o.M > 0) && sign(after) != sign(first) {
			break
		}

		x.swap(back, gone)
		x.eps = after
		swaps++
	}

	return swaps
}

// exchange is the state of a row.
type exchange struct {
	r     Row
	m     []float64 // W·Mean
	eps   float64
	grow  []int  // pruned columns by W·Mean/Var, ascending
	lo    int    // front of grow
	hi    int    // behind the back of grow
	kept  []int  // with m < 0 by ascending score, then with m > 0 by descending score
	spare []bool // kept at first and not used yet
}

func newExchange(r Row, groups int) *exchange {
	x := &exchange{r: r, m: make([]float64, len(r.W)), spare: make([]bool, len(r.W))}
	key := make([]float64, len(r.W))
	var neg, pos []int
	for j, w := range r.W {
		x.m[j] = float64(w) * r.Mean[j]

		if r.Keep[j] == 0 {
			x.eps += x.m[j]
			key[j] = x.m[j] / max(r.Var[j], math.SmallestNonzeroFloat32)
			x.grow = append(x.grow, j)
			continue
		}

		x.spare[j] = true
		switch {
		case groups > 0:
		case x.m[j] < 0:
			neg = append(neg, j)
		case x.m[j] > 0:
			pos = append(pos, j)
		}
	}

	slices.SortStableFunc(x.grow, func(a, b int) int { return cmp.Compare(key[a], key[b]) })
	x.hi = len(x.grow)
	byScore := func(a, b int) int { return cmp.Compare(r.Score[a], r.Score[b]) }

	// One list serves both signs of ε: from its front come negative changes by rising score, from its back positive
	// ones by rising score, and each end runs into the other sign's highest scores, as in the published code.
	slices.SortStableFunc(neg, byScore)
	slices.SortStableFunc(pos, byScore)
	slices.Reverse(pos)
	x.kept = append(neg, pos...)

	return x
}

// nextBack takes the column that should come back, -1 if none helps.
func (x *exchange) nextBack() int {
	if x.lo == x.hi {
		return -1
	}

	j := x.grow[x.lo]
	if x.eps > 0 {
		j = x.grow[x.hi-1]
	}
	if x.m[j] == 0 || x.m[j] > 0 != (x.eps > 0) {
		return -1
	}

	if x.eps > 0 {
		x.hi--
	} else {
		x.lo++
	}

	return j
}

// nextGone takes the column that should go for it, -1 if there is none.
func (x *exchange) nextGone(back, groups int, strict bool) int {
	if groups > 0 {
		return x.lowestOf(back/groups*groups, groups)
	}
	if len(x.kept) == 0 {
		return -1
	}

	at := 0
	if x.eps < 0 {
		at = len(x.kept) - 1
	}

	j := x.kept[at]
	if strict && x.m[j] > 0 == (x.eps > 0) {
		return -1
	}

	if at == 0 {
		x.kept = x.kept[1:]
	} else {
		x.kept = x.kept[:at]
	}

	return j
}

// lowestOf is the lowest score of a group that is still spare.
func (x *exchange) lowestOf(start, m int) int {
	at := -1
	for j := start; j < min(start+m, len(x.spare)); j++ {
		if x.spare[j] && (at < 0 || x.r.Score[j] < x.r.Score[at]) {
			at = j
		}
	}
	return at
}

func (x *exchange) swap(back, gone int) {
	x.r.Keep[back], x.r.Keep[gone] = 1, 0
	x.spare[gone] = false
}

func sign(v float64) int {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return 0
}

// Matrix is all rows of a matrix [out, in] in host memory.
type Matrix struct {
	W, Keep   kernels.Mat // F32 and U8
	Norm      []float32   // √s of each input
	Mean, Var []float64
	Threads   int
}

// Refine refines every row, and returns how many exchanges were made.
func (m Matrix) Refine(o Options) (total int64) {
	swaps := make([]int, m.W.Rows)
	mmapsafe.Split(m.Threads, m.W.Rows, func(lo, hi int) {
		score := make([]float32, m.W.Cols)
		for i := lo; i < hi; i++ {
			row := m.W.RowF32(i)
			for j, v := range row {
				score[j] = max(v, -v) * m.Norm[j]
			}
			swaps[i] = Row{W: row, Score: score, Mean: m.Mean, Var: m.Var, Keep: m.Keep.RowU8(i)}.Refine(o)
		}
	})

	for _, n := range swaps {
		total += int64(n)
	}

	return total
}
