package cpu

import (
	"math"
	"sync"
)

// laneKeys is the number of keys in a block of the lane form: their scores, the queries and the results of a block stay
// in the first-level cache.
const laneKeys = 64

// laneLoops are the vector loops of attention over blocks of n queries, one query to a vector lane. Matrices of a block
// are [rows, n]; strides are in elements.
type laneLoops struct {
	n int // 0: there are none

	// load computes dst[c, lane] = x[at[lane] + c] · scale for c < channels.
	load func(dst, x []float32, at []int32, channels int, scale float32)
	// tile computes dst[r, lane] = dst[r, lane] · carry[lane] + Σ_p a[r·row + p·step] · b[p, lane] for r < rows and p < k;
	// with a nil carry the old contents do not count.
	tile func(dst, a, b, carry []float32, rows, k, row, step int)
	// soft turns scores into exp(s - top) in place, raises top, adds to sum, and sets carry to what sums made with the
	// old top must be multiplied by. A lane whose scores are all -Inf is left without effect.
	soft func(s, top, sum, carry []float32)
	// store computes dst[at[lane] + c] = x[c, lane] · scale[lane] for c < channels and lane < len(at).
	store func(dst, x, scale []float32, at []int32, channels int)
}

// laneBlock is the memory of one lane block.
type laneBlock struct {
	q, out, s       []float32 // queries, results [HeadDim, n]; scores [laneKeys, n]
	top, sum, carry []float32
	qAt, outAt      []int32 // where a lane's query and result start
	lo, hi          []int   // the keys that a lane sees
}

var laneBlockPool = sync.Pool{New: func() any { return new(laneBlock) }}

// laneBlocks computes many queries at a time. A block is n lanes: consecutive positions of one head, or with fewer
// positions than lanes, several heads that share a key/value head. Scores are kept as [keys, lanes], so that highest
// scores and sums need no work across a vector, and both products are the same loop: a scalar of the keys (or values),
// as they lie in memory, times a vector of lanes.
func (a *attend) laneBlocks() {
	n := a.l.v.lanes.n
	positions := min(n, a.q.Rows)
	heads := min(a.rep, n/positions)
	groups := (a.rep + heads - 1) / heads
	blocks := (a.q.Rows + positions - 1) / positions
	perBlock := a.KVHeads * groups
	a.l.d.parallel(blocks*perBlock, func(p int) {
		// The last positions see the most keys: they go first, so that no thread is left with them at the end.
		i := (blocks - 1 - p/perBlock) * positions
		g, first := p%perBlock/groups, p%perBlock%groups*heads
		a.laneBlock(i, min(positions, a.q.Rows-i), g, first, min(heads, a.rep-first))
	})
}

// laneBlock computes rows [i, i+rows) of heads [first, first+heads) among those of key/value head g.
func (a *attend) laneBlock(i, rows, g, first, heads int) {
	v, n := &a.l.v.lanes, a.l.v.lanes.n
	b := laneBlockPool.Get().(*laneBlock)
	b.size(n, a.HeadDim)
	a.place(b, i, rows, g*a.rep+first, heads)
	v.load(b.q, a.q.Buf.F32()[a.q.Off+i*a.q.Stride:], b.qAt, a.HeadDim, a.Scale)
	lo, _ := a.keys(i)
	_, hi := a.keys(i + rows - 1)
	for j := lo; j < hi; j += laneKeys {
		keys := min(laneKeys, hi-j)
		s := b.s[:keys*n]
		v.tile(s, a.head(a.k, g, j), b.q, nil, keys, a.HeadDim, a.k.Stride, 1)
		if a.Softcap != 0 {
			a.l.v.tanh(s, s, 1/a.Softcap, a.Softcap)
		}
		b.mask(s, j, keys)
		v.soft(s, b.top, b.sum, b.carry)
		v.tile(b.out, a.head(a.v, g, j), s, b.carry, a.HeadDim, keys, 1, a.v.Stride)
	}
	for lane, sum := range b.sum {
		b.sum[lane] = 1 / sum
	}
	v.store(a.dst.Buf.F32()[a.dst.Off+i*a.dst.Stride:], b.out, b.sum, b.outAt[:rows*heads], a.HeadDim)
	laneBlockPool.Put(b)
}

// size makes room for n lanes of d channels and clears the running state.
func (b *laneBlock) size(n, d int) {
	if cap(b.q) < n*d {
		b.q, b.out = make([]float32, n*d), make([]float32, n*d)
	}
	if len(b.top) != n {
		b.s = make([]float32, laneKeys*n)
		b.top, b.sum, b.carry = make([]float32, n), make([]float32, n), make([]float32, n)
		b.qAt, b.outAt = make([]int32, n), make([]int32, n)
		b.lo, b.hi = make([]int, n), make([]int, n)
	}
	b.q, b.out = b.q[:n*d], b.out[:n*d]
	clear(b.out)
	clear(b.sum)
	for lane := range b.top {
		b.top[lane] = float32(math.Inf(-1))
	}
}

// place says which query a lane holds: lanes run over the rows of the first head, then of the next. Lanes without a
// query repeat the first one; they are computed and not stored.
func (a *attend) place(b *laneBlock, i, rows, head, heads int) {
	for lane := range b.lo {
		r, h := lane%rows, lane/rows
		if h >= heads {
			r, h = 0, 0
		}
		b.qAt[lane] = int32(r*a.q.Stride + (head+h)*a.QHeadStride)
		b.outAt[lane] = int32(r*a.dst.Stride + (head+h)*a.HeadDim)
		b.lo[lane], b.hi[lane] = a.keys(i + r)
	}
}

// mask writes -Inf to the scores of keys [j, j+keys) that a lane does not see.
func (b *laneBlock) mask(s []float32, j, keys int) {
	n := len(b.lo)
	hidden := float32(math.Inf(-1))
	for lane := range n {
		for p := 0; p < min(b.lo[lane]-j, keys); p++ {
			s[p*n+lane] = hidden
		}
		for p := max(0, b.hi[lane]-j); p < keys; p++ {
			s[p*n+lane] = hidden
		}
	}
}
