package method

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// Which elements stay of those whose magnitude equals a cut (cut.go), where only some may. (The method TIES is in
// task.go: its cut, the election of signs and the mean of those who agree.)
//
// Differences of bfloat16 weights have few distinct magnitudes, and of the elements equal to a cut the first ones by
// index would be the upper rows of a matrix. So a recipe may have random numbers decide (Tensor.RandomTies): each tied
// element gets one of 32 bits, its draw, that depends on the seed, the tensor, the input and the element's index alone,
// and the Take smallest stay. As with cuts, the Take-th smallest draw is looked for without keeping or sorting all of
// them: draws are uniform, so it lies near Take/Equal of the range, within a few standard deviations; one pass counts
// the draws below the bounds and collects those between. What is kept of the outcome is one number, the draw of the
// last that stays, and later passes compute the draws again.

// Ties counts the elements that equal a threshold of which some stay and others go. Their magnitudes are the same: the
// rule for ties decides, by index or by a random number (see [Tensor.RandomTies]).
type Ties struct {
	Elements int64 `json:"elements"` // differences that were compared with a threshold
	Tied     int64 `json:"tied"`     // of these, those that equal it
	Kept     int64 `json:"kept"`     // of the tied ones, those that stay
}

// Add adds other counts.
func (t *Ties) Add(o Ties) {
	t.Elements += o.Elements
	t.Tied += o.Tied
	t.Kept += o.Kept
}

// tieDraw makes the random numbers that break ties others than those that drop elements at random.
const tieDraw = 0x7469_6573

// tieKey is the key of the draws that break ties of an input, -1 for what all inputs are compared by together, for
// the elements whose index shares its upper bits.
func (t *Tensor) tieKey(input int, off int64) vec.Key {
	model := uint64(0)
	if input >= 0 {
		model = uint64(t.Inputs[input].Model + 1)
	}
	h := rng.Fold(t.Seed[0], t.Seed[1], model, uint64(off>>drawBits)+tieDraw<<32)
	return vec.Key{A: uint32(h), B: uint32(h >> 32)}
}

// drawer gives the keys of the draws that break the ties of a stream; of tensor and off it gets those of an element.
type drawer func(stream, tensor int, off int64) vec.Key

// byDraw is the drawer of a group whose streams are its inputs, or of a single stream that all inputs make together;
// nil where ties go by index.
func byDraw(g []*Tensor, together bool) drawer {
	if !g[0].RandomTies {
		return nil
	}
	return func(s, tensor int, off int64) vec.Key {
		if together {
			s = -1
		}
		return g[tensor].tieKey(s, off)
	}
}

// share says which of the elements that equal a bound stay: those whose draw is at most top, but for the ones of
// drop, which have the draw top and a higher index.
type share struct {
	key  func(tensor int, off int64) vec.Key
	top  uint32
	drop []int64
}

// keeps reports whether the element of a draw and an index stays.
func (s *share) keeps(draw uint32, index int64) bool {
	return draw < s.top || draw == s.top && !slices.Contains(s.drop, index)
}

// tieRun is how many elements are looked through for ties at once.
const tieRun = 1024

// tiesOf calls f with the places of those of n elements that equal a bound, a run at a time: of the first is element
// lo, with the number first within the key. mark sets the bits of a run's elements that do.
func tiesOf(key func(off int64) vec.Key, off int64, n int, mark func(lo, hi int, set []uint64),
	f func(k vec.Key, lo int, first uint32, at []uint16),
) {
	var set [tieRun / 64]uint64
	var places [tieRun]uint16
	for lo := 0; lo < n; {
		first := uint32((off + int64(lo)) & (1<<drawBits - 1))
		hi := min(n, lo+tieRun, lo+1<<drawBits-int(first))
		mark(lo, hi, set[:])

		found := 0
		for i, word := range set[:(hi-lo+63)/64] {
			for ; word != 0; word &= word - 1 {
				places[found] = uint16(64*i + bits.TrailingZeros64(word))
				found++
			}
		}

		if found > 0 {
			f(key(off+int64(lo)), lo, first, places[:found])
		}
		lo = hi
	}
}

// thin clears those elements of dst that equal a bound by the key and do not stay.
func (s *share) thin(dst, key []float32, value uint32, b *Block) {
	tiesOf(func(off int64) vec.Key { return s.key(b.Tensor, off) }, b.Off, len(dst),
		func(lo, hi int, set []uint64) { vec.Equal(key[lo:hi], value, set) },
		func(k vec.Key, lo int, first uint32, at []uint16) {
			for _, i := range at {
				if !s.keeps(k.Draw(first+uint32(i)), b.Index+int64(lo)+int64(i)) {
					dst[lo+int(i)] = 0
				}
			}
		})
}

// thinWords gives those elements of x that equal a bound and do not stay the value of the base, so that nothing is
// left of them.
func (s *share) thinWords(x, base []uint16, value uint32, tensor int, off, index int64) {
	tiesOf(func(off int64) vec.Key { return s.key(tensor, off) }, off, len(x),
		func(lo, hi int, set []uint64) { vec.EqualDelta(x[lo:hi], base[lo:hi], value, set) },
		func(k vec.Key, lo int, first uint32, at []uint16) {
			for _, i := range at {
				if !s.keeps(k.Draw(first+uint32(i)), index+int64(lo)+int64(i)) {
					x[lo+int(i)] = base[lo+int(i)]
				}
			}
		})
}

