package cpu

import (
	"math"
	"sync"
)

// The lane form of attention: a block holds one query to a lane, in a few vectors (32 lanes with AVX-512: two vectors;
// 24 with AVX2: three), so that several independent sums are under way. Everything of a block is a matrix [rows,
// lanes]:
//
//	S [keys, lanes]      = K [keys, HeadDim] · Qᵀ [HeadDim, lanes]
//	Oᵀ [HeadDim, lanes]  = Oᵀ·carry + Vᵀ [HeadDim, keys] · exp(S - m)
//
// Scores stand as [keys, lanes], so that highest scores and sums are vertical operations of vectors, one running value
// to a lane, and nothing is ever summed across a vector. Both products are the same loop (tile): a scalar of K or V, as
// they lie in memory, times a vector of lanes; the weights come out of the first product in the order in which the
// second wants them, so that nothing is transposed in between. Only Q and O are turned, once per block of queries.
//
// The mask is the range [lo, hi) of keys that a lane sees (causal, and with a window). Blocks of keys that all lanes
// see are not masked at all.

// laneKeys is the number of keys in a block of the lane form: their scores, the queries and the results of a block stay
// in the first-level cache.
const laneKeys = 64

// laneLoops are the vector loops of attention over blocks of n queries, one query to a vector lane. Matrices of a block
// are [rows, n]; strides are in elements.
type laneLoops struct {
	n int // 0: there are none

	// load computes dst[c, lane] = x[at[lane] + c] · scale for c < channels.
	load func(dst, x []float32, at []int32, channels int, scale float32)
	// tile computes dst[r, lane] = dst[r, lane] · carry[lane] + Σ_p a[r·row + p·step] · b[p, lane] for r < rows
	// and p < k; with a nil carry the old contents do not count.
	tile func(dst, a, b, carry []float32, rows, k, row, step int)
	// mask writes -Inf to s[p, lane] where key j + p is before lo[lane] or not before hi[lane].
	mask func(s []float32, lo, hi []int32, j int)
	// soft turns scores into exp(s - top) in place, raises top, adds to sum, and sets carry to what sums made with the
	// old top must be multiplied by. A lane whose scores are all -Inf is left without effect.
	soft func(s, top, sum, carry []float32)
	// store computes dst[at[lane] + c] = x[c, lane] · scale[lane] for c < channels and lane < len(at).
	store func(dst, x, scale []float32, at []int32, channels int)
}

// laneBlock is one block of queries and its running state.
type laneBlock struct {
	q, out, s       []float32 // queries, results [HeadDim, n]; scores [laneKeys, n]
	top, sum, carry []float32
	row, rows, head int     // first query row, query rows, first head
	count           int     // queries: the lanes in use
	qAt, outAt      []int32 // where a lane's query and result start
	lo, hi          []int32 // the keys that a lane sees
	first, inner    int     // the lowest and the highest of lo
	common, last    int     // the lowest and the highest of hi: every lane sees the keys from inner to common
}

var laneBlockPool = sync.Pool{New: func() any { return new(laneBlock) }}

// lanePlan says how the queries of a call are cut into blocks: positions consecutive rows of heads heads that share a
// key/value head.
type lanePlan struct {
	positions, heads int
	rowBlocks        int
	groups           int // of heads, for one key/value head
	together         int // blocks that read a block of keys one after the other: 1 or 2
}

// plan cuts a call into lane blocks. Blocks hold consecutive positions of one head, or with fewer positions
// than lanes, several heads. With many blocks, some are computed together, so that keys and values come from
// the cache.
func (a *attend) plan() lanePlan {
	n := a.l.v.lanes.n
	p := lanePlan{positions: min(n, a.q.Rows)}
	p.heads = min(a.rep, n/p.positions)
	p.groups = (a.rep + p.heads - 1) / p.heads
	p.rowBlocks = (a.q.Rows + p.positions - 1) / p.positions
	p.together = 1
	if p.rowBlocks*p.groups*a.KVHeads >= 128 {
		p.together = 2
	}

	return p
}

// laneBlocks computes many queries at a time. A piece of work is one block of queries, or two that read the same keys.
func (a *attend) laneBlocks() {
	p := a.plan()
	perHead := p.rowBlocks * p.groups
	pieces := (perHead + p.together - 1) / p.together
	_, longest := a.keys(a.q.Rows - 1)
	work := a.q.Rows * longest * a.Heads * a.HeadDim / 16 // in element-wise operations that take as long
	a.l.each(a.KVHeads*pieces, work, func(i int) {
		// One head after the other, so that its keys and values stay in the cache. The last positions see the most keys
		// and go first, so that no thread is left with them at the end.
		g, lo := i/pieces, i%pieces*p.together

		var blocks [2]*laneBlock
		set := blocks[:min(p.together, perHead-lo)]
		for j := range set {
			b := lo + j
			set[j] = a.laneBlock(p, g, p.rowBlocks-1-b/p.groups, b%p.groups)
		}

		a.attendLanes(set, g)
	})
}

