package method

import (
	"math"

	"github.com/modelcompress/compress/merge/internal/vec"
)

// WordsSize is how many elements are merged at a time as words. The numbers of one key of random numbers are a
// multiple of it.
const WordsSize = 1 << 14

// Words is a run of elements of one tensor whose base, inputs and output are bfloat16: what programs can do
// with it they do without widening it in memory first.
type Words struct {
	Tensor     int   // as in [Block]
	Index, Off int64 // as in [Block]
	Base       []uint16
	X          [][]uint16
	Out        []uint16 // empty in passes

	mixer  vec.Mixer
	x      [][]uint16
	keys   []uint32
	sparse vec.Sparse
	lo, hi []uint32

	thinned [][]uint16 // inputs without the ties that go
}

// Len is the number of elements.
func (w *Words) Len() int { return len(w.X[0]) }

// withBase are the base and the inputs.
func (w *Words) withBase() [][]uint16 {
	w.x = append(append(w.x[:0], w.Base), w.X...)
	return w.x
}

// singles rounds numbers to float32.
func singles(list []float64) []float32 {
	out := make([]float32, len(list))
	for i, v := range list {
		out[i] = float32(v)
	}
	return out
}

// mixed is Σ w_j·x_j of words.
func mixed(w []float64) func(*Words) uint32 {
	f := singles(w)
	return func(b *Words) uint32 { return b.mixer.Mix(b.Out, b.X, f) }
}

// pairs adds the products of the two vectors of a block to a Gram matrix, if they are finite.
func (a angular) pairs(g gram, b *Words) bool {
	var s [3]float64
	switch {
	case a.deltas && b.Base != nil:
		vec.PairDelta(&s, b.X[0], b.X[1], b.Base)
	case a.front:
		vec.Pair(&s, b.Base, b.X[0])
	default:
		vec.Pair(&s, b.X[0], b.X[1])
	}

	if t := s[0] + s[1] + s[2]; t-t != 0 {
		return false
	}

	g[0][0] += s[0]
	g[1][0] += s[1]
	g[1][1] += s[2]

	return true
}

// writeWords is write.
func (a angular) writeWords(b *Words, weights []float32) uint32 {
	switch {
	case a.deltas && b.Base != nil:
		return b.mixer.MixDelta(b.Out, b.Base, b.X, weights, 1)
	case a.front:
		return b.mixer.Mix(b.Out, b.withBase(), weights)
	}
	return b.mixer.Mix(b.Out, b.X, weights)
}

// wordy tells whether apply has a way over words: what is random must not be certain as well.
func (r *arithmeticRun) wordy() bool {
	if r.sparsify == graduated {
		return false
	}

	for _, t := range r.group {
		most := 0.0
		for _, in := range t.Inputs {
			if r.sparsify == random && kept(in.Params.Number("density")) {
				return false
			}
			most += math.Abs(in.Params.Number("weight"))
		}

		if !(most < 1e30) { // reciprocals of divisors are approximated
			return false
		}
	}

	return true
}

// applyWords is apply.
func (r *arithmeticRun) applyWords(b *Words) uint32 {
	t := r.group[b.Tensor]
	weights, lambda := r.factors(t)
	s := &b.sparse
	*s = vec.Sparse{Lambda: float32(lambda), W: s.W[:0], Elect: r.consensus, Lo: b.lo, Hi: b.hi, Key: s.Key[:0]}
	for j, w := range weights {
		s.W = append(s.W, float32(w*r.factor[b.Tensor][j]))

		// A model with a value that is not finite has no finite norm to be rescaled to. Over float32, what such a
		// factor makes of dropped elements too is NaN, which sums over words don't see: they never multiply them.
		if !(math.Abs(float64(s.W[j])) <= math.MaxFloat32) {
			return vec.Infinite
		}
	}
	if r.consensus && t.Params.Bool("normalize") {
		s.Den = singles(weights)
	}

	switch {
	case r.sparsify == keepAll && !r.consensus:
		return b.mixer.MixDelta(b.Out, b.Base, b.X, s.W, s.Lambda)
	case r.sparsify == random:
		return r.randomWords(b, t, s)
	}

	return r.windowWords(b, s)
}

