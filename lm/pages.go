package lm

import (
	"crypto/sha256"
	"encoding/binary"
)

// prefix names the tokens of a page and of all pages before it, and whatever else their keys and values depend on.
type prefix [sha256.Size]byte

// after is the name of a page of tokens that follows the pages of p.
func (p prefix) after(ids []int32) prefix {
	raw := make([]byte, len(p)+4*len(ids))
	copy(raw, p[:])
	for i, id := range ids {
		binary.LittleEndian.PutUint32(raw[len(p)+4*i:], uint32(id))
	}
	return sha256.Sum256(raw)
}

// page is what the books say of a page: it is free without users and a name, kept for those who come with the same
// tokens without users and with a name, and otherwise in use.
type page struct {
	users int
	name  prefix
	named bool
	last  uint64 // when it was last let go of
}

// pageBook says whose the pages of a [layer.Pool] are.
type pageBook struct {
	pages []page
	named map[prefix]int32
	clock uint64
	inUse int
	kept  int // pages that nobody uses, but somebody may come for
}

func newPageBook(n int) *pageBook {
	return &pageBook{pages: make([]page, n), named: map[prefix]int32{}}
}

// spare is how many pages can be had.
func (b *pageBook) spare() int { return len(b.pages) - b.inUse }

func (b *pageBook) isFree(i int) bool {
	return i >= 0 && i < len(b.pages) && b.pages[i].users == 0 && !b.pages[i].named
}

// take gives a page to follow another of the same sequence (-1: it is the first); false: all are in use. Pages in a row
// need no copying together for attention, so the next one is best, and a sequence begins where there is most room
// behind it.
func (b *pageBook) take(follows int32) (int32, bool) {
	at := int(follows) + 1
	if follows < 0 || !b.isFree(at) {
		at = b.roomiest()
	}
	if at < 0 {
		at = b.oldest()
	}
	if at < 0 {
		return 0, false
	}

	b.forget(int32(at))
	b.pages[at].users = 1
	b.inUse++
	return int32(at), true
}

// roomiest is the middle of the longest run of free pages, or its beginning where it is that of all pages; -1: none is.
func (b *pageBook) roomiest() int {
	best, size := -1, 0
	start := 0 // of the run that i is in
	for i := range len(b.pages) + 1 {
		if b.isFree(i) {
			continue
		}

		if i-start > size {
			size, best = i-start, start
			if start > 0 {
				best += size / 2
			}
		}
		start = i + 1
	}
	return best
}

// oldest is the kept page that nobody has used for the longest time; -1: there is none.
func (b *pageBook) oldest() int {
	best := -1
	for _, at := range b.named {
		p := &b.pages[at]
		if p.users == 0 && (best < 0 || p.last < b.pages[best].last) {
			best = int(at)
		}
	}
	return best
}

// share makes the caller one more user.
func (b *pageBook) share(at int32) {
	if b.pages[at].users == 0 {
		b.inUse++
		if b.pages[at].named {
			b.kept--
		}
	}
	b.pages[at].users++
}

// release ends a use. Later pages of a sequence are let go of first, so that they are also the first to be taken.
func (b *pageBook) release(at int32) {
	p := &b.pages[at]
	p.users--
	if p.users == 0 {
		b.inUse--
		b.clock++
		p.last = b.clock
		if p.named {
			b.kept++
		}
	}
}

// own reports whether a page may be written: its only user asks, and nobody will come for it.
func (b *pageBook) own(at int32) bool { return b.pages[at].users == 1 && !b.pages[at].named }

// call gives a page a name, unless another has it.
func (b *pageBook) call(at int32, name prefix) {
	if _, there := b.named[name]; there || b.pages[at].named {
		return
	}
	b.pages[at].name, b.pages[at].named = name, true
	b.named[name] = at
}

// forget takes the name of a page away.
func (b *pageBook) forget(at int32) {
	if p := &b.pages[at]; p.named {
		delete(b.named, p.name)
		p.named = false
		if p.users == 0 {
			b.kept--
		}
	}
}
