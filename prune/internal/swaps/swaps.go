// Package swaps refines a mask without changing weights, as SparseSwaps does (arXiv:2512.10922): in every row it
// exchanges a kept weight for a pruned one wherever that lowers the squared error of the row's output.
//
// # What is computed
//
// With G = Σ x·xᵀ over what flows into a matrix, and r what the mask takes away of a row w, the squared error of the
// row's output is E = r·G·rᵀ. Let c = r·G. Dropping a kept weight u and restoring a pruned weight p changes E by
//
//	Δ(u, p) = w_u²·G_uu + 2·w_u·c_u  +  w_p²·G_pp - 2·w_p·c_p  -  2·w_u·w_p·G_up
//
// and c by w_u·G_u - w_p·G_p, so that a swap costs two rows of G and not a product. E is exact at every step, and never
// rises: there is no threshold to choose, and any mask will do to begin with. How many weights of a row stay does not
// change, nor, in a pattern N:M, how many of each group.
//
// # How
//
// One swap after another, over whole rows, would fetch two rows of G from memory for each. Instead a pass goes through
// sets of 128 columns. Within a set each row makes swaps until none helps, with the part of G between these columns,
// which is small and the same for all rows; what that changes of the rest of c is one product for all rows of the
// matrix, as in SparseGPT's sweep. Every swap knows of all before it, so this changes nothing about Δ; only pairs
// whose columns lie in different sets have to wait for another pass, which divides the columns otherwise. A pattern's
// groups never lie in two sets.
//
// In a pattern all pairs of a set are few, and the best of them is taken. In a row of 128 they are some thousands, of
// which most cannot help. There a swap is found by turns: the best u for the p that promises most by itself, the best p
// for that u, and so on while it gets better. Where that gives nothing from either side, the pruned weights are tried
// one after the other, so that at the end no pair of the set helps.
//
// G and, between sets, c are float32; within a set all is float64. A swap that gains less than a millionth of E is not
// made: it may be rounding.
package swaps

import (
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Job is one matrix. All matrices are dense and in host memory.
type Job struct {
	W      kernels.Mat // F32 [out, in], read only
	Keep   kernels.Mat // U8 [out, in], 1 = kept; refined in place
	Gram   kernels.Mat // F32 [in, in], symmetric: G up to a factor; inputs that are always 0 have a zero diagonal
	M      int         // group size of an N:M pattern, whose counts are kept; 0: the whole row is one
	Passes int         // at most; the work ends before with a pass that changes nothing

	Threads int
	Mul     func(dst, x, w kernels.Mat) // dst += x·w, F32
	Stop    func() error                // asked between sets of columns; may be nil

	width int                           // columns of a set; 0: the constant
	made  func(row int, change float64) // tests see every swap
}

// Result is what became of each row.
type Result struct {
	Swaps         int64     // of all rows
	Before, After []float64 // E of each row, up to the factor of G
}

// setWidth is how many columns exchange weights with each other in a pass.
const setWidth = 128

// batchLen bounds the elements of c, so that large matrices are done some rows at a time.
const batchLen = 1 << 26

// Run refines the mask.
func (j Job) Run() (Result, error) {
	rows, n := j.W.Rows, j.W.Cols
	result := Result{Before: make([]float64, rows), After: make([]float64, rows)}
	step := min(rows, max(2*setWidth, batchLen/n))
	space := kernels.NewHost(kernels.F32, step*n)
	for lo := 0; lo < rows; lo += step {
		hi := min(lo+step, rows)
		b := &batch{
			Job: j, lo: lo, c: kernels.MatOf(space, hi-lo, n), err: result.After[lo:hi], swaps: make([]int64, hi-lo),
		}
		b.begin()
		copy(result.Before[lo:hi], b.err)

		for p := range j.Passes {
			more, err := b.pass(p)
			if err != nil {
				return result, err
			}
			if !more {
				break
			}
		}
		for _, k := range b.swaps {
			result.Swaps += k
		}
	}

	j.Keep.Buf.Changed()
	return result, nil
}

// batch is rows that are done together.
type batch struct {
	Job
	lo    int         // the first of them
	c     kernels.Mat // r·G
	err   []float64   // E
	swaps []int64
}

// begin computes c and E.
func (b *batch) begin() {
	clear(b.c.Buf.F32()[:b.c.Len()])
	b.c.Buf.Changed()

	away := kernels.MatOf(kernels.NewHost(kernels.F32, b.c.Len()), b.c.Rows, b.c.Cols)
	b.rows(func(i int) {
		r, keep := away.RowF32(i), b.Keep.RowU8(b.lo+i)
		for k, v := range b.W.RowF32(b.lo + i) {
			if keep[k] == 0 {
				r[k] = v
			}
		}
	})
	away.Buf.Changed()
	b.Mul(b.c, away, b.Gram)

	b.rows(func(i int) {
		c, sum := b.c.RowF32(i), 0.0
		for k, v := range away.RowF32(i) {
			sum += float64(v) * float64(c[k])
		}
		b.err[i] = max(sum, 0)
	})
}

func (b *batch) rows(f func(i int)) {
	mmapsafe.Split(b.Threads, b.c.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i)
		}
	})
}