// randomWords keeps elements by chance.
func (r *arithmeticRun) randomWords(b *Words, t *Tensor, s *vec.Sparse) (peak uint32) {
	t.byKey(0, b.Off, len(b.Out), func(_ vec.Key, first uint32, lo, hi int) {
		s.Key, s.First = s.Key[:0], first
		for j, in := range t.Inputs {
			k := t.Key(j, b.Off+int64(lo))
			s.Key = append(s.Key, k.A, k.B, uint32(max(0, in.Params.Number("density"))*(1<<32)))
		}
		peak = max(peak, b.part(s, lo, hi))
	})
	return peak
}

// windowWords keeps elements by magnitude, in parts within which the bounds are the same.
func (r *arithmeticRun) windowWords(b *Words, s *vec.Sparse) (peak uint32) {
	s.Key = nil

	if r.sparsify != keepAll {
		for len(b.thinned) < len(r.windows) {
			b.thinned = append(b.thinned, nil)
		}
		for j, w := range r.windows {
			b.X[j] = w.Thinned(&b.thinned[j], b.X[j], b.Base, b.Tensor, b.Off, b.Index)
		}
	}

	for lo, n := 0, len(b.Out); lo < n; {
		at, end := b.Index+int64(lo), b.Index+int64(n)
		s.Lo, s.Hi = s.Lo[:0], s.Hi[:0]
		for _, w := range r.windows {
			if r.sparsify == keepAll {
				w = all
			}
			l, h := w.bounds(at)
			s.Lo, s.Hi = append(s.Lo, l), append(s.Hi, h)
			end = w.next(at, end)
		}

		hi := int(end - b.Index)
		peak = max(peak, b.part(s, lo, hi))
		lo = hi
	}

	b.lo, b.hi = s.Lo, s.Hi
	return peak
}

// part merges elements [lo, hi) of a block.
func (w *Words) part(s *vec.Sparse, lo, hi int) uint32 {
	w.x = w.x[:0]
	for _, x := range w.X {
		w.x = append(w.x, x[lo:hi])
	}
	return w.mixer.Sparse(w.Out[lo:hi], w.Base[lo:hi], w.x, s)
}

// sampleWords appends the magnitudes of differences.
func sampleWords(keys [][]uint32, b *Words) bool {
	for s := range keys {
		at := len(keys[s])
		keys[s] = append(keys[s], make([]uint32, b.Len())...)
		vec.Magnitudes(keys[s][at:], b.X[s], b.Base)
	}
	return true
}

// tallyWords counts and collects the magnitudes of differences, if they are finite.
func (t *tallied) tallyWords(brackets [][]bracket, room *tallyRoom, b *Words) bool {
	if need := b.Len() + vec.Slack; cap(b.keys) < need {
		b.keys = make([]uint32, need)
	}

	out := b.keys[:b.Len()+vec.Slack]
	done := make([]tallyState, 0, 8)
	for s, list := range brackets {
		if len(list) == 0 { // only to see whether all is finite
			if _, peak := vec.TallyDelta(b.X[s], b.Base, math.MaxInt32, math.MaxInt32, &vec.Count{},
				out); peak >= vec.Infinite {
				t.restore(done)
				return false
			}
		}

		for i, br := range list {
			done = append(done, tallyState{s, i, t.counts[s][i], len(t.keys[s][i]), t.over})
			m, peak := vec.TallyDelta(b.X[s], b.Base, br.lo, br.hi, &t.counts[s][i], out)
			if peak >= vec.Infinite {
				t.restore(done)
				return false
			}

			t.collect(s, i, room, b.Len(), out[:m])
		}
	}

	return true
}

// tallyState is what a block may have to give back.
type tallyState struct {
	s, i  int
	count vec.Count
	keys  int
	over  bool
}

func (t *tallied) restore(list []tallyState) {
	for i := len(list) - 1; i >= 0; i-- {
		d := list[i]
		t.counts[d.s][d.i] = d.count
		t.keys[d.s][d.i] = t.keys[d.s][d.i][:d.keys]
		t.over = d.over
	}
}
