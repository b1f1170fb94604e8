package method

import (
	"math"
	"slices"

	"github.com/modelcompress/compress/merge/internal/vec"
)

// Window selects elements by magnitude: those strictly between Lo and Hi, and of those equal to a bound the ones whose index is
// below the bound's end. Magnitudes are compared as bits of float32.
type Window struct {
	Lo, Hi       uint32
	LoEnd, HiEnd int64
}

// all and none are windows that keep everything and nothing.
var (
	all  = Window{Lo: 0, Hi: math.MaxInt32, LoEnd: math.MaxInt64, HiEnd: math.MaxInt64}
	none = Window{Lo: 1, Hi: 0}
)

// Apply copies what the window selects of x, by the key, to dst and clears the rest. index belongs to the first element.
func (w Window) Apply(dst, x, key []float32, index int64) {
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

// Cut is a place in the order of magnitudes: Value is the K-th largest, Above magnitudes are larger, and the elements equal to
// it with an index below End are the first Take ones.
type Cut struct {
	K            int64
	Value        uint32
	Above, Equal int64
	Take, End    int64
}

// finder finds cuts exactly, without sorting: a sample brackets every cut, one pass counts what lies above and at the
// bracket's bounds and collects what lies between. Where a bracket misses, or too much lies between, two passes of histograms
// over the upper and the lower half of the bits decide.
type finder struct {
	n       int64
	streams int
	keys    func(b *Block, s int) []float32    // the values whose magnitudes are ordered; called for s = 0, 1, … of a block
	want    func(s int, nonzero int64) []int64 // the K of every cut of a stream, 1 … n; fewer or none is fine
	take    func(s, i int, c []Cut) int64      // how many of the elements equal to cut i of a stream are taken
	cuts    [][]Cut
	exact   bool // want depends on the number of nonzero magnitudes
	deltas  bool // the values are the differences to the base
}

// sampled is the size from which on a sample is worth its pass.
const sampled = 1 << 17

// passes returns the passes that fill f.cuts; done runs after the last.
func (f *finder) passes(done func() ([]Pass, error)) []Pass {
	f.cuts = make([][]Cut, f.streams)
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
		Stride: max(2048, f.n/(1<<16)), Shared: true,
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

// bracket bounds the cuts of a stream by quantiles of a sample: five standard deviations of a share in a sample that counts a
// quarter, since neighbours are alike.
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

// tallied is what a segment collects: per stream and bracket the counts and the magnitudes between the bounds.
type tallied struct {
	counts  [][]vec.Count
	keys    [][][]uint32
	nonzero []int64
	over    bool
	out     []uint32
}

// tallyLimit bounds what one pass collects, in magnitudes per group and stream.
const tallyLimit = 6 << 20

func (f *finder) tally(brackets [][]bracket, done func() ([]Pass, error)) Pass {
	share := max(int64(BlockSize)*4, tallyLimit*SegmentSize/max(f.n, 1)) // per segment, so that the total stays bounded
	p := Pass{
		New: func() any {
			t := &tallied{counts: make([][]vec.Count, f.streams), keys: make([][][]uint32, f.streams), nonzero: make([]int64, f.streams)}
			for s, b := range brackets {
				t.counts[s], t.keys[s] = make([]vec.Count, len(b)), make([][]uint32, len(b))
			}
			return t
		},
		Each: func(stat any, b *Block) {
			t := stat.(*tallied)
			if cap(t.out) < b.Len()+vec.Slack {
				t.out = make([]uint32, b.Len()+vec.Slack)
			}
			out := t.out[:b.Len()+vec.Slack]
			for s, list := range brackets {
				x := f.keys(b, s)
				for i, br := range list {
					m := vec.Tally(x, br.lo, br.hi, &t.counts[s][i], out)
					t.collect(s, i, share, out[:m])
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
		p.Words = func(stat any, b *Words) bool { return stat.(*tallied).tallyWords(brackets, share, b) }
	}
	return p
}

// collect keeps magnitudes, unless there are too many.
func (t *tallied) collect(s, i int, share int64, keys []uint32) {
	if int64(len(t.keys[s][i])+len(keys)) > share {
		t.over = true
		return
	}
	if cap(t.keys[s][i]) == 0 { // room for a segment of blocks like this one
		t.keys[s][i] = make([]uint32, 0, min(share, int64(len(keys)+len(keys)/4)*(SegmentSize/BlockSize)))
	}
	t.keys[s][i] = append(t.keys[s][i], keys...)
}

// resolve turns the tallies of all segments into cuts, or falls back to histograms.
func (f *finder) resolve(brackets [][]bracket, stats []any, done func() ([]Pass, error)) ([]Pass, error) {
	ts := make([]*tallied, len(stats))
	for i, s := range stats {
		ts[i] = s.(*tallied)
		ts[i].out = nil
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

// settle finds the K-th largest magnitude of a stream by the tallies of a bracket, and counts per segment what equals it.
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
	case k <= sum.AboveHi || k > sum.FromLo:
		return c, nil, false
	case k <= sum.FromHi:
		c.Value, c.Above, c.Equal = br.hi, sum.AboveHi, sum.FromHi-sum.AboveHi
		for j, t := range ts {
			equal[j] = t.counts[s][i].FromHi - t.counts[s][i].AboveHi
		}
	case k > sum.AboveLo:
		c.Value, c.Above, c.Equal = br.lo, sum.AboveLo, sum.FromLo-sum.AboveLo
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

// pend sets how many of the elements equal to a cut are taken, and notes the cut if the last of them must be looked for.
func (f *finder) pend(list []*locating, s, i int, equal []int64) []*locating {
	c := &f.cuts[s][i]
	c.Take = f.take(s, i, f.cuts[s])
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
			return append(list, &locating{s, i, j, rest})
		}
		rest -= e
	}
	return list
}

// locate makes the passes over single segments that find where the taken elements of cuts end.
func locate(f *finder, pending []*locating, done func() ([]Pass, error)) ([]Pass, error) {
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
				for s := range p.s + 1 {
					x = f.keys(b, s)
				}
				var n vec.Count
				out = slices.Grow(out[:0], len(x)+vec.Slack)[:len(x)+vec.Slack]
				if vec.Tally(x, c.Value, c.Value, &n, out); seen+n.FromLo-n.AboveLo <= p.rest {
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

// histograms returns the passes that find the cuts whatever the distribution: counts of the upper 15 bits, then of the lower
// 16 within the bin of each cut, then of the elements equal to it per segment.
func (f *finder) histograms(done func() ([]Pass, error)) []Pass {
	f.cuts = make([][]Cut, f.streams)
	return []Pass{f.count(func(_ int, m uint32) int { return int(m >> 16) }, 1<<15, func(h [][]int64) ([]Pass, error) {
		for s := range h {
			for _, k := range f.want(s, f.n-h[s][len(h[s])-1]) {
				c := Cut{K: k}
				bin := descend(h[s][:1<<15], k, &c.Above)
				c.Value = uint32(bin) << 16
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
		list = append(list, f.count(func(s int, m uint32) int {
			if i >= len(f.cuts[s]) || m>>16 != f.cuts[s][i].Value>>16 {
				return -1
			}
			return int(m & 0xffff)
		}, 1<<16, func(h [][]int64) ([]Pass, error) {
			for s := range h {
				if i < len(f.cuts[s]) {
					c := &f.cuts[s][i]
					bin := descend(h[s][:1<<16], c.K, &c.Above)
					c.Value |= uint32(bin)
					c.Equal = h[s][bin]
				}
			}
			if i < most-1 {
				return nil, nil
			}
			return []Pass{f.equals(done)}, nil
		}))
	}
	if most == 0 {
		list = append(list, f.equals(done))
	}
	return list
}

// count makes a pass that counts the magnitudes of every stream by bin (-1: not), with the number of zeros beyond the bins.
func (f *finder) count(bin func(s int, m uint32) int, bins int, end func(h [][]int64) ([]Pass, error)) Pass {
	fresh := func() [][]int64 {
		h := make([][]int64, f.streams)
		for s := range h {
			h[s] = make([]int64, bins+1)
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
						h[bins]++
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

// memory is what the passes of a finder keep at most, in bytes.
func (f *finder) memory() int64 {
	cuts := int64(0)
	for s := range f.streams {
		cuts += int64(len(f.want(s, f.n)))
	}
	return 4 * cuts * min(2*f.n, 2*tallyLimit)
}
