package method

import (
	"math"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/modelcompress/compress/merge/internal/vec"
)

// TIES' cut, and that of all methods that keep the largest differences: of the n elements of δ = x - base, those with
// the k largest magnitudes stay ("trim", Yadav et al., 2023, arXiv:2306.01708; breadcrumbs drops the very largest as
// well). What is looked for is the k-th largest magnitude of a list that may have billions of elements, lies in files
// and is seen a block at a time, exactly, and which of the elements equal to it stay.
//
// Magnitudes of float32 are compared as their bits without the sign, which are in the same order and are integers, so
// that nothing is rounded and NaN has its place at the top. finder works in passes over the data (type Pass), each of
// which the engine shares among threads in segments:
//
//	sample   quantiles of runs of neighbours bracket the cut, with five standard deviations to each side
//	tally    counts what lies above and at the bounds and collects what lies between, which the sample has made
//	         short; selection within that list gives the value
//	locate   ties: bfloat16 differences have few distinct values, so thousands of elements may equal the cut, of
//	         which some stay: the first ones by index, found in the one segment where they end, or by random numbers
//	         (tiebreak.go)
//
// For small tensors the sample is left out. If the bracket misses, which five deviations make rare, or too much lies
// between the bounds, as where most of δ is one value, histograms of the bits (11 at a time, from the top) decide
// instead, in more passes and with memory that does not depend on the data.
//
// Nothing is approximate: the sample decides how fast the cut is found, never where it is. Counts are integers and are
// added in the order of segments, so the cut does not depend on the number of workers.
//
// The result is a Window for each input, which later passes and the merge apply block by block.

// Window selects elements by magnitude: those strictly between Lo and Hi, and of those equal to a bound the
// ones whose index is below the bound's end. Magnitudes are compared as bits of float32.
type Window struct {
	Lo, Hi       uint32
	LoEnd, HiEnd int64

	lo, hi *share // of those equal to a bound, the ones that stay where draws decide; nil: the bound's end does
}

// all and none are windows that keep everything and nothing.
var (
	all  = Window{Lo: 0, Hi: math.MaxInt32, LoEnd: math.MaxInt64, HiEnd: math.MaxInt64}
	none = Window{Lo: 1, Hi: 0}
)

// Apply copies what the window selects of x, by the key, to dst and clears the rest, for the elements of a block.
func (w Window) Apply(dst, x, key []float32, b *Block) {
	w.within(dst, x, key, b.Index)
	if w.lo != nil {
		w.lo.thin(dst, key, w.Lo, b)
	}
	if w.hi != nil {
		w.hi.thin(dst, key, w.Hi, b)
	}
}

// within selects by magnitude and index. index belongs to the first element.
func (w Window) within(dst, x, key []float32, index int64) {
	n := int64(len(dst))
	for first := int64(0); first < n; {
		end := w.next(index+first, index+n) - index
		lo, hi := w.bounds(index + first)
		vec.Within(dst[first:end], x[first:end], key[first:end], lo, hi)
		first = end
	}
}

// next is the place up to which the bounds at an element hold, at most end.
func (w Window) next(at, end int64) int64 {
	for _, bound := range []int64{w.LoEnd, w.HiEnd} {
		if at < bound && bound < end {
			end = bound
		}
	}
	return end
}

// bounds are the lowest and the highest magnitude that are kept at an element.
func (w Window) bounds(at int64) (lo, hi uint32) {
	lo, hi = w.Lo, w.Hi
	if at >= w.LoEnd {
		lo++
	}

	if at >= w.HiEnd && hi > 0 {
		hi--
	} else if at >= w.HiEnd {
		lo = math.MaxInt32
	}

	return lo, min(hi, math.MaxInt32)
}

// Cut is a place in the order of magnitudes: Value is the K-th largest, Above magnitudes are larger, and the
// elements equal to it with an index below End are the first Take ones, unless draws decide which these are.
type Cut struct {
	K            int64
	Value        uint32
	Above, Equal int64
	Take, End    int64

	share *share
}

