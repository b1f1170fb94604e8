package tokenizer

import "math/bits"

// pairTable maps a pair of ids to the rank and the result of their merge: open addressing, at most two thirds full.
type pairTable struct {
	slots []pairSlot
	shift uint
}

type pairSlot struct {
	key        uint64 // left id << 32 | right id, plus one; 0: empty
	rank, into int32
}

func newPairTable(n int) pairTable {
	size := bits.Len(uint(n + n/2 + 1))
	return pairTable{make([]pairSlot, 1<<size), uint(64 - size)}
}

func (t *pairTable) find(key uint64) *pairSlot {
	i := key * 0x9E3779B97F4A7C15 >> t.shift
	for {
		s := &t.slots[i]
		if s.key == key || s.key == 0 {
			return s
		}
		i = (i + 1) & uint64(len(t.slots)-1)
	}
}

func pairKey(l, r int32) uint64 { return uint64(uint32(l))<<32 | uint64(uint32(r)) + 1 }

func (t *pairTable) set(l, r, rank, into int32) {
	key := pairKey(l, r)
	*t.find(key) = pairSlot{key, rank, into}
}

// get returns the rank and result of a pair; rank is noRank when it doesn't merge.
func (t *pairTable) get(l, r int32) (rank, into int32) {
	if s := t.find(pairKey(l, r)); s.key != 0 {
		return s.rank, s.into
	}
	return noRank, 0
}

// mergeShort merges by looking through all pairs each time.
func (m *bpe) mergeShort(x *encoder) {
	sy := x.syms
	for i := range sy {
		m.rankPair(sy, i)
	}

	for {
		best, at := int32(noRank), -1
		for i := range sy {
			if sy[i].rank < best {
				best, at = sy[i].rank, i
			}
		}

		if at < 0 {
			break
		}

		sy[at].id, sy[at].end = sy[at].merged, sy[at+1].end
		copy(sy[at+1:], sy[at+2:])
		sy = sy[:len(sy)-1]
		m.rankPair(sy, at)
		if at > 0 {
			m.rankPair(sy, at-1)
		}
	}

	x.syms = sy
}

func (m *bpe) rankPair(sy []symbol, i int) {
	if i+1 < len(sy) {
		sy[i].rank, sy[i].merged = m.merges.get(sy[i].id, sy[i+1].id)
	} else {
		sy[i].rank = noRank
	}
}

// mergeLong merges with a heap of rank << 32 | position over a linked list: n log n for n symbols. Entries whose pair
// has changed since are recognised by their rank, which names the pair. Symbols merged away get the id -1.
func (m *bpe) mergeLong(x *encoder) {
	sy, h := x.syms, x.heap[:0]
	for i := range sy {
		sy[i].prev, sy[i].next = int32(i-1), int32(i+1)
		m.rankPair(sy, i)
		if sy[i].rank != noRank {
			h = append(h, uint64(sy[i].rank)<<32|uint64(i))
		}
	}

	sy[len(sy)-1].next = -1
	heapify(h)
	push := func(i int32) {
		s := &sy[i]
		s.rank = noRank
		if s.next >= 0 {
			s.rank, s.merged = m.merges.get(s.id, sy[s.next].id)
		}
		if s.rank != noRank {
			h = heapPush(h, uint64(s.rank)<<32|uint64(i))
		}
	}

	for len(h) > 0 {
		var top uint64
		top, h = heapPop(h)
		i := int32(uint32(top))
		s := &sy[i]
		if s.id < 0 || s.rank != int32(top>>32) {
			continue
		}

		gone := &sy[s.next]
		s.id = s.merged
		s.end = gone.end
		s.next = gone.next
		gone.id = -1
		if s.next >= 0 {
			sy[s.next].prev = i
		}

		push(i)
		if s.prev >= 0 {
			push(s.prev)
		}
	}

	x.heap = h
}

func heapify(h []uint64) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		siftDown(h, i)
	}
}

func siftDown(h []uint64, i int) {
	v := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[c] >= v {
			break
		}

		h[i] = h[c]
		i = c
	}

	h[i] = v
}

func heapPush(h []uint64, v uint64) []uint64 {
	h = append(h, v)
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 2
		if h[p] <= v {
			break
		}
		h[i] = h[p]
		i = p
	}

	h[i] = v
	return h
}

func heapPop(h []uint64) (uint64, []uint64) {
	top := h[0]
	n := len(h) - 1
	h[0] = h[n]
	h = h[:n]
	if n > 0 {
		siftDown(h, 0)
	}
	return top, h
}
