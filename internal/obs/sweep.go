// Package obs removes or rounds weights column by column and lets the columns to the right make up for each (optimal
// brain surgeon): SparseGPT (Frantar and Alistarh, 2023, arXiv:2301.00774), with masks of its own choice or given ones,
// GPTQ (Frantar et al., 2022, arXiv:2210.17323), and both in one sweep.
//
// # What is computed
//
// For a matrix W [out, in] whose inputs have the Hessian H = (2/N)·Σ x·xᵀ, changing a row by δ costs ½·δ·H·δᵀ of
// squared error of its output. The optimal brain surgeon removes weight j of a row and changes the others by what
// undoes most of the damage, -(w_j/[H⁻¹]_jj)·[H⁻¹]_j. Exactly that needs an inverse for every row, since every row
// loses other weights. SparseGPT goes through the columns of all rows in one order, from left to right, and lets only
// the columns to the right, F = {j, j+1, …}, make up for column j. What is needed then is [H_F]⁻¹ for every suffix F,
// which is the same for all rows, and one triangular factor holds all of them: with H⁻¹ = UᵀU, U upper triangular, the
// first row of [H_F]⁻¹ is U_jj·U_j. So for a weight w that is removed in column j
//
//	e = w/U_jj,   the row's columns ≥ j get -e·U_j,   the loss grows by e²/2
//
// A weight that stays has e = 0, unless there is a grid of values that weights may have: then it is rounded to v, with
// e = (w - v)/U_jj, and removing is nothing but rounding to 0. Where the mask is chosen here, the score of a weight is
// (w/U_jj)², twice the loss of removing it.
//
// # How
//
// The update by single columns would pass through all of W for each. It is delayed instead: within a stride of some 16
// columns, a column's errors go to the rest of the stride at once; from a stride to the rest of its block, and from a
// block of 128 columns to all of W, they go as one matrix product W += E·U, E the negative errors. Since a column is
// not looked at before its turn, when all updates from the left have reached it, this changes roundings and nothing
// else.
//
// W, U and E are float32, as in the published code; losses are summed in float64. Rows do not know of each other,
// except in Choose; they are what threads share, and the result does not depend on how many there are.
package obs