// finder finds cuts exactly, without sorting: a sample brackets every cut, one pass counts what lies above and
// at the bracket's bounds and collects what lies between. Where a bracket misses, or too much lies between, two
// passes of histograms over the upper and the lower half of the bits decide.
type finder struct {
	n       int64
	streams int
	// the values whose magnitudes are ordered; called for s = 0, 1, … of a block
	keys   func(b *Block, s int) []float32
	want   func(s int, nonzero int64) []int64 // the K of every cut of a stream, 1 … n; fewer or none is fine
	take   func(s, i int, c []Cut) int64      // how many of the elements equal to cut i of a stream are taken
	cuts   [][]Cut
	exact  bool // want depends on the number of nonzero magnitudes
	deltas bool // the values are the differences to the base
	draw   drawer
	ties   Ties
}

// sampled is the size from which on a sample is worth its pass.
const sampled = 1 << 17

// passes returns the passes that fill f.cuts; done runs after the last.
func (f *finder) passes(done func() ([]Pass, error)) []Pass {
	f.cuts = make([][]Cut, f.streams)

	// Everything lies in the bracket of a small tensor, and is collected once for both of its cuts.
	if f.n < sampled {
		brackets := make([][]bracket, f.streams)
		for s := range brackets {
			for range f.want(s, f.n) {
				brackets[s] = append(brackets[s], bracket{0, math.MaxInt32})
			}
			brackets[s] = brackets[s][:min(1, len(brackets[s]))]
		}

		return []Pass{f.tally(brackets, done)}
	}

	return []Pass{f.sample(done)}
}

// bracket are the bounds that a cut is believed to lie between.
type bracket struct{ lo, hi uint32 }

// sample collects the magnitudes of a sample and brackets the cuts.
func (f *finder) sample(done func() ([]Pass, error)) Pass {
	p := Pass{
		Stride: f.stride(), Shared: true,
		New: func() any { return make([][]uint32, f.streams) },
		Each: func(stat any, b *Block) {
			keys := stat.([][]uint32)
			for s := range keys {
				for _, v := range f.keys(b, s) {
					keys[s] = append(keys[s], math.Float32bits(v)&math.MaxInt32)
				}
			}
		},
		End: func(stats []any) ([]Pass, error) {
			brackets := make([][]bracket, f.streams)
			for s := range brackets {
				var keys []uint32
				for _, stat := range stats {
					keys = append(keys, stat.([][]uint32)[s]...)
				}
				brackets[s] = f.bracket(s, keys)
			}
			return []Pass{f.tally(brackets, done)}, nil
		},
	}

	if f.deltas {
		p.Words = func(stat any, b *Words) bool { return sampleWords(stat.([][]uint32), b) }
	}

	return p
}

// bracket bounds the cuts of a stream by quantiles of a sample: five standard deviations of a fraction in a sample
// that counts a quarter, since neighbours are alike.
func (f *finder) bracket(s int, keys []uint32) []bracket {
	size := float64(len(keys))
	nonzero := 0
	for _, k := range keys {
		if k != 0 {
			nonzero++
		}
	}

	var list []bracket
	for _, k := range f.want(s, int64(float64(nonzero)/size*float64(f.n))) {
		p := float64(k) / float64(f.n)
		margin := 5*math.Sqrt(p*(1-p)*4/size) + 20/size

		// the k-th largest is the (n-k)-th of the ascending order
		lo, hi := uint32(0), uint32(math.MaxInt32)
		if at := (1 - p - margin) * size; at > 0 {
			lo = vec.Select(keys, int(at))
		}
		if at := (1 - p + margin) * size; at < size-1 {
			hi = vec.Select(keys, int(at))
		}

		list = append(list, bracket{lo, hi})
	}

	return list
}

// sampleLimit bounds what a sample holds of all streams together, in magnitudes.
const sampleLimit = 16 << 20

