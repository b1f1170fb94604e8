package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// Attention, O = softmax(cap(scale·QKᵀ) + mask)·V with grouped key/value heads, without a matrix of scores in memory.
//
// Keys and values are read in blocks, and for every query and head three things are kept: the highest score so far, m,
// the sum of the exponentials, l = Σ_j exp(s_j - m), and the weighted sum of the values, o = Σ_j exp(s_j - m)·v_j. When
// the highest score rises from m to m', l and o are multiplied by exp(m - m') ("carry"); the result is o/l (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). Scores exist for
// one block at a time, so memory grows with the keys and not with their square. For the backward pass, LSE = m + ln l
// of every query and head is kept, from which any weight can be computed again.
//
// Two forms, by the number of queries:
//
//   - rows (this file), for few queries, as in generation: a query at a time, loops along the channels, so that every
//     key and value is read from memory once and in the order in which it lies. A call with few queries would leave
//     threads idle, so the keys are split too, and the states (m, l, o) of the splits joined by the same rule.
//   - lanes (attention_lanes.go), for prompts and training: blocks of queries, one to a vector lane.
//
// Scores, exponentials and weighted sums are float32; the sum of a block's exponentials is float64. How queries and
// keys are cut depends on the shapes alone, so results don't depend on the number of threads.

const (
	rowKeys   = 64  // keys in a block of the row form
	splitKeys = 512 // keys in a piece of the row form when there are few rows
)

// maxLaneStride keeps the place of a query inside its block in 32 bits, for at most 32 rows.
const maxLaneStride = math.MaxInt32 / 64

// attend is one call of attention.
type attend struct {
	kernels.Attention
	l            *layers
	dst, q, k, v kernels.Mat
	rep          int // query heads that share a key/value head
}

// attention computes, for every query row i and head h,
//
//	s[j] = cap(Scale · q[i,h]·k[j,h/rep]) for the keys j that row i sees
//	dst[i,h] = Σ_j softmax(s)[j] · v[j,h/rep]
func (l *layers) attention(dst, q, k, v kernels.Mat, o kernels.Attention) {
	a := &attend{Attention: o, l: l, dst: dst, q: q, k: k, v: v}
	a.defaults()
	a.check()

	// Lanes without a query are computed in vain, so at least three in eight must have one.
	lanes := l.v.lanes.n
	switch {
	case q.Rows == 0:
	case lanes > 0 && min(q.Rows*a.rep, lanes)*8 >= lanes*3 && max(q.Stride, dst.Stride) <= maxLaneStride:
		a.laneBlocks()
	default:
		a.rows()
	}

	dst.Buf.Changed()
	if !a.LSE.IsZero() {
		a.LSE.Buf.Changed()
	}
}

// Attentions implements [kernels.Attender]. Each sequence has one thread where it is small, as that of a token is:
// computed one after the other, those would leave all other threads idle.
func (d *Device) Attentions(list []kernels.SequenceAttention) {
	d.parallel(len(list), func(i int) {
		s := &list[i]
		k, v, owner := together(s.K, s.V)
		d.ops.Attention(s.Dst, s.Q, k, v, s.Attention)
		giveBack(owner)
	})
}

// together copies keys and values that lie in several parts into borrowed memory.
func together(k, v []kernels.Mat) (keys, values kernels.Mat, owner *[]float32) {
	if len(k) == 1 {
		return k[0], v[0], nil
	}

	rows, cols := 0, k[0].Cols
	for _, part := range k {
		rows += part.Rows
	}
	space, owner := lend(2 * rows * cols)
	next := space
	for _, parts := range [][]kernels.Mat{k, v} {
		for _, part := range parts {
			for i := range part.Rows {
				next = next[copy(next, part.RowF32(i)):]
			}
		}
	}

	both := kernels.MatOf(kernels.WrapF32(space), 2*rows, cols)
	return both.RowRange(0, rows), both.RowRange(rows, 2*rows), owner
}

// defaults fills in what the call left to its shapes.
func (a *attend) defaults() {
	if a.QHeadStride == 0 {
		a.QHeadStride = a.HeadDim
	}
	if a.KVHeadStride == 0 {
		a.KVHeadStride = a.HeadDim
	}
	a.rep = a.Heads / max(1, a.KVHeads)
}

func (a *attend) check() {
	must(a.Heads > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads == 0,
		"cpu: Attention: heads are not a multiple of key/value heads")
	must(a.HeadDim > 0 && a.dst.Rows == a.q.Rows && a.dst.Cols == a.Heads*a.HeadDim,
		"cpu: Attention: dst is not [tq, Heads·HeadDim]")
	must((a.Heads-1)*a.QHeadStride+a.HeadDim <= a.q.Cols, "cpu: Attention: q is narrower than its heads")
	must((a.KVHeads-1)*a.KVHeadStride+a.HeadDim <= min(a.k.Cols, a.v.Cols),
		"cpu: Attention: k or v is narrower than its heads")
	must(a.Pos >= 0 && a.Window >= 0 && a.Pos+a.q.Rows <= min(a.k.Rows, a.v.Rows),
		"cpu: Attention: fewer keys than positions")
	must(a.LSE.IsZero() || (a.LSE.Rows == a.q.Rows && a.LSE.Cols == a.Heads), "cpu: Attention: LSE is not [tq, Heads]")
	must(a.k.Rows <= math.MaxInt32, "cpu: Attention: more keys than an int32 counts")
}