import (
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Grid is the values that weights may have, such as those of a quantised format. It is asked from several goroutines,
// about a row by one of them at a time.
type Grid interface {
	// Fix chooses the scales of row i for the columns from lo on that w holds, as they are before any of them is
	// rounded: a group of Job.Group columns, or what is left of the row.
	Fix(i, lo int, w []float32)
	// Round gives the value of the grid that is taken for w in row i and column j.
	Round(i, j int, w float32) float32
}

// Width is how many columns are chosen together and how many the columns behind them wait for.
const Width = 128

// Job is one matrix. All matrices are dense and in host memory.
type Job struct {
	W    kernels.Mat // F32 [out, in], overwritten
	U    kernels.Mat // F32 [in, in]: the upper triangular factor of the inverse Hessian, H⁻¹ = UᵀU
	Mask kernels.Mat // U8 [out, in], 1 = kept: given, or written by Choose or N:M; zero: nothing is removed

	// Grid rounds what stays; nil: it keeps its value. Group is how many columns Fix is given, a multiple of 16; 0:
	// all of a row. Scales of groups are fitted to weights that have made up for everything to their left, those of
	// whole rows to the weights as they came.
	Grid  Grid
	Group int

	// N and M let the sweep choose the N lowest of every M columns, when it gets to them.
	N, M int
	// Choose, if not nil, writes the keep mask of a block of columns from their scores, when the sweep gets to them.
	Choose func(mask, score kernels.Mat) error

	Width   int                           // columns of a block; 0 means the constant
	Threads int                           // goroutines; 0 means GOMAXPROCS
	Mul     func(dst, x, w kernels.Mat)   // dst += x·w, F32
	Stop    func(done, columns int) error // called between blocks; may be nil
}

// Run does the sweep. loss is Σ e²/2 over all removed and rounded weights.
//
// Scores are those of the weights as they are at the beginning of a block, or for N:M at the beginning of a group, as
// in the published code: a block's worth of weights has to be known before the first of them is removed, since they
// compete for the sparsity of the block.
func (j Job) Run() (loss float64, err error) {
	width := j.width()
	scratch := newScratch(j.W.Rows, width)
	diagonal := make([]float32, j.W.Cols)
	for i := range diagonal {
		diagonal[i] = j.U.RowF32(i)[i]
	}

	losses := make([]float64, j.W.Rows)
	if j.Grid != nil && j.Group == 0 {
		j.rows(func(i int) { j.Grid.Fix(i, 0, j.W.RowF32(i)) })
	}

	for lo := 0; lo < j.W.Cols; lo += width {
		hi := min(lo+width, j.W.Cols)

		if j.Stop != nil {
			if err := j.Stop(lo, j.W.Cols); err != nil {
				return 0, err
			}
		}

		if j.Choose != nil {
			if err := j.choose(lo, hi, diagonal, scratch); err != nil {
				return 0, err
			}
		}

		errs := scratch.errs(hi - lo)
		for a := lo; a < hi; a += j.stride() {
			b := min(a+j.stride(), hi)
			// All to the left of a has reached the block's columns by now, so these are the weights to fit scales to.
			if j.Grid != nil && j.Group > 0 && a%j.Group == 0 {
				end := min(a+j.Group, j.W.Cols)
				j.rows(func(i int) { j.Grid.Fix(i, a, j.W.RowF32(i)[a:end]) })
			}

			j.columns(span{lo, a, b}, diagonal, errs, losses)
			if b < hi {
				j.Mul(j.W.ColRange(b, hi), errs.ColRange(a-lo, b-lo), j.U.RowRange(a, b).ColRange(b, hi))
			}
		}

		if hi < j.W.Cols {
			j.Mul(j.W.ColRange(hi, j.W.Cols), errs, j.U.RowRange(lo, hi).ColRange(hi, j.W.Cols))
		}
	}

	for _, v := range losses {
		loss += v
	}

	return loss, nil
}

// stride is how many columns are done one by one before the rest of the block hears of them. Groups of a grid begin at
// multiples of it.
func (j Job) stride() int {
	const step = 16
	if j.M == 0 {
		return step
	}
	return j.M * max(1, step/j.M)
}

// width makes blocks that whole groups fill.
func (j Job) width() int {
	w := j.Width
	if w == 0 {
		w = Width
	}
	if j.M > 0 {
		w = j.M * max(1, w/j.M)
	}
	if j.Grid != nil && j.Group > 0 && w%j.Group != 0 {
		w = j.Group * max(1, w/j.Group) // a group lies within a block
	}
	return w
}

// scratch is memory for the errors and scores of a block.
type scratch struct {
	e, s *kernels.Buffer
	rows int
}

func newScratch(rows, width int) scratch {
	return scratch{kernels.NewHost(kernels.F32, rows*width), kernels.NewHost(kernels.F32, rows*width), rows}
}

func (s scratch) errs(cols int) kernels.Mat   { return kernels.MatOf(s.e, s.rows, cols) }
func (s scratch) scores(cols int) kernels.Mat { return kernels.MatOf(s.s, s.rows, cols) }

// choose scores the columns of a block and lets the caller choose.
func (j Job) choose(lo, hi int, diagonal []float32, sc scratch) error {
	score := sc.scores(hi - lo)
	d := diagonal[lo:hi]
	j.rows(func(i int) {
		w, s := j.W.RowF32(i)[lo:hi], score.RowF32(i)
		for c, v := range w {
			s[c] = v * v / (d[c] * d[c])
		}
	})

	score.Buf.Changed()
	return j.Choose(j.Mask.ColRange(lo, hi), score)
}

// span is the columns [a, b) of the block that starts at lo.
type span struct{ lo, a, b int }

// columns removes what the mask drops in a few columns and rounds the others to the grid, row by row, and writes the
// negative errors.
func (j Job) columns(s span, diagonal []float32, errs kernels.Mat, losses []float64) {
	n := s.b - s.a
	u := make([]float32, n*n) // the triangle, close together: rows of U lie in·4 bytes apart
	for r := range n {
		copy(u[r*n:], j.U.RowF32(s.a + r)[s.a:s.b])
	}

	d := diagonal[s.a:s.b]
	j.rows(func(i int) {
		w := j.W.RowF32(i)[s.a:s.b]
		var keep []uint8
		if !j.Mask.IsZero() {
			keep = j.Mask.RowU8(i)[s.a:s.b]
		}
		e := errs.RowF32(i)[s.a-s.lo : s.b-s.lo]
		clear(e)

		loss := 0.0
		for c := range w {
			// The weights of the group are up to date: everything to the left is through, this stride's columns
			// included.
			if j.M > 0 && c%j.M == 0 {
				lowest(keep[c:min(c+j.M, n)], w[c:min(c+j.M, n)], d[c:], j.N)
			}

			target := float32(0)
			if keep == nil || keep[c] != 0 {
				if j.Grid == nil {
					continue
				}
				target = j.Grid.Round(i, s.a+c, w[c])
			}

			q := (w[c] - target) / d[c]
			e[c] = -q
			w[c] = target
			loss += float64(q) * float64(q)

			rest, row := w[c+1:], u[c*n+c+1:(c+1)*n]
			for k, v := range row {
				rest[k] -= q * v
			}
		}

		losses[i] += loss / 2
	})

	errs.Buf.Changed()
	j.W.Buf.Changed()
	if !j.Mask.IsZero() {
		j.Mask.Buf.Changed()
	}
}

// lowest drops the n lowest scores w²/d² of a group; of equal ones the lower column goes first.
func lowest(keep []uint8, w, d []float32, n int) {
	for c := range keep {
		keep[c] = 1
	}

	for range min(n, len(keep)) {
		best, at := float32(0), -1
		for c, v := range w {
			if s := v * v / (d[c] * d[c]); keep[c] != 0 && (at < 0 || s < best) {
				best, at = s, c
			}
		}

		keep[at] = 0
	}
}

// rows calls f for every row, from several goroutines.
func (j Job) rows(f func(i int)) {
	mmapsafe.Split(j.Threads, j.W.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i)
		}
	})
}