// stride is how far apart the runs of a sample are.
func (f *finder) stride() int64 {
	return max(2048, f.n/(1<<16), int64(f.streams)*SampleRun*f.n/sampleLimit)
}

// tallied is what a segment collects: per stream and bracket the counts and the magnitudes between the bounds.
type tallied struct {
	counts  [][]vec.Count
	keys    [][][]uint32
	nonzero []int64
	over    bool
}

// tallyLimit bounds what one pass collects, in magnitudes per group and cut, and tallyTotal in those of all cuts
// together.
const (
	tallyLimit = 6 << 20
	tallyTotal = 4 * tallyLimit
)

// limit is how many magnitudes are collected for a cut. Where more would be, histograms decide.
func (f *finder) limit(cuts int) int64 {
	return min(f.n, tallyLimit, tallyTotal/int64(max(cuts, 1)))
}

func (f *finder) tally(brackets [][]bracket, done func() ([]Pass, error)) Pass {
	cuts := 0
	for _, b := range brackets {
		cuts += len(b)
	}

	room := &tallyRoom{size: min(f.n, SegmentSize), limit: f.limit(cuts)}
	for _, b := range brackets {
		room.used = append(room.used, make([]atomic.Int64, len(b)))
	}

	p := Pass{
		New: func() any {
			t := &tallied{
				counts: make([][]vec.Count, f.streams), keys: make([][][]uint32, f.streams),
				nonzero: make([]int64, f.streams),
			}
			for s, b := range brackets {
				t.counts[s], t.keys[s] = make([]vec.Count, len(b)), make([][]uint32, len(b))
			}
			return t
		},
		Each: func(stat any, b *Block) {
			t := stat.(*tallied)
			out := b.scratch()
			for s, list := range brackets {
				x := f.keys(b, s)
				for i, br := range list {
					m := vec.Tally(x, br.lo, br.hi, &t.counts[s][i], out)
					t.collect(s, i, room, len(x), out[:m])
				}

				if f.exact {
					var c vec.Count
					vec.Tally(x, 0, 0, &c, out)
					t.nonzero[s] += c.AboveHi
				}
			}
		},
		End: func(stats []any) ([]Pass, error) { return f.resolve(brackets, stats, done) },
	}

	if f.deltas {
		p.Words = func(stat any, b *Words) bool { return stat.(*tallied).tallyWords(brackets, room, b) }
	}

	return p
}

// tallyRoom is what all segments together, which have so many elements each, may collect for a cut.
type tallyRoom struct {
	size, limit int64
	used        [][]atomic.Int64 // by stream and bracket
}

// collect keeps the magnitudes that a block of n elements has between bounds, unless there are too many.
func (t *tallied) collect(s, i int, room *tallyRoom, n int, keys []uint32) {
	if t.over || room.used[s][i].Add(int64(len(keys))) > room.limit {
		t.over = true
		return
	}

	have := t.keys[s][i]
	need := int64(len(have) + len(keys))
	if int64(cap(have)) < need {
		// Room for the whole segment at once, or the list would be copied again and again as it grows: the blocks that
		// are left are taken to be like this one, and an eighth more.
		most := int64(float64(len(keys)) * 1.125 * float64(room.size) / float64(max(n, 1)))
		grown := make([]uint32, len(have), max(need, min(room.limit, max(most, need*9/8))))
		copy(grown, have)
		have = grown
	}

	t.keys[s][i] = append(have, keys...)
}