// laneBlock prepares the block of one group of rows and one of heads of key/value head g.
func (a *attend) laneBlock(p lanePlan, g, rows, group int) *laneBlock {
	b := laneBlockPool.Get().(*laneBlock)
	b.size(a.l.v.lanes.n, a.HeadDim)
	b.row = rows * p.positions
	head := group * p.heads
	a.place(b, min(p.positions, a.q.Rows-b.row), g*a.rep+head, min(p.heads, a.rep-head))
	a.l.v.lanes.load(b.q, a.q.Buf.F32()[a.q.Off+b.row*a.q.Stride:], b.qAt, a.HeadDim, a.Scale)
	return b
}

// attendLanes computes blocks that read key/value head g.
func (a *attend) attendLanes(blocks []*laneBlock, g int) {
	lo, hi := blocks[0].first, blocks[0].last
	for _, b := range blocks[1:] {
		lo, hi = min(lo, b.first), max(hi, b.last)
	}

	for j := lo; j < hi; j += laneKeys {
		k, v := a.head(a.k, g, j), a.head(a.v, g, j)
		for _, b := range blocks {
			if keys := min(laneKeys, b.last-j); keys > 0 && j+keys > b.first {
				a.step(b, k, v, j, keys)
			}
		}
	}

	for _, b := range blocks {
		if !a.LSE.IsZero() {
			a.storeLSE(b) // before the sums are turned into factors
		}
		for lane, sum := range b.sum {
			b.sum[lane] = 1 / sum
		}

		a.l.v.lanes.store(a.dst.Buf.F32()[a.dst.Off+b.row*a.dst.Stride:], b.out, b.sum, b.outAt[:b.count], a.HeadDim)
		laneBlockPool.Put(b)
	}
}

// storeLSE writes the logarithms of the sums of exponentials of a block that has seen all keys.
func (a *attend) storeLSE(b *laneBlock) {
	for lane := range b.count {
		a.LSE.RowF32(b.row + lane%b.rows)[b.head+lane/b.rows] = logSum(b.top[lane], b.sum[lane])
	}
}

// step adds keys [j, j+keys) to a block.
func (a *attend) step(b *laneBlock, k, v []float32, j, keys int) {
	l := &a.l.v.lanes
	s := b.s[:keys*l.n]
	l.tile(s, k, b.q, nil, keys, a.HeadDim, a.k.Stride, 1)
	if a.Softcap != 0 {
		a.l.v.tanh(s, s, 1/a.Softcap, a.Softcap)
	}
	if j < b.inner || j+keys > b.common {
		l.mask(s, b.lo, b.hi, j)
	}

	l.soft(s, b.top, b.sum, b.carry)
	l.tile(b.out, v, s, b.carry, a.HeadDim, keys, 1, a.v.Stride)
}

// size makes room for n lanes of d channels and clears the running state.
func (b *laneBlock) size(n, d int) {
	if cap(b.q) < n*d {
		b.q, b.out = make([]float32, n*d), make([]float32, n*d)
	}

	if len(b.top) != n {
		b.s = make([]float32, laneKeys*n)
		b.top = make([]float32, n)
		b.sum = make([]float32, n)
		b.carry = make([]float32, n)

		b.qAt = make([]int32, n)
		b.outAt = make([]int32, n)
		b.lo = make([]int32, n)
		b.hi = make([]int32, n)
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
func (a *attend) place(b *laneBlock, rows, head, heads int) {
	b.rows = rows
	b.head = head
	b.count = rows * heads

	// A lane that has no query needs some address and some range of keys that are valid.
	for lane := range b.lo {
		r, h := lane%rows, lane/rows
		if h >= heads {
			r, h = 0, 0
		}

		b.qAt[lane] = int32(r*a.q.Stride + (head+h)*a.QHeadStride)
		b.outAt[lane] = int32(r*a.dst.Stride + (head+h)*a.HeadDim)
		lo, hi := a.keys(b.row + r)
		b.lo[lane], b.hi[lane] = int32(lo), int32(hi)
	}

	b.first, b.common = a.keys(b.row)
	b.inner, b.last = a.keys(b.row + rows - 1)
}