// Drawn reports whether random numbers break ties of the window.
func (w Window) Drawn() bool { return w.lo != nil || w.hi != nil }

// Thinned is a run of words without the ties that the window does not keep, in the buffer, or as it is where no draws
// break ties. tensor, off and index are those of its first element.
func (w Window) Thinned(buf *[]uint16, x, base []uint16, tensor int, off, index int64) []uint16 {
	if !w.Drawn() {
		return x
	}

	*buf = append((*buf)[:0], x...)
	if w.lo != nil {
		w.lo.thinWords(*buf, base, w.Lo, tensor, off, index)
	}
	if w.hi != nil {
		w.hi.thinWords(*buf, base, w.Hi, tensor, off, index)
	}

	return *buf
}

// drawing is a cut among whose ties draws are about to decide: that of the last one taken is looked for from lo to
// below hi.
type drawing struct {
	s, i   int
	lo, hi uint64
	spread float64 // standard deviations between the middle and the bounds
}

// span sets the bounds: of Equal draws the Take-th smallest lies within so many standard deviations.
func (d *drawing) span(c *Cut) {
	equal := float64(c.Equal)
	p := float64(c.Take) / equal
	margin := d.spread * (math.Sqrt(p*(1-p)/equal) + 2/equal)
	d.lo, d.hi = uint64(max(0, p-margin)*(1<<32)), uint64(min(1, p+margin)*(1<<32))
}

// drawSpread is so wide that a second pass is next to never needed.
const drawSpread = 8

// draw is the draw of an element, and its index.
type draw struct {
	draw  uint32
	index int64
}

// drawn is what is found of one cut: the number of ties below the bounds, and those between.
type drawn struct {
	below int64
	found []draw
}

// draws makes the pass that finds up to which draw the ties of cuts are taken.
func (f *finder) draws(list []*drawing, done func() ([]Pass, error)) Pass {
	for _, d := range list {
		d.span(&f.cuts[d.s][d.i])
	}

	p := Pass{
		Shared: true,
		New:    func() any { return make([]drawn, len(list)) },
		Each: func(stat any, b *Block) {
			found := stat.([]drawn)
			for s := range f.streams {
				x := f.keys(b, s)
				f.search(found, list, stretch{s, b.Tensor, b.Off, b.Index, len(x)},
					func(value uint32, lo, hi int, set []uint64) { vec.Equal(x[lo:hi], value, set) })
			}
		},
		End: func(stats []any) ([]Pass, error) { return f.settleDraws(list, stats, done) },
	}

	if f.deltas {
		p.Words = func(stat any, b *Words) bool {
			found := stat.([]drawn)
			for s, x := range b.X {
				f.search(found, list, stretch{s, b.Tensor, b.Off, b.Index, len(x)},
					func(value uint32, lo, hi int, set []uint64) {
						vec.EqualDelta(x[lo:hi], b.Base[lo:hi], value, set)
					})
			}
			return true
		}
	}

	return p
}

// stretch is where the values of one stream of a block lie: n elements of a tensor from off on, which are those from
// index on of all that is compared.
type stretch struct {
	stream, tensor int
	off, index     int64
	n              int
}

// search adds the ties of one stream of a block.
func (f *finder) search(found []drawn, list []*drawing, at stretch,
	mark func(value uint32, lo, hi int, set []uint64),
) {
	for j, d := range list {
		if d.s != at.stream {
			continue
		}

		value := f.cuts[d.s][d.i].Value
		tiesOf(func(off int64) vec.Key { return f.draw(at.stream, at.tensor, off) }, at.off, at.n,
			func(lo, hi int, set []uint64) { mark(value, lo, hi, set) },
			func(k vec.Key, lo int, first uint32, places []uint16) {
				for _, i := range places {
					switch v := k.Draw(first + uint32(i)); {
					case uint64(v) < d.lo:
						found[j].below++
					case uint64(v) < d.hi:
						found[j].found = append(found[j].found, draw{v, at.index + int64(lo) + int64(i)})
					}
				}
			})
	}
}

// settleDraws takes the smallest draws; of equal ones, which are rare, the lower index.
func (f *finder) settleDraws(list []*drawing, stats []any, done func() ([]Pass, error)) ([]Pass, error) {
	var again []*drawing
	for j, d := range list {
		var all drawn
		for _, stat := range stats {
			part := stat.([]drawn)[j]
			all.below += part.below
			all.found = append(all.found, part.found...)
		}

		// The bounds missed: the same again with wider ones.
		c := &f.cuts[d.s][d.i]
		last := c.Take - all.below - 1
		if last < 0 || last >= int64(len(all.found)) {
			d.spread *= 8
			again = append(again, d)
			continue
		}

		slices.SortFunc(all.found, func(a, b draw) int {
			return cmp.Or(cmp.Compare(a.draw, b.draw), cmp.Compare(a.index, b.index))
		})
		key := func(tensor int, off int64) vec.Key { return f.draw(d.s, tensor, off) }

		c.share = &share{top: all.found[last].draw, key: key}
		for _, more := range all.found[last+1:] {
			if more.draw == c.share.top {
				c.share.drop = append(c.share.drop, more.index)
			}
		}

		c.End = math.MaxInt64
	}

	if len(again) > 0 {
		return []Pass{f.draws(again, done)}, nil
	}

	return done()
}