// pass goes through all sets of columns once, and reports whether any row has made a swap.
func (b *batch) pass(number int) (more bool, err error) {
	n := b.W.Cols
	width := b.width
	if width == 0 {
		width = setWidth
	}
	if b.M > 0 {
		width = b.M * max(1, width/b.M)
	}

	order := b.order(number)
	change := kernels.NewHost(kernels.F32, b.c.Rows*min(width, n))
	rows := kernels.NewHost(kernels.F32, min(width, n)*n)
	made := make([]int, b.c.Rows)
	for lo := 0; lo < n; lo += width {
		if b.Stop != nil {
			if err := b.Stop(); err != nil {
				return false, err
			}
		}

		s := newSet(b, order[lo:min(lo+width, n)])
		change := kernels.MatOf(change, b.c.Rows, len(s.cols))
		mmapsafe.EachWith(b.Threads, b.c.Rows, func() *row { return newRow(s) }, func(x *row, i int) {
			made[i] = x.run(i, change.RowF32(i))
		})
		change.Buf.Changed()

		any := false
		for i, k := range made {
			b.swaps[i] += int64(k)
			any = any || k > 0
		}
		if any {
			b.Mul(b.c, change, s.rows(rows))
		}
		more = more || any
	}
	return more, nil
}

// order is how the columns are divided in a pass: neighbours at first, which are most alike, and later columns that
// lie far apart. The groups of a pattern are neighbours always.
func (b *batch) order(pass int) []int32 {
	n := b.W.Cols
	step := 1
	if b.M == 0 && pass > 0 {
		const golden = 0.6180339887498949 // multiples of it are spread over the unit interval as evenly as can be
		_, part := math.Modf(float64(pass) * golden)
		for step = max(1, int(part*float64(n))); gcd(step, n) > 1; {
			step++
		}
	}

	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i * step % n)
	}
	return order
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// set is columns that exchange weights, and what all rows share of them.
type set struct {
	*batch
	cols  []int32
	gram  []float64 // G between them
	group int       // how many of them, side by side, may be exchanged with each other
}

func newSet(b *batch, cols []int32) *set {
	s := &set{batch: b, cols: cols, group: b.M, gram: make([]float64, 0, len(cols)*len(cols))}
	if s.group == 0 {
		s.group = len(cols)
	}
	for _, a := range cols {
		row := b.Gram.RowF32(int(a))
		for _, k := range cols {
			s.gram = append(s.gram, float64(row[k]))
		}
	}
	return s
}

// rows are the rows of G that belong to the columns, one below the other.
func (s *set) rows(space *kernels.Buffer) kernels.Mat {
	m := kernels.MatOf(space, len(s.cols), s.Gram.Cols)
	for i, k := range s.cols {
		copy(m.RowF32(i), s.Gram.RowF32(int(k)))
	}
	space.Changed()
	return m
}