// resolve turns the tallies of all segments into cuts, or falls back to histograms.
func (f *finder) resolve(brackets [][]bracket, stats []any, done func() ([]Pass, error)) ([]Pass, error) {
	ts := make([]*tallied, len(stats))
	for i, s := range stats {
		ts[i] = s.(*tallied)
		if ts[i].over {
			return f.histograms(done), nil
		}
	}

	nonzero := make([]int64, f.streams)
	for s := range nonzero {
		for _, t := range ts {
			nonzero[s] += t.nonzero[s]
		}
	}

	var pending []*locating
	for s, list := range brackets {
		var equal [][]int64
		for i, k := range f.want(s, nonzero[s]) {
			at := min(i, len(list)-1)
			if at < 0 { // the sample saw no cut
				return f.histograms(done), nil
			}

			c, e, ok := settle(ts, s, at, list[at], k)
			if !ok {
				return f.histograms(done), nil
			}

			f.cuts[s] = append(f.cuts[s], c)
			equal = append(equal, e)
		}

		for i, e := range equal {
			pending = f.pend(pending, s, i, e)
		}
	}

	return locate(f, pending, done)
}

// settle finds the K-th largest magnitude of a stream by the tallies of a bracket, and counts per segment what
// equals it.
func settle(ts []*tallied, s, i int, br bracket, k int64) (c Cut, equal []int64, ok bool) {
	var sum vec.Count
	for _, t := range ts {
		sum.AboveHi += t.counts[s][i].AboveHi
		sum.FromHi += t.counts[s][i].FromHi
		sum.AboveLo += t.counts[s][i].AboveLo
		sum.FromLo += t.counts[s][i].FromLo
	}

	equal = make([]int64, len(ts))
	c.K = k

	switch {
	case k <= sum.AboveHi || k > sum.FromLo: // outside of the bracket
		return c, nil, false
	case k <= sum.FromHi: // at its upper bound
		c.Value = br.hi
		c.Above = sum.AboveHi
		c.Equal = sum.FromHi - sum.AboveHi
		for j, t := range ts {
			equal[j] = t.counts[s][i].FromHi - t.counts[s][i].AboveHi
		}
	case k > sum.AboveLo: // at its lower bound
		c.Value = br.lo
		c.Above = sum.AboveLo
		c.Equal = sum.FromLo - sum.AboveLo
		for j, t := range ts {
			equal[j] = t.counts[s][i].FromLo - t.counts[s][i].AboveLo
		}
	default:
		lists := make([][]uint32, len(ts))
		for j, t := range ts {
			lists[j] = t.keys[s][i]
		}
		c.Value, c.Above, c.Equal, equal = vec.Rank(lists, br.lo, br.hi, k-sum.FromHi)
		c.Above += sum.FromHi
	}

	return c, equal, true
}

// locating is a cut whose last taken element is being looked for: number rest, from 0, of those equal in a segment.
type locating struct {
	s, i    int
	segment int
	rest    int64
}

// pend sets how many of the elements equal to a cut are taken, and notes the cut if the last of them must be
// looked for.
func (f *finder) pend(list []*locating, s, i int, equal []int64) []*locating {
	c := &f.cuts[s][i]
	c.Take = f.take(s, i, f.cuts[s])
	f.count(s, i)

	switch {
	case c.Take >= c.Equal:
		c.End = math.MaxInt64
		return list
	case c.Take <= 0:
		c.End = 0
		return list
	}

	rest := c.Take - 1
	for j, e := range equal {
		if rest < e {
			return append(list, &locating{s: s, i: i, segment: j, rest: rest})
		}
		rest -= e
	}

	return list
}

// count counts the ties of a cut, once where two cuts meet at one value.
func (f *finder) count(s, i int) {
	c := f.cuts[s][i]
	if i == 0 {
		f.ties.Elements += f.n
	}
	if c.Value == 0 || c.Take <= 0 || c.Take >= c.Equal || i > 0 && f.cuts[s][0].Value == c.Value {
		return
	}
	f.ties.Tied += c.Equal
	f.ties.Kept += c.Take
}

