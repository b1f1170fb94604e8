package cpu

import "github.com/modelcompress/compress/kernels"

// The gradients of attention. With S the scores before the cap, P = exp(cap(S) - LSE) the weights and dO the gradient
// of the result (Dao et al., "FlashAttention", 2022, algorithm 4):
//
//	dV = Pᵀ·dO
//	dP = dO·Vᵀ
//	dS = P ∘ (dP - D) ∘ cap'(S)      D_i = Σ_c dO_ic·O_ic, which is Σ_j P_ij·dP_ij without the sum over keys
//	dQ = scale·dS·K
//	dK = scale·dSᵀ·Q
//
// Nothing of size [queries, keys] is kept from the forward pass or written here: P is computed again from LSE, and S,
// dP and dS exist for one pair of blocks at a time, a block of keys (one key to a vector lane) against gradQueries
// queries. All five products are the tile loop of the forward pass: a scalar of the queries, or of their gradients,
// times a vector of lanes; only the last, dq, has channels for lanes and so wants the keys of the block in rows of that
// many channels.
//
// Keys are the outer loop because of what is summed: dk and dv of a block of keys stay in the cache over all queries
// and all query heads that share it, and belong to one thread. dq is summed over keys, so over threads: a piece of work
// is a run of blocks of keys of one key/value head (runs have about the same work, which under a causal mask are fewer
// blocks at the beginning, since more rows see them), every run has a part of dq of its own, and finish adds the parts
// in the order of the keys. The number of runs depends on the shapes alone, and so does the result. With many heads and
// rows, some heads are done before the next, for the sake of memory (gradSpace).

const (
	gradQueries = 64 // queries in a block
	gradPieces  = 32 // pieces of work that are enough for many threads
	gradParts   = 8  // parts of dq at most
	// keys that a piece has at least, about, or there is one piece to a head: parts cost memory traffic
	gradKeys  = 512
	gradSpace = 32 << 20 // elements of scratch, about, unless one key/value head wants more
)

// attendGrad is one call of the gradients of attention, working on some key/value heads and the query heads
// that read them: heads, counted from the first of these. Its matrices of queries are [heads, tq, …].
type attendGrad struct {
	attend
	b                *backward
	dq, dk, dv, dout kernels.Mat
	n, groups        int       // lanes, and vectors of n channels that cover a head
	runs             [][2]int  // runs of blocks of keys
	rows             [][2]int  // rows of q that see a run
	first, heads     int       // the key/value head that work is at, and query heads
	scaled, grad     []float32 // Scale·q and dout [heads, tq, HeadDim]
	lse, delta       []float32 // LSE and Σ dout·out [heads, tq]
	part             []float32 // of dq [runs, heads, groups, tq, n]
}

// attention computes the gradients of attention: with p the weights, dp[j] = dout[i,h]·v[j,h/rep] and
// ds[j] = p[j]·(dp[j] - dout[i,h]·out[i,h])·cap'(s[j]) for the keys j that row i sees,
//
//	dv[j,h/rep] = Σ_i p[j]·dout[i,h], dk[j,h/rep] = Scale·Σ_i ds[j]·q[i,h], dq[i,h] = Scale·Σ_j ds[j]·k[j,h/rep]
func (b *backward) attention(dq, dk, dv, dout, q, k, v, out kernels.Mat, o kernels.Attention) {
	a := &attendGrad{
		attend: attend{Attention: o, l: b.layers, dst: out, q: q, k: k, v: v}, b: b, dq: dq, dk: dk,
		dv: dv, dout: dout,
	}
	a.defaults()
	a.check()
	must(sameShape(dq, q) && sameShape(dk, k) && sameShape(dv, v) && sameShape(dout, out),
		"cpu: AttentionBackward: shapes do not agree")
	must(!a.LSE.IsZero(), "cpu: AttentionBackward: LSE is absent")

	a.n = b.g.lanes.n
	a.groups = pieces(a.HeadDim, a.n)
	a.plan()

	// size is the scratch of one key/value head.
	size := a.rep * q.Rows * (2*a.HeadDim + 2 + len(a.runs)*a.groups*a.n)
	batch := min(max(1, b.space/max(1, size)), a.KVHeads)
	work, owner := lend(batch * size)
	for a.first = 0; a.first < a.KVHeads; a.first += batch {
		a.someHeads(work, min(batch, a.KVHeads-a.first))
	}

	giveBack(owner)
	dq.Buf.Changed()
	dk.Buf.Changed()
	dv.Buf.Changed()
}

// someHeads computes count key/value heads from the first.
func (a *attendGrad) someHeads(work []float32, count int) {
	a.heads = count * a.rep
	rows := a.q.Rows * a.heads
	d := a.HeadDim
	splits := len(a.runs)
	cut := func(n int) []float32 {
		s := work[:n:n]
		work = work[n:]
		return s
	}

	a.part, a.scaled, a.grad = cut(rows*splits*a.groups*a.n), cut(rows*d), cut(rows*d)
	a.lse, a.delta = cut(rows), cut(rows)
	a.b.each(a.q.Rows, 4*rows*d, a.prepare)
	a.b.each(count*splits, rows*(a.Pos+a.q.Rows)*d/6, a.keyBlocks)
	a.b.each(a.q.Rows, rows*d*(1+splits), a.finish)
}