// row is a row of the matrix within a set, in memory that rows share one after the other. Places are those of the set.
type row struct {
	*set
	number int // in the batch
	w      []float64
	keep   []uint8
	c      []float64
	square []float64 // w²·G_jj
	signed []float64 // 2w of a kept weight, -2w of a pruned one
	alone  []float64 // what dropping or restoring each weight would change by itself
	err    float64   // E of the whole row

	order  []int32 // places, of each group the kept ones first
	kept   []int   // of each group, how many are kept
	cursor int     // the pruned weight that is tried next where turns give nothing
}

func newRow(s *set) *row {
	n := len(s.cols)
	space := make([]float64, 5*n)
	part := func(i int) []float64 { return space[i*n : (i+1)*n : (i+1)*n] }
	return &row{
		set: s, w: part(0), c: part(1), square: part(2), signed: part(3), alone: part(4),
		keep: make([]uint8, n), order: make([]int32, n),
	}
}

// run makes all swaps that help a row, and writes what they change of r.
func (x *row) run(number int, change []float32) (swaps int) {
	x.begin(number)
	for {
		limit := -least * x.err
		var best pair
		if x.M > 0 {
			best = x.bestOfGroups()
		} else {
			best = x.byTurns(limit)
		}
		if !(best.change < limit) {
			break
		}
		x.swap(best)
		swaps++
	}

	x.end(change)
	return swaps
}

// begin takes the columns of a row.
func (x *row) begin(number int) {
	x.number = number
	x.err = x.batch.err[number]
	x.cursor = 0
	w, c := x.W.RowF32(x.lo+number), x.batch.c.RowF32(number)
	keep := x.Keep.RowU8(x.lo + number)
	for i, k := range x.cols {
		v := float64(w[k])
		x.w[i], x.c[i] = v, float64(c[k])
		x.keep[i] = keep[k]
		x.square[i] = v * v * x.gram[i*len(x.cols)+i]
		x.signed[i] = 2 * v
		if keep[k] == 0 {
			x.signed[i] = -2 * v
		}
		x.alone[i] = x.square[i] + x.signed[i]*x.c[i]
	}

	x.kept = x.kept[:0]
	for lo := 0; lo < len(x.cols); lo += x.group {
		hi := min(lo+x.group, len(x.cols))
		front := lo
		for i := lo; i < hi; i++ {
			if x.keep[i] != 0 {
				x.order[front] = int32(i)
				front++
			}
		}
		x.kept = append(x.kept, front-lo)
		for i := lo; i < hi; i++ {
			if x.keep[i] == 0 {
				x.order[front] = int32(i)
				front++
			}
		}
	}
}

// end writes the columns of a row back.
func (x *row) end(change []float32) {
	keep := x.Keep.RowU8(x.lo + x.number)
	for i, k := range x.cols {
		// What was kept and is pruned now is new in r.
		change[i] = float32(x.w[i]) * float32(int(keep[k])-int(x.keep[i]))
		keep[k] = x.keep[i]
	}
	x.batch.err[x.number] = x.err
}

// pair is a swap: the indices in the order of a kept and of a pruned weight, and what it changes.
type pair struct {
	kept, pruned int
	change       float64
}

var none = pair{-1, -1, math.Inf(1)}

// least is the part of E that a swap has to gain.
const least = 1e-6

// bestOfGroups is the best pair of a pattern, the first one of equals.
func (x *row) bestOfGroups() pair {
	best := none
	n := len(x.cols)
	for g, kept := range x.kept {
		lo := g * x.group
		all := x.order[lo:min(lo+x.group, n)]
		for a, u := range all[:kept] {
			first, w := x.alone[u], 2*x.w[u]
			gram := x.gram[int(u)*n:][:n]
			for b, p := range all[kept:] {
				if v := first + x.alone[p] - w*x.w[p]*gram[p]; v < best.change {
					best = pair{lo + a, lo + kept + b, v}
				}
			}
		}
	}
	return best
}