// locate makes the passes that find which of the elements equal to cuts are taken: by draws, or over single segments
// where the index decides. Elements of the magnitude 0 are all alike, so that no draw is made for them.
func locate(f *finder, pending []*locating, done func() ([]Pass, error)) ([]Pass, error) {
	if f.draw == nil {
		return locateEnds(f, pending, done)
	}

	var list []*drawing
	var zeros []*locating
	for _, p := range pending {
		if f.cuts[p.s][p.i].Value == 0 {
			zeros = append(zeros, p)
			continue
		}
		list = append(list, &drawing{s: p.s, i: p.i, spread: drawSpread})
	}

	ends := func() ([]Pass, error) { return locateEnds(f, zeros, done) }
	if len(list) == 0 {
		return ends()
	}

	return []Pass{f.draws(list, ends)}, nil
}

// locateEnds makes the passes over single segments that find where the taken elements of cuts end.
func locateEnds(f *finder, pending []*locating, done func() ([]Pass, error)) ([]Pass, error) {
	if len(pending) == 0 {
		return done()
	}

	var list []Pass
	for i, p := range pending {
		c := &f.cuts[p.s][p.i]
		seen, out := int64(0), []uint32(nil)
		list = append(list, Pass{
			Only: &p.segment,
			New:  func() any { return nil },
			Each: func(_ any, b *Block) {
				if seen > p.rest {
					return
				}

				var x []float32
				for s := range p.s + 1 { // keys wants to be asked for all streams in order
					x = f.keys(b, s)
				}

				var n vec.Count
				out = slices.Grow(out[:0], len(x)+vec.Slack)[:len(x)+vec.Slack]
				vec.Tally(x, c.Value, c.Value, &n, out)

				if seen+n.FromLo-n.AboveLo <= p.rest {
					seen += n.FromLo - n.AboveLo
					return
				}

				for j, v := range x {
					if math.Float32bits(v)&math.MaxInt32 != c.Value {
						continue
					}
					if seen == p.rest {
						c.End = b.Index + int64(j) + 1
					}

					seen++
				}
			},
			End: func([]any) ([]Pass, error) {
				if i == len(pending)-1 {
					return done()
				}
				return nil, nil
			},
		})
	}

	return list, nil
}

// Levels of the histograms: 31 bits of a magnitude, the upper ones first, in tables so small that each of many
// streams can have one.
const (
	levelBits  = 11
	levelBins  = 1 << levelBits
	levelFirst = 31 - levelBits // shift of the first level
)

// histograms returns the passes that find the cuts whatever the distribution: counts of the upper bits, then of those
// below within the bin of each cut, then of the elements equal to it per segment.
func (f *finder) histograms(done func() ([]Pass, error)) []Pass {
	f.cuts, f.ties = make([][]Cut, f.streams), Ties{}
	return []Pass{f.counting(func(_ int, m uint32) int { return int(m >> levelFirst) },
		func(h [][]int64) ([]Pass, error) {
			for s := range h {
				for _, k := range f.want(s, f.n-h[s][levelBins]) {
					c := Cut{K: k}
					bin := descend(h[s][:levelBins], k, &c.Above)
					c.Value = uint32(bin) << levelFirst
					f.cuts[s] = append(f.cuts[s], c)
				}
			}
			return f.lower(done), nil
		})}
}

// descend walks a histogram from its top to the bin that holds the k-th largest, adding what lies above.
func descend(h []int64, k int64, above *int64) int {
	for bin := len(h) - 1; bin > 0; bin-- {
		if *above+h[bin] >= k {
			return bin
		}
		*above += h[bin]
	}
	return 0
}

// lower counts the lower bits within the bins of the cuts, one cut of every stream at a time.
func (f *finder) lower(done func() ([]Pass, error)) []Pass {
	most := 0
	for _, c := range f.cuts {
		most = max(most, len(c))
	}

	var list []Pass
	for i := range most {
		for open := levelFirst; open > 0; {
			shift := max(0, open-levelBits)
			list = append(list, f.level(i, open, shift))
			open = shift
		}
	}

	return append(list, f.equals(done))
}

