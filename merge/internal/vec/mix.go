package vec

import (
	"math"
	"slices"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// step is a multiple of what the loops of every instruction set take at a time.
const step = 64

// Mixer merges bfloat16 words to bfloat16 words. Its methods compute what the loops over float32 do, in the
// same order with the same roundings, and return the highest magnitude before the last rounding, as bits; if
// that is not below [Infinite], the words written mean nothing. The zero value is ready; one goroutine uses a
// Mixer at a time.
type Mixer struct {
	at     []*uint16
	stored []float32
	rest   [step]uint16
	spare  []uint16
}

// Mix computes dst = Σ w_j·x_j, for at least one x.
func (m *Mixer) Mix(dst []uint16, x [][]uint16, w []float32) uint32 {
	return m.steps(dst, nil, x, func(dst, _ []uint16, _ int) float32 { return fastest.mix(dst, m.at, w) })
}

// MixDelta computes dst = base + lambda·Σ w_j·(x_j - base), for at least one x.
func (m *Mixer) MixDelta(dst, base []uint16, x [][]uint16, w []float32, lambda float32) uint32 {
	return m.steps(dst, base, x, func(dst, base []uint16, _ int) float32 {
		return fastest.mixDelta(dst, base, m.at, w,
			lambda)
	})
}

// Sparse says which differences are added up, v_j = w_j·(x_j - base) where kept and 0 elsewhere: dst = base +
// lambda·Σ v_j, or with Elect the sum of those v_j that have the sign of the sum of all, + for 0, divided by
// the sum of their Den, 1 for 0.
type Sparse struct {
	W      []float32
	Lambda float32
	// Lo and Hi are bounds of magnitudes as bits: what lies between them, or at them, is kept.
	Lo, Hi []uint32
	// Key, if not nil, is three numbers for every x instead: of the key of its random numbers and the threshold
	// that those must be below where x is kept (see [Dropout]). First is the number of the first element.
	Key   []uint32
	First uint32
	Elect bool
	Den   []float32 // nil: nothing is divided
}

// Sparse computes dst, for at least one x. What it returns counts all differences as well, kept or not.
func (m *Mixer) Sparse(dst, base []uint16, x [][]uint16, s *Sparse) uint32 {
	if n := len(x) * step; cap(m.stored) < n {
		m.stored = make([]float32, n)
	}

	stored := m.stored[:len(x)*step]
	return m.steps(dst, base, x, func(dst, base []uint16, first int) float32 {
		switch {
		case s.Key != nil && s.Elect:
			return fastest.randomElect(dst, base, m.at, s.W, s.Lambda, s.Key, s.First+uint32(first), s.Den, stored)
		case s.Key != nil:
			return fastest.randomSum(dst, base, m.at, s.W, s.Lambda, s.Key, s.First+uint32(first))
		case s.Elect:
			return fastest.windowElect(dst, base, m.at, s.W, s.Lambda, s.Lo, s.Hi, s.Den, stored)
		}
		return fastest.windowSum(dst, base, m.at, s.W, s.Lambda, s.Lo, s.Hi)
	})
}

// steps calls f for the whole steps of a block, and for the rest in memory of its own.
func (m *Mixer) steps(dst, base []uint16, x [][]uint16, f func(dst, base []uint16, first int) float32) uint32 {
	n := len(dst)
	whole := n / step * step
	m.at = m.at[:0]
	for _, v := range x {
		m.at = append(m.at, unsafe.SliceData(v[:n]))
	}

	peak := uint32(0)
	if whole > 0 {
		peak = math.Float32bits(f(dst[:whole], base[:min(whole, len(base))], 0))
	}

	if whole < n {
		m.spare = slices.Grow(m.spare[:0], step*(len(x)+1))[:step*(len(x)+1)]
		clear(m.spare)

		for j, v := range x {
			m.at[j] = &m.spare[step*j]
			copy(m.spare[step*j:], v[whole:n])
		}

		b := m.spare[step*len(x):]
		if base == nil {
			b = nil
		} else {
			copy(b, base[whole:n])
		}

		peak = max(peak, math.Float32bits(f(m.rest[:], b, whole)))
		copy(dst[whole:], m.rest[:])
	}

	clear(m.at) // the memory may go away
	return peak
}

// Pair adds x·x, x·y and y·y to sums, in float64.
func Pair(sums *[3]float64, x, y []uint16) {
	whole := len(x) / step * step
	fastest.pair(sums[:], x[:whole], y[:whole])
	portable.pair(sums[:], x[whole:], y[whole:len(x)])
}

// PairDelta adds the products of x - base and y - base to sums, as Pair does.
func PairDelta(sums *[3]float64, x, y, base []uint16) {
	whole := len(x) / step * step
	fastest.pairDelta(sums[:], x[:whole], y[:whole], base[:whole])
	portable.pairDelta(sums[:], x[whole:], y[whole:len(x)], base[whole:len(x)])
}

// TallyDelta is [Tally] of x - base. It also returns the highest magnitude as bits.
func TallyDelta(x, base []uint16, lo, hi uint32, count *Count, out []uint32) (n int, peak uint32) {
	_ = out[:len(x)+Slack]
	whole := len(x) / step * step
	var c, rest [5]int64
	n = fastest.tallyDelta(x[:whole], base[:whole], lo, hi, c[:], out)
	n += portable.tallyDelta(x[whole:], base[whole:len(x)], lo, hi, rest[:], out[n:])
	count.AboveHi += c[0] + rest[0]

	count.FromHi += c[1] + rest[1]
	count.AboveLo += c[2] + rest[2]
	count.FromLo += c[3] + rest[3]
	return n, uint32(max(c[4], rest[4]))
}

// Signs looks at the differences d = x - base whose magnitude, as bits, is at least lo; the others count as 0.
// It adds them to net, sets bit i%64 of word i/64 of plus where d > 0 and of minus where d < 0, and returns the
// sum of the |d|, in float64, and the highest |x - base| as bits.
func Signs(x, base []uint16, lo uint32, net []float32, plus, minus []uint64) (sum float64, peak uint32) {
	lo = min(lo, math.MaxInt32)
	n := len(x)
	whole := n / step * step
	var s [1]float64
	high := fastest.signs(x[:whole], base[:whole], lo, net[:whole], plus[:whole/64], minus[:whole/64], s[:])
	rest := portable.signs(x[whole:], base[whole:n], lo, net[whole:n], plus[whole/64:], minus[whole/64:], s[:])
	return s[0], max(math.Float32bits(high), math.Float32bits(rest))
}

// EqualDelta is [Equal] of x - base.
func EqualDelta(x, base []uint16, value uint32, set []uint64) {
	n := len(x)
	whole := n / step * step
	fastest.equalDelta(x[:whole], base[:whole], value, set[:whole/64])
	portable.equalDelta(x[whole:], base[whole:n], value, set[whole/64:])
}

// Magnitudes computes dst = |x - base| as bits.
func Magnitudes(dst []uint32, x, base []uint16) {
	for i := range dst {
		dst[i] = magnitude(kernels.FromBF16(x[i]) - kernels.FromBF16(base[i]))
	}
}

// The loops in Go.

func mix(dst []uint16, x []*uint16, w []float32) float32 {
	peak := uint32(0)
	for i := range dst {
		v := word(x[0], i) * w[0]
		for j := 1; j < len(x); j++ {
			v += w[j] * word(x[j], i)
		}
		peak = max(peak, magnitude(v))
		dst[i] = kernels.ToBF16(v)
	}

	return math.Float32frombits(peak)
}

// word is element i of an input.
func word(x *uint16, i int) float32 {
	return kernels.FromBF16(*(*uint16)(unsafe.Add(unsafe.Pointer(x), 2*i)))
}

func mixDelta(dst, base []uint16, x []*uint16, w []float32, lambda float32) float32 {
	peak := uint32(0)
	for i := range dst {
		b := kernels.FromBF16(base[i])
		var total float32
		for j := range x {
			total += w[j] * (word(x[j], i) - b)
		}

		v := b + lambda*total
		peak = max(peak, magnitude(v))
		dst[i] = kernels.ToBF16(v)
	}

	return math.Float32frombits(peak)
}

func windowSum(dst, base []uint16, x []*uint16, w []float32, lambda float32, lo, hi []uint32) float32 {
	return added(dst, base, x, w, lambda, func(j, _ int, v float32) bool {
		return magnitude(v) >= lo[j] &&
			magnitude(v) <= hi[j]
	})
}

func randomSum(dst, base []uint16, x []*uint16, w []float32, lambda float32, key []uint32, first uint32) float32 {
	return added(dst, base, x, w, lambda, func(j, i int, _ float32) bool { return drawn(key[3*j:], first+uint32(i)) })
}

// drawn tells whether a random number is below its threshold.
func drawn(key []uint32, i uint32) bool { return Key{key[0], key[1]}.Draw(i) < key[2] }

func added(dst, base []uint16, x []*uint16, w []float32, lambda float32, keep func(j, i int, v float32) bool) float32 {
	peak := uint32(0)
	for i := range dst {
		b := kernels.FromBF16(base[i])
		var total float32
		for j := range x {
			v := word(x[j], i) - b
			peak = max(peak, magnitude(v))
			if keep(j, i, v) {
				total += w[j] * v
			}
		}

		v := b + lambda*total
		peak = max(peak, magnitude(v))
		dst[i] = kernels.ToBF16(v)
	}

	return math.Float32frombits(peak)
}

func elected(dst, base []uint16, x []*uint16, s *Sparse, v []float32, keep func(j, i int, v float32) bool) float32 {
	peak := uint32(0)
	for i := range dst {
		b := kernels.FromBF16(base[i])
		var total float32
		for j := range x {
			v[j] = 0
			d := word(x[j], i) - b
			peak = max(peak, magnitude(d))
			if keep(j, i, d) {
				v[j] = d * s.W[j]
			}

			total += v[j]
		}

		out := b + s.Lambda*chosen(v[:len(x)], s.Den, total >= 0)
		peak = max(peak, magnitude(out))
		dst[i] = kernels.ToBF16(out)
	}

	return math.Float32frombits(peak)
}

// chosen is the sum of values of one sign, divided if there are divisors.
func chosen(v, den []float32, plus bool) float32 {
	var num, by float32
	for j, x := range v {
		if x > 0 && plus || x < 0 && !plus {
			num += x
			if den != nil {
				by += den[j]
			}
		}
	}

	if by == 0 {
		by = 1
	}

	return num / by
}

func pair(sums []float64, x, y []uint16) {
	for i := range x {
		u, v := float64(kernels.FromBF16(x[i])), float64(kernels.FromBF16(y[i]))
		sums[0] += u * u
		sums[1] += u * v
		sums[2] += v * v
	}
}

func pairDelta(sums []float64, x, y, base []uint16) {
	for i := range x {
		b := kernels.FromBF16(base[i])
		u, v := float64(kernels.FromBF16(x[i])-b), float64(kernels.FromBF16(y[i])-b)
		sums[0] += u * u
		sums[1] += u * v
		sums[2] += v * v
	}
}

func tallyDelta(x, base []uint16, lo, hi uint32, count []int64, out []uint32) int {
	n := 0
	for i := range x {
		v := [1]float32{kernels.FromBF16(x[i]) - kernels.FromBF16(base[i])}
		count[4] = max(count[4], int64(magnitude(v[0])))
		n += tally(v[:], lo, hi, count, out[n:])
	}
	return n
}

func signs(x, base []uint16, lo uint32, net []float32, plus, minus []uint64, sum []float64) float32 {
	peak := uint32(0)
	for i := range x {
		if i%64 == 0 {
			plus[i/64], minus[i/64] = 0, 0
		}

		d := kernels.FromBF16(x[i]) - kernels.FromBF16(base[i])
		m := magnitude(d)
		peak = max(peak, m)
		if m < lo {
			continue
		}

		net[i] += d
		sum[0] += math.Abs(float64(d))

		if d > 0 {
			plus[i/64] |= 1 << (i % 64)
		} else if d < 0 {
			minus[i/64] |= 1 << (i % 64)
		}
	}

	return math.Float32frombits(peak)
}

func equalDelta(x, base []uint16, value uint32, set []uint64) {
	for i := range x {
		if i%64 == 0 {
			set[i/64] = 0
		}
		if magnitude(kernels.FromBF16(x[i])-kernels.FromBF16(base[i])) == value {
			set[i/64] |= 1 << (i % 64)
		}
	}
}
