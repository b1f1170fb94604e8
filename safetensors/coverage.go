package safetensors

import (
	"slices"
	"sort"
	"sync"
)

// slot is one tensor of a file being written, with the parts that are there.
type slot struct {
	info Info

	mu   sync.Mutex
	have []span // sorted, disjoint, not touching
}

// span is a range of a tensor's bytes, end not included.
type span struct{ begin, end int64 }

// add notes that a range was written and joins it with those it meets.
func (s *slot) add(begin, end int64) {
	if begin == end {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	from := sort.Search(len(s.have), func(i int) bool { return s.have[i].end >= begin })
	to := from
	for ; to < len(s.have) && s.have[to].begin <= end; to++ {
		begin, end = min(begin, s.have[to].begin), max(end, s.have[to].end)
	}

	s.have = slices.Replace(s.have, from, to, span{begin, end})
}

// done reports whether every byte was written.
func (s *slot) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.Size == 0 || len(s.have) == 1 && s.have[0] == span{0, s.info.Size}
}
