package mediate

import (
	"math"
	"math/bits"
	"slices"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// What is counted of every element i of a tensor, over T models with differences τ_t = θ_t - θ0 and their denoised form
// τ̂_t (the largest magnitudes of τ_t, the rest 0; a window of package method):
//
//	P_i, N_i   how many τ̂_t,i are positive, and negative        a table of counts by (P, N), exact
//	Σ_t τ̂_t,i and Σ_t |τ̂_t,i|                                 sums of magnitudes, float64
//	τ_s·τ_t                                                     a Gram matrix, float64
//
// From these follow all six metrics (metric.go), for a tensor and, since they add, for any group of tensors: once the
// cuts are known, the data is read a single time.
//
// The table is the hot part: T signs for each of billions of elements. It is counted 64 elements at a time with bits.
// For each model a word holds the signs "positive" of 64 elements, another "negative"; levels adds the T words up as
// counters side by side, in unary: sets[a] is the set of those elements that were in exactly a words so far, and a word
// m moves sets[a] ∩ m on to sets[a+1]. Then |plus[a] ∩ minus[b]|, a population count, goes to the table at (a, b).
//
// bfloat16 inputs are counted as they are stored, without float32 copies in memory (run); a block of float32 that holds
// nothing but bfloat16 values takes the same way, so that it makes no difference how a checkpoint is stored. Anything
// not finite takes the slow way, where it counts as no difference.

// count is the pass that counts the elements of the windows. Elements that are bfloat16 are counted as such,
// those of a wider type too if nothing is lost: where the inputs are stored does not change a bit of the sums.
func count(windows []method.Window, c *counts) method.Pass {
	return method.Pass{
		New:   func() any { return &part{counts: newCounts(len(windows)), windows: windows} },
		Each:  func(stat any, b *method.Block) { stat.(*part).block(b) },
		Words: func(stat any, b *method.Words) bool { return stat.(*part).words(b) },
		End: func(stats []any) ([]method.Pass, error) {
			for _, s := range stats {
				c.Add(s.(*part).counts)
			}
			return nil, nil
		},
	}
}

// part is what a segment collects, and its scratch memory.
type part struct {
	*counts
	windows []method.Window
	before  *counts
	at      [][]uint16 // a run of the inputs
	narrow  [][]uint16 // a block as bfloat16, the base last
	net     []float32
	signs   []uint64 // of every input the words of bits of its positive elements, then of its negative ones
	sets    []uint64
}

// words counts words a block's length at a time, or changes nothing if anything is not finite.
func (p *part) words(b *method.Words) bool {
	if p.before == nil {
		p.before = newCounts(p.Models)
	}

	p.before.set(p.counts) // what is not finite is found only on the way
	for lo := 0; lo < b.Len(); lo += method.BlockSize {
		hi := min(lo+method.BlockSize, b.Len())
		p.at = p.at[:0]
		for _, x := range b.X {
			p.at = append(p.at, x[lo:hi])
		}

		if !p.run(p.at, b.Base[lo:hi], b.Index+int64(lo)) {
			p.counts.set(p.before)
			return false
		}
	}

	return true
}

// set copies counts.
func (c *counts) set(o *counts) {
	c.Elements = o.Elements
	c.NonFinite = o.NonFinite
	c.Net = o.Net
	c.Mass = o.Mass
	c.Base = o.Base
	copy(c.Pairs, o.Pairs)
	copy(c.Gram, o.Gram)
}

// run counts a run of bfloat16 elements, or changes nothing if a difference is not finite.
func (p *part) run(x [][]uint16, base []uint16, index int64) bool {
	n := len(base)
	p.net = slices.Grow(p.net[:0], n)[:n]
	clear(p.net)

	size := (n + 63) / 64
	p.signs = slices.Grow(p.signs[:0], 2*size*len(x))[:2*size*len(x)]
	mass := 0.0
	for s, w := range p.windows {
		signs := p.signs[2*size*s:]
		m, peak := kept(w, x[s], base, index, p.net, signs[:size], signs[size:2*size])
		if peak >= vec.Infinite {
			// Nothing of this run was added yet: whoever calls takes the slow way for it.
			return false
		}
		mass += m
	}

	p.Elements += int64(n)
	p.Mass += mass
	p.Net += vec.SumAbs(p.net)
	p.products(x, base)
	p.tally(size, n)

	return true
}

// kept is vec.Signs of the elements that a window of largest magnitudes selects. Its bound changes at most
// once, where the last of the equal ones is taken; the word there is put together of two.
func kept(w method.Window, x, base []uint16, index int64, net []float32,
	plus, minus []uint64,
) (mass float64, peak uint32) {
	n := int64(len(x))
	if w.LoEnd >= index+n {
		return vec.Signs(x, base, w.Lo, net, plus, minus)
	}
	if w.LoEnd <= index {
		return vec.Signs(x, base, w.Lo+1, net, plus, minus)
	}

	at := w.LoEnd - index
	mass, peak = vec.Signs(x[:at], base[:at], w.Lo, net, plus, minus)
	first := (at + 63) / 64 * 64 // the rest of the word, and the words after it
	var p, m [1]uint64
	if at < first {
		end := min(first, n)
		more, high := vec.Signs(x[at:end], base[at:end], w.Lo+1, net[at:end], p[:], m[:])
		plus[at/64] |= p[0] << (at % 64)
		minus[at/64] |= m[0] << (at % 64)
		mass, peak = mass+more, max(peak, high)
	}

	if first < n {
		more, high := vec.Signs(x[first:], base[first:], w.Lo+1, net[first:], plus[first/64:], minus[first/64:])
		mass, peak = mass+more, max(peak, high)
	}

	return mass, peak
}

// products adds to the Gram matrix and to the base's square.
func (p *part) products(x [][]uint16, base []uint16) {
	n := p.Models
	var own [3]float64
	vec.Pair(&own, base, base)
	p.Base += own[0]

	// A call gives s·s, s·t and t·t at the price of one: what s·s costs alone is had with the first pair of each s.
	for s := range n {
		for t := min(s+1, n-1); t < n; t++ {
			var sums [3]float64
			vec.PairDelta(&sums, x[s], x[t], base)
			if t == s || t == s+1 {
				p.Gram[s*n+s] += sums[0]
			}

			if t != s {
				p.Gram[s*n+t] += sums[1]
				p.Gram[t*n+s] += sums[1]
			}
		}
	}
}

// tally counts the elements by how many of their differences are positive and negative, 64 at a time.
func (p *part) tally(size, n int) {
	width := p.Models + 1
	p.sets = slices.Grow(p.sets[:0], 2*width)[:2*width]

	plus, minus := p.sets[:width], p.sets[width:]
	for i := range size {
		most, least := levels(plus, p.signs[i:], 2*size), levels(minus, p.signs[size+i:], 2*size)
		if rest := n - 64*i; rest < 64 {
			plus[0] &= 1<<rest - 1 // no element after the last has a sign
		}

		for a, with := range plus[:most+1] {
			row := p.Pairs[a*width:][:width]
			for b := 0; with != 0 && b <= least; b++ {
				row[b] += int64(bits.OnesCount64(with & minus[b]))
			}
		}
	}
}

// levels makes sets[a] the set of those of 64 elements that are in a of the words, every step-th of a list, one
// fewer than sets. It returns the highest a of any, after which the sets are empty.
func levels(sets, words []uint64, step int) (top int) {
	clear(sets)
	sets[0] = math.MaxUint64

	for at := 0; at < (len(sets)-1)*step; at += step {
		m := words[at]
		for a := top; a >= 0; a-- { // from the top, so that no element moves twice
			sets[a+1] |= sets[a] & m
			sets[a] &^= m
		}

		if sets[top+1] != 0 {
			top++
		}
	}

	return top
}

// block counts a block of float32.
func (p *part) block(b *method.Block) {
	if x, ok := p.narrowed(b); ok && p.run(x[:p.Models], x[p.Models], b.Index) {
		return
	}

	p.Elements += int64(b.Len())
	p.Base += square(b.Base)
	b.Deltas()
	n := p.Models
	for s := range n {
		p.NonFinite += clean(b.X[s], 0)
	}

	for s := range n {
		for t := range s + 1 {
			d := vec.Dot(b.X[s], b.X[t])
			p.Gram[s*n+t] += d
			if s != t {
				p.Gram[t*n+s] += d
			}
		}
	}

	net := b.Temp(0)
	clear(net)

	size := (b.Len() + 63) / 64
	p.signs = slices.Grow(p.signs[:0], 2*size*n)[:2*size*n]
	for s, w := range p.windows {
		x := b.X[s]
		if !w.Everything() {
			x = b.Temp(1)
			w.Apply(x, b.X[s], b.X[s], b)
		}

		sign(p.signs[2*size*s:], p.signs[2*size*s+size:][:size], x)
		vec.Add(net, net, x, 1)
		p.Mass += vec.SumAbs(x)
	}

	clean(net, math.MaxFloat32) // finite differences whose sum overflows
	p.Net += vec.SumAbs(net)
	p.tally(size, b.Len())
}

// clean puts a value in the place of elements that are not finite, and counts them.
func clean(x []float32, instead float32) (n int64) {
	if vec.Peak(x) < vec.Infinite {
		return 0
	}
	for i, v := range x {
		if v-v != 0 {
			x[i], n = instead, n+1
		}
	}
	return n
}

// square is the sum of the squares of the finite elements.
func square(x []float32) (sum float64) {
	if vec.Peak(x) < vec.Infinite {
		return vec.Dot(x, x)
	}
	for _, v := range x {
		if v-v == 0 {
			sum += float64(v) * float64(v)
		}
	}
	return sum
}

// sign sets the bits of positive and of negative elements.
func sign(plus, minus []uint64, x []float32) {
	for i := range minus {
		var p, m uint64
		for k, v := range x[64*i : min(64*i+64, len(x))] {
			b := uint64(math.Float32bits(v))
			some := (b&math.MaxInt32 + math.MaxInt32) >> 31 // 1 if v is not a zero of either sign
			m |= some & (b >> 31) << k
			p |= some &^ (b >> 31) << k
		}

		plus[i], minus[i] = p, m
	}
}

// narrowed is a block as bfloat16, if that is what it holds.
func (p *part) narrowed(b *method.Block) ([][]uint16, bool) {
	for len(p.narrow) <= p.Models {
		p.narrow = append(p.narrow, make([]uint16, b.Len()))
	}

	p.at = p.at[:0]
	for s := range p.Models + 1 {
		x := b.Base
		if s < p.Models {
			x = b.X[s]
		}

		p.narrow[s] = slices.Grow(p.narrow[s][:0], len(x))[:len(x)]
		p.at = append(p.at, p.narrow[s])
		some := uint32(0)
		for i, v := range x {
			// Low bits of all values at once: a single one makes the block float32, and one test after the loop is
			// cheaper than one in it.
			u := math.Float32bits(v)
			some |= u
			p.at[s][i] = uint16(u >> 16)
		}

		if some<<16 != 0 {
			return nil, false
		}
	}

	return p.at, true
}