// plan cuts the blocks of keys into runs of about the same number of pairs of a key and a row.
func (a *attendGrad) plan() {
	blocks, pairs := pieces(max(a.k.Rows, a.v.Rows), a.n), 0
	for block := range blocks {
		lo, hi := a.seenBy(block)
		pairs += hi - lo
	}

	splits := max(1, min(blocks*a.n/gradKeys, gradParts, pieces(gradPieces, a.KVHeads)))
	first, sum := 0, 0
	for block := range blocks {
		lo, hi := a.seenBy(block)
		if sum += hi - lo; sum >= (len(a.runs)+1)*pairs/splits && len(a.runs) < splits-1 {
			a.run(first, block+1)
			first = block + 1
		}
	}

	a.run(first, blocks)
}

// run appends blocks [lo, hi) as a run.
func (a *attendGrad) run(lo, hi int) {
	rows := [2]int{a.q.Rows, 0}
	for block := lo; block < hi; block++ {
		if r0, r1 := a.seenBy(block); r0 < r1 {
			rows = [2]int{min(rows[0], r0), max(rows[1], r1)}
		}
	}
	a.runs, a.rows = append(a.runs, [2]int{lo, hi}), append(a.rows, rows)
}

// seenBy is the range of rows that see some key of a block. Its bounds are multiples of 8 where there are rows
// enough: whole tiles with hidden rows are faster than broken ones.
func (a *attendGrad) seenBy(block int) (lo, hi int) {
	first := block*a.n - a.Pos // the row whose position is the first key's
	last := min((block+1)*a.n, a.Pos+a.q.Rows) - 1 - a.Pos
	hi = a.q.Rows
	if a.Window > 0 {
		hi = max(0, min(roundUp(max(0, last+a.Window), 8), hi))
	}
	lo = max(0, first) &^ 7
	return min(lo, hi), hi
}

// prepare copies row i of the queries and of the gradients to where the blocks read them.
func (a *attendGrad) prepare(i int) {
	d, q, dout, out, lse := a.HeadDim, a.q.RowF32(i), a.dout.RowF32(i), a.dst.RowF32(i), a.LSE.RowF32(i)
	for h := range a.heads {
		at, own := h*a.q.Rows+i, a.first*a.rep+h
		g := dout[own*d : (own+1)*d]
		a.l.v.scale(a.scaled[at*d:(at+1)*d], q[own*a.QHeadStride:][:d], a.Scale)
		copy(a.grad[at*d:(at+1)*d], g)
		a.lse[at], a.delta[at] = lse[own], float32(a.b.g.dot(g, out[own*d:(own+1)*d]))
	}
}

// finish adds the parts of row i of dq.
func (a *attendGrad) finish(i int) {
	row := a.dq.RowF32(i)
	for h := range a.heads {
		own := row[(a.first*a.rep+h)*a.QHeadStride:]
		for c := 0; c < a.HeadDim; c += a.n {
			dst := own[c:][:min(a.n, a.HeadDim-c)]
			first := true
			for s, rows := range a.rows {
				if i < rows[0] || i >= rows[1] { // no key of the run is seen, and the part was never written
					continue
				}

				part := a.queryPart(s, h, c/a.n)[i*a.n:][:len(dst)]
				if first {
					a.l.v.scale(dst, part, a.Scale)
				} else {
					a.l.v.add(dst, dst, part, a.Scale)
				}

				first = false
			}
		}
	}
}

// queryPart is part s of dq for one head and vector of channels: [tq, n].
func (a *attendGrad) queryPart(s, h, group int) []float32 {
	size := a.q.Rows * a.n
	return a.part[((s*a.heads+h)*a.groups+group)*size:][:size]
}

// keyBlock is one block of keys of key/value head g.
type keyBlock struct {
	g, part          int       // head, and part of dq
	first, count     int       // first key, and keys that some row sees
	written          int       // rows of the part before this one are written, from the first that sees the run
	kT, vT, dkT, dvT []float32 // [HeadDim, n]
	rows             []float32 // keys [n, HeadDim], on their way in and out
	wide             []float32 // keys [groups, n, n]: n channels of every key
	s, ds            []float32 // [gradQueries, n]
	ones             []float32 // [n]
	lo, hi           []int32   // rows of q that see a key
	at               []int32   // where a key starts in rows
}

// keyBlocks computes piece p: a run of blocks of one head.
func (a *attendGrad) keyBlocks(p int) {
	n, d, g, part := a.n, a.HeadDim, a.first+p/len(a.runs), p%len(a.runs)
	work, owner := lend(n * (5*d + a.groups*n + 2*gradQueries + 1))
	at := make([]int32, 3*n)
	cut := func(n int) []float32 {
		s := work[:n:n]
		work = work[n:]
		return s
	}

	b := &keyBlock{
		g: g, part: part, written: a.rows[part][0], kT: cut(n * d), vT: cut(n * d), dkT: cut(n * d), dvT: cut(n * d),
		rows: cut(n * d), wide: cut(a.groups * n * n),
		s: cut(gradQueries * n), ds: cut(gradQueries * n), ones: cut(n), lo: at[:n], hi: at[n : 2*n], at: at[2*n:],
	}

	clear(b.wide)
	for lane := range n {
		b.ones[lane], b.at[lane] = 1, int32(lane*d)
	}
	for block := a.runs[part][0]; block < a.runs[part][1]; block++ {
		a.keyBlock(b, block)
	}

	giveBack(owner)
}

