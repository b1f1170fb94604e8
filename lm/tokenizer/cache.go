package tokenizer

import "hash/maphash"

const (
	cacheSlots = 1 << 13
	cacheKey   = 22 // longest word kept, bytes
	cacheIDs   = 10 // most ids kept
)

// wordCache remembers the ids of recent words: direct-mapped, of fixed size (512 KiB), owned by one encoder.
type wordCache struct {
	seed  maphash.Seed
	slots []cacheSlot
}

type cacheSlot struct {
	size, n uint8 // size 0: empty
	key     [cacheKey]byte
	ids     [cacheIDs]int32
}

// slot returns the place of a word, nil when it is not one to be kept, and whether the place holds it already.
func (c *wordCache) slot(word string) (s *cacheSlot, hit bool) {
	if len(word) > cacheKey || word == "" {
		return nil, false
	}
	if c.slots == nil {
		c.seed, c.slots = maphash.MakeSeed(), make([]cacheSlot, cacheSlots)
	}
	s = &c.slots[maphash.String(c.seed, word)&(cacheSlots-1)]
	return s, string(s.key[:s.size]) == word
}

// put stores the ids of a word in its place.
func (s *cacheSlot) put(word string, ids []int32) {
	if s == nil || len(ids) > cacheIDs {
		return
	}
	s.size, s.n = uint8(len(word)), uint8(len(ids))
	copy(s.key[:], word)
	copy(s.ids[:], ids)
}