// turns bounds how often the two sides of a swap are chosen in turn.
const turns = 6

// byTurns finds a swap without groups that gains more than the limit, or none if there is none.
func (x *row) byTurns(limit float64) pair {
	kept := x.kept[0]
	if kept == 0 || kept == len(x.cols) {
		return none
	}

	if p := x.turn(x.promising(kept, len(x.cols)), true); p.change < limit {
		return p
	}
	if p := x.turn(x.promising(0, kept), false); p.change < limit {
		return p
	}
	return x.anyPair(limit)
}

// promising is the index of the weight that changes E least by itself, of those in a part of the order.
func (x *row) promising(lo, hi int) int {
	at, best := lo, math.Inf(1)
	for i, k := range x.order[lo:hi] {
		if v := x.alone[k]; v < best {
			at, best = lo+i, v
		}
	}
	return at
}

// turn chooses the other side of a weight, then that one's, while it gets better.
func (x *row) turn(at int, pruned bool) pair {
	best := none
	for range turns {
		other, change := x.partner(at, pruned)
		if !(change < best.change) {
			break
		}
		best = pair{other, at, change}
		if !pruned {
			best = pair{at, other, change}
		}
		at, pruned = other, !pruned
	}
	return best
}

// partner is the best kept weight for a pruned one, or the best pruned one for a kept one, and what they change.
func (x *row) partner(at int, pruned bool) (other int, change float64) {
	n := len(x.cols)
	lo, hi := 0, x.kept[0]
	if !pruned {
		lo, hi = hi, n
	}

	j := int(x.order[at])
	w, alone := x.w[:n], x.alone[:n]
	gram := x.gram[j*n:][:n]
	factor := 2 * w[j]
	other, change = lo, math.Inf(1)
	for i, k := range x.order[lo:hi] {
		if v := alone[k] - factor*w[k]*gram[k]; v < change {
			other, change = lo+i, v
		}
	}
	return other, change + alone[j]
}

// anyPair tries the pruned weights one after the other, beginning where it last came to, so that together the swaps of
// a row cost little more than one round. A weight is passed over if it could not help even with the kept weight that
// is cheapest to drop and most alike.
func (x *row) anyPair(limit float64) pair {
	kept := x.kept[0]
	cheapest := x.alone[x.order[x.promising(0, kept)]]
	largest := 0.0
	for _, k := range x.order[:kept] {
		largest = max(largest, x.square[k])
	}

	pruned := len(x.cols) - kept
	for range pruned {
		at := kept + x.cursor%pruned
		x.cursor++

		// |G_up| is at most √(G_uu·G_pp).
		j := x.order[at]
		if !(x.alone[j]+cheapest-2*math.Sqrt(x.square[j]*largest) < limit) {
			continue
		}
		if other, change := x.partner(at, true); change < limit {
			return pair{other, at, change}
		}
	}
	return none
}

// swap makes a swap.
func (x *row) swap(s pair) {
	u, p := x.order[s.kept], x.order[s.pruned]
	x.keep[u], x.keep[p] = 0, 1
	x.order[s.kept], x.order[s.pruned] = p, u
	x.signed[u], x.signed[p] = -x.signed[u], -x.signed[p]
	x.err = max(0, x.err+s.change)
	if x.made != nil {
		x.made(x.lo+x.number, s.change)
	}

	n := len(x.cols)
	a, b := x.w[u], x.w[p]
	dropped, restored := x.gram[int(u)*n:][:n], x.gram[int(p)*n:][:n]
	c, square := x.c[:n], x.square[:n]
	signed, alone := x.signed[:n], x.alone[:n]
	for i, v := range dropped {
		c[i] += a*v - b*restored[i]
		alone[i] = square[i] + signed[i]*c[i]
	}
}