// keyBlock computes the gradients of one block of keys and values, and adds to a part of dq.
func (a *attendGrad) keyBlock(b *keyBlock, block int) {
	clear(b.dkT)
	clear(b.dvT)

	b.first = block * a.n
	b.count = min(a.n, a.Pos+a.q.Rows-b.first)
	if lo, hi := a.seenBy(block); lo < hi && b.count > 0 {
		a.place(b)
		a.loadKeys(b)

		for h := (b.g - a.first) * a.rep; h < (b.g-a.first+1)*a.rep; h++ {
			for i := lo; i < hi; i += gradQueries {
				a.pair(b, h, i, min(gradQueries, hi-i))
			}
		}

		b.written = max(b.written, hi)
	}

	a.storeKeys(a.dk, b, b.dkT)
	a.storeKeys(a.dv, b, b.dvT)
}

// place says which rows of q see which key.
func (a *attendGrad) place(b *keyBlock) {
	for lane := range a.n {
		own := b.first + lane - a.Pos // the row whose position is the key's
		b.lo[lane], b.hi[lane] = int32(max(own, 0)), int32(a.q.Rows)
		if a.Window > 0 {
			b.hi[lane] = int32(max(0, min(own+a.Window, a.q.Rows)))
		}
		if lane >= b.count {
			b.hi[lane] = 0
		}
	}
}

// loadKeys brings a block of keys and values into lanes, and the keys into vectors of channels. Lanes without a
// key repeat the first one.
func (a *attendGrad) loadKeys(b *keyBlock) {
	for lane := range a.n {
		key := a.head(a.k, b.g, b.first+lane%b.count)[:a.HeadDim]
		copy(b.rows[lane*a.HeadDim:], key)
		for c := 0; c < a.HeadDim; c += a.n {
			copy(b.wide[(c/a.n*a.n+lane)*a.n:][:a.n], key[c:])
		}
	}

	a.b.g.lanes.load(b.kT, b.rows, b.at, a.HeadDim, 1)
	for lane := range a.n {
		copy(b.rows[lane*a.HeadDim:], a.head(a.v, b.g, b.first+lane%b.count)[:a.HeadDim])
	}

	a.b.g.lanes.load(b.vT, b.rows, b.at, a.HeadDim, 1)
}

// storeKeys writes the gradients of a block to dst.
func (a *attendGrad) storeKeys(dst kernels.Mat, b *keyBlock, x []float32) {
	count := min(a.n, dst.Rows-b.first)
	if count <= 0 {
		return
	}
	a.b.g.lanes.store(b.rows, x, b.ones, b.at[:count], a.HeadDim)
	for lane := range count {
		copy(a.head(dst, b.g, b.first+lane), b.rows[lane*a.HeadDim:(lane+1)*a.HeadDim])
	}
}

// pair computes m rows of queries of head h from row i against a block of keys.
func (a *attendGrad) pair(b *keyBlock, h, i, m int) {
	t, n, d := a.b.g.lanes.tile, a.n, a.HeadDim
	at := h*a.q.Rows + i
	q, g := a.scaled[at*d:(at+m)*d], a.grad[at*d:(at+m)*d]
	s, ds := b.s[:m*n], b.ds[:m*n]
	t(s, q, b.kT, nil, m, d, d, 1)
	t(ds, g, b.vT, nil, m, d, d, 1)

	// inverse tells scores that s is capped: the slope of the cap follows from its value.
	inverse := float32(0)
	if a.Softcap != 0 {
		inverse = 1 / a.Softcap
		a.l.v.tanh(s, s, inverse, a.Softcap)
	}

	if b.count < n || i < int(b.lo[n-1]) || i+m > int(b.hi[0]) {
		a.b.g.lanes.mask(s, b.lo, b.hi, i)
	}

	a.b.g.scores(s, ds, a.lse[at:at+m], a.delta[at:at+m], inverse)
	t(b.dvT, g, s, b.ones, d, m, 1, d)
	t(b.dkT, q, ds, b.ones, d, m, 1, d)

	// The first block of a run that reaches a row writes its part of dq, and later ones add: parts are as large as many
	// times dq, and clearing them beforehand would be one more pass through memory.
	for c := range a.groups {
		dq, wide := a.queryPart(b.part, h, c)[i*n:(i+m)*n], b.wide[c*n*n:]
		if i >= b.written {
			t(dq, ds, wide, nil, m, b.count, n, 1)
			continue
		}

		clear(dq[min(m, b.written-i)*n:])
		t(dq, ds, wide, b.ones, m, b.count, n, 1)
	}
}