// level counts the bits from shift on within the bins of cut i of every stream, whose bits from open on are known.
func (f *finder) level(i, open, shift int) Pass {
	return f.counting(func(s int, m uint32) int {
		if i >= len(f.cuts[s]) || m>>open != f.cuts[s][i].Value>>open {
			return -1
		}
		return int(m >> shift & (1<<(open-shift) - 1))
	}, func(h [][]int64) ([]Pass, error) {
		for s := range h {
			if i < len(f.cuts[s]) {
				c := &f.cuts[s][i]
				bin := descend(h[s][:levelBins], c.K, &c.Above)
				c.Value |= uint32(bin) << shift
				c.Equal = h[s][bin]
			}
		}
		return nil, nil
	})
}

// counting makes a pass that counts the magnitudes of every stream by bin (-1: not), with the number of zeros beyond
// the bins.
func (f *finder) counting(bin func(s int, m uint32) int, end func(h [][]int64) ([]Pass, error)) Pass {
	fresh := func() [][]int64 {
		h := make([][]int64, f.streams)
		for s := range h {
			h[s] = make([]int64, levelBins+1)
		}
		return h
	}

	return Pass{
		Shared: true,
		New:    func() any { return fresh() },
		Each: func(stat any, b *Block) {
			for s, h := range stat.([][]int64) {
				for _, v := range f.keys(b, s) {
					m := math.Float32bits(v) & math.MaxInt32
					if i := bin(s, m); i >= 0 {
						h[i]++
					}
					if m == 0 {
						h[levelBins]++
					}
				}
			}
		},
		End: func(stats []any) ([]Pass, error) {
			total := fresh()
			for _, stat := range stats {
				for s, h := range stat.([][]int64) {
					for i, c := range h {
						total[s][i] += c
					}
				}
			}
			return end(total)
		},
	}
}

// equals counts per segment the elements that equal each cut.
func (f *finder) equals(done func() ([]Pass, error)) Pass {
	return Pass{
		New: func() any {
			e := make([][]int64, f.streams)
			for s := range e {
				e[s] = make([]int64, len(f.cuts[s]))
			}
			return e
		},
		Each: func(stat any, b *Block) {
			for s, e := range stat.([][]int64) {
				for _, v := range f.keys(b, s) {
					for i := range e {
						if math.Float32bits(v)&math.MaxInt32 == f.cuts[s][i].Value {
							e[i]++
						}
					}
				}
			}
		},
		End: func(stats []any) ([]Pass, error) {
			var pending []*locating
			for s := range f.cuts {
				for i := range f.cuts[s] {
					equal := make([]int64, len(stats))
					for j, stat := range stats {
						equal[j] = stat.([][]int64)[s][i]
					}
					pending = f.pend(pending, s, i, equal)
				}
			}

			return locate(f, pending, done)
		},
	}
}

// memory is what the passes of a finder keep at most, in bytes: of a sample, of the magnitudes between bounds with
// what ranking them copies, of histograms, or of the draws of ties; passes follow each other, so the largest counts.
func (f *finder) memory() int64 {
	list := 0
	for s := range f.streams {
		list += len(f.want(s, f.n))
	}

	cuts, segments := int64(list), (f.n+SegmentSize-1)/SegmentSize
	sample := int64(0)
	if f.n >= sampled {
		sample = 2 * 4 * SampleRun * int64(f.streams) * (f.n/f.stride() + 1)
	}

	limit := f.limit(max(list, f.streams))
	tally := 4*limit*(cuts+cuts/4+1) + cellSize*segments*max(cuts, int64(f.streams))
	histogram := 8 * (levelBins + 1) * int64(f.streams) * min(segments, int64(runtime.GOMAXPROCS(0))+1)
	draws := int64(0)
	if f.draw != nil {
		draws = 2 * 16 * cuts * min(f.n, int64(drawSpread*math.Sqrt(float64(f.n)))+4*drawSpread)
	}

	return max(sample, tally, histogram, draws)
}

// cellSize is what a segment keeps for a cut beside magnitudes.
const cellSize = 128
