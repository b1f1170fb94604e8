package cpu

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/modelcompress/compress/kernels"
)

const (
	smallSelect = 16 // up to here sorting beats another pass
	// keys sampled to guess where a rank lies in a run of keys: passes are cheaper than sorting more
	rowSample    = 12
	rowSlack     = 2       // distance of the guessed bounds from the rank, in sampled keys
	matrixSample = 1 << 13 // keys sampled to guess where a rank lies in a matrix
	matrixSlack  = 192     // four standard deviations at the median
	// keys of a pass that are kept: with their copies less than 200 MiB, however large the matrix
	maxKept = 1 << 22
)

// nth returns the key of rank (0-based, ascending) and how many keys lie below it. a and b are scratch of the length of
// keys, with keyPad keys behind; keys stays as it is.
//
// It is a selection in linear time after Floyd and Rivest (Algorithm 489, 1975): a sorted sample gives two bounds that
// very probably enclose the rank, one pass keeps the keys between them and counts those below, and so on with what is
// left. Every third pass halves the range of the keys instead, so that no input needs more than about 100 passes.
func (k *selectKernels) nth(keys []int32, rank int, a, b []int32) (key int32, below int) {
	lo, hi := int32(math.MinInt32), int32(math.MaxInt32)
	for pass := 1; len(keys) > smallSelect && lo < hi; pass++ {
		from, to := lo, midKey(lo, hi)
		if pass%3 != 0 {
			from, to = bracket(keys, rank-below, lo, hi)
		}

		// A guess that missed has still found on which side the rank lies: everything there is kept.
		kept, under := k.within(a, keys, from, to)
		switch r := rank - below; {
		case r < under: // the guess lies too high
			to, from = from-1, lo
			kept, under = k.within(a, keys, from, to)
		case r >= under+kept: // too low
			from, to = to+1, hi
			kept, under = k.within(a, keys, from, to)
		}

		lo, hi, below = from, to, below+under
		keys, a, b = a[:kept], b, a
	}

	if lo == hi {
		return lo, below
	}

	s := append(a[:0], keys...)
	slices.Sort(s)
	key = s[rank-below]
	first, _ := slices.BinarySearch(s, key)

	return key, below + first
}

// bracket guesses bounds inside [lo, hi] that enclose the key of the given rank among keys, from a sample.
func bracket(keys []int32, rank int, lo, hi int32) (from, to int32) {
	var buf [rowSample]int32
	for i := range buf {
		buf[i] = keys[i*len(keys)/rowSample]
	}
	slices.Sort(buf[:])
	return around(buf[:], rank, len(keys), rowSlack, lo, hi)
}

// around returns the sampled keys slack places below and above where rank of n falls in the sorted sample; past the
// sample's ends, lo and hi.
func around(sample []int32, rank, n, slack int, lo, hi int32) (from, to int32) {
	at := int(float64(rank) / float64(n) * float64(len(sample)))
	from, to = lo, hi
	if i := at - slack; i >= 0 {
		from = max(lo, sample[i])
	}
	if i := at + slack; i < len(sample) {
		to = min(hi, sample[i])
	}
	return from, to
}

// midKey is the middle of a range of keys.
func midKey(lo, hi int32) int32 { return int32((int64(lo) + int64(hi)) >> 1) }

// threshold returns the key of the given rank in the whole matrix: one pass that keeps the few keys near the place a
// sample points at, and a selection among those. When more than an eighth, or than maxKept, lie
// there, or the sample misled, further passes halve the range.
func (s selector) threshold(src keySource, m kernels.Mat, rank int) int32 {
	lo, hi := int32(math.MinInt32), int32(math.MaxInt32)
	from, to := around(sampleKeys(src, m.Rows, m.Cols, matrixSample), rank, m.Len(), matrixSlack, lo, hi)
	scratch := borrow(&matrixScratches, max(tileSize, min(m.Len()/8, maxKept))+keyPad)
	defer scratch.giveBack()

	room := scratch.take(len(scratch.mem) - keyPad)
	for {
		w := s.sweep(src, m, from, to, room)

		// Each case shrinks [lo, hi] around the key, so the loop ends after some 32 halvings.
		switch {
		case rank < w.below:
			hi = from - 1
		case rank >= w.below+w.inside:
			lo = to + 1
		case from == to:
			return from
		case len(w.keys) == w.inside:
			n := len(w.keys)
			copies := borrow(&matrixScratches, 2*(n+keyPad))
			defer copies.giveBack()
			key, _ := s.k.nth(w.keys, rank-w.below, copies.take(n), copies.take(n))
			return key
		default:
			lo, hi = from, to
		}

		from, to = lo, midKey(lo, hi)
	}
}

// swept is what one pass over a matrix found: how many keys lie below a range and inside it, and those inside unless
// they were too many to keep. The keys come in no order.
type swept struct {
	below, inside int
	keys          []int32
}

// sweep counts the keys of the matrix below and inside [from, to] and keeps those inside, as far as there is room.
func (s selector) sweep(src keySource, m kernels.Mat, from, to int32, room []int32) swept {
	g := tiling(m, keyChunk)
	var below, inside, next atomic.Int64
	s.dev.parallel(g.count(), func(p int) {
		scratch := borrowKeys(2 * (keyChunk + keyPad))
		defer scratch.giveBack()

		buf, kept := scratch.take(keyChunk), scratch.take(keyChunk)
		var lower, within int
		g.each(p, func(i, lo, hi int) {
			keys := buf[:hi-lo]
			src.keys(keys, i, lo)
			n, under := s.k.within(kept, keys, from, to)
			lower, within = lower+under, within+n
			if from == to || n == 0 {
				return
			}
			// Places are taken as pieces come, so the order of the keys differs from run to run; the key of a rank does
			// not.
			if end := next.Add(int64(n)); end <= int64(len(room)) {
				copy(room[end-int64(n):], kept[:n])
			}
		})

		below.Add(int64(lower))
		inside.Add(int64(within))
	})

	w := swept{below: int(below.Load()), inside: int(inside.Load())}
	if from < to && w.inside <= len(room) {
		w.keys = room[:w.inside]
	}

	return w
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