// keys is the range of keys that query row i sees.
func (a *attend) keys(i int) (lo, hi int) {
	hi = a.Pos + i + 1
	if a.Window > 0 {
		lo = max(0, hi-a.Window)
	}
	return lo, hi
}

// head is the key or value memory of key/value head g from key j on, and its stride.
func (a *attend) head(m kernels.Mat, g, j int) []float32 {
	return m.Buf.F32()[m.Off+j*m.Stride+g*a.KVHeadStride:]
}

// rows computes the queries one by one. A piece is one row; with few of those the keys are split too, and the parts put
// together at the end.
func (a *attend) rows() {
	n := a.q.Rows
	_, longest := a.keys(n - 1)
	if a.Window > 0 {
		longest = min(longest, a.Window)
	}

	splits := 1
	if n < 32 { // else there are rows enough for all threads
		splits = (longest + splitKeys - 1) / splitKeys
	}

	width := a.Heads * (a.HeadDim + 2)
	part, owner := lend(n * splits * width)
	a.l.each(n*splits, n*longest*a.HeadDim*a.Heads/2, func(p int) {
		i, split := p/splits, p%splits
		lo, hi := a.keys(i)
		step := (hi - lo + splits - 1) / splits
		lo = min(lo+split*step, hi)
		a.part(part[p*width:(p+1)*width], i, lo, min(lo+step, hi))
	})

	for i := range n {
		a.join(part[i*splits*width:(i+1)*splits*width], splits, i)
	}

	giveBack(owner)
}

// part computes, for all heads of row i, the state after keys [lo, hi): per head the HeadDim weighted sums of
// the values, the highest score and the sum of the exponentials. All heads take a block of keys before the next
// is read, so that memory is read in the order in which it lies.
func (a *attend) part(state []float32, i, lo, hi int) {
	d, row := a.HeadDim, a.q.RowF32(i)
	work, owner := lend(a.Heads*d + rowKeys)
	q, s := work[:a.Heads*d], work[a.Heads*d:]
	clear(state)

	for h := range a.Heads {
		a.l.v.scale(q[h*d:(h+1)*d], row[h*a.QHeadStride:][:d], a.Scale)
		state[h*(d+2)+d] = float32(math.Inf(-1))
	}

	for j := lo; j < hi; j += rowKeys {
		s := s[:min(rowKeys, hi-j)]
		for h := range a.Heads {
			g := h / a.rep
			a.update(state[h*(d+2):(h+1)*(d+2)], q[h*d:(h+1)*d], a.head(a.k, g, j), a.head(a.v, g, j), s)
		}
	}

	giveBack(owner)
}

// update adds len(s) keys and values to the state of one head; s is overwritten.
func (a *attend) update(state, q, k, vals, s []float32) {
	v, d := a.l.v, a.HeadDim
	v.dots(s, q, k, a.k.Stride)
	if a.Softcap != 0 {
		v.tanh(s, s, 1/a.Softcap, a.Softcap)
	}

	top := max(state[d], v.top(s))
	base := finite(top)
	carry := float32(math.Exp(float64(state[d] - base)))

	state[d], state[d+1] = top, state[d+1]*carry+float32(v.exp(s, s, base))
	v.weigh(state[:d], s, vals, a.v.Stride, carry)
}

// finite is what scores up to top are taken relative to: 0 where there was nothing but -Inf, for -Inf - -Inf
// would be NaN for ever.
func finite(top float32) float32 {
	if math.IsInf(float64(top), -1) {
		return 0
	}
	return top
}

// join puts the states of all splits together and writes row i.
func (a *attend) join(part []float32, splits, i int) {
	v, d, width, row := a.l.v, a.HeadDim, len(part)/splits, a.dst.RowF32(i)
	for h := range a.Heads {
		at := h * (d + 2)
		top := part[at+d]
		for p := 1; p < splits; p++ {
			top = max(top, part[p*width+at+d])
		}

		// A split that saw no key has a highest score of -Inf, and exp(-Inf) = 0 leaves it out.
		base := finite(top)
		dst, sum := row[h*d:(h+1)*d], float32(0)
		for p := range splits {
			state := part[p*width+at:][:d+2]
			c := float32(math.Exp(float64(state[d] - base)))
			sum += state[d+1] * c

			if p == 0 {
				v.scale(dst, state[:d], c)
			} else {
				v.add(dst, dst, state[:d], c)
			}
		}

		v.scale(dst, dst, 1/sum)
		if !a.LSE.IsZero() {
			a.LSE.RowF32(i)[h] = logSum(top, sum)
		}
	}
}

// logSum is the logarithm of a sum of exponentials of scores, given the highest score and the sum relative to it.
func logSum(top, sum float32) float32 {
	return float32(float64(finite(top)) + math.Log(float64(sum)))
}
