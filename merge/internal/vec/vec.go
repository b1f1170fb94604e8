// Package vec holds the loops that merging spends its time in: conversions, sums and selections over blocks of
// float32 that stay in the processor's cache. They come in AVX-512, in AVX2, for Arm and in portable Go; the
// fastest that package isa allows is taken. Element-wise loops give the same bits in every version but for the fusing
// of multiplications and additions; sums differ in their order. Operands of one call have the same length, and
// may be the same slice where a loop writes.
package vec

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/modelcompress/compress/internal/isa"
	"github.com/modelcompress/compress/kernels"
)

// loops are the functions of one instruction set.
type loops struct {
	add                   func(dst, a, b []float32, scale float32)
	scale                 func(dst, x []float32, scale float32)
	widenBF16, widenF16   func(dst []float32, x []uint16)
	narrowBF16, narrowF16 func(dst []uint16, x []float32)
	dot                   func(x, y []float32) float64
	sumAbs                func(x []float32) float64
	peak                  func(x []float32) float32
	within                func(dst, x, key []float32, lo, hi uint32)
	tally                 func(x []float32, lo, hi uint32, count []int64, out []uint32) int
	elect                 func(num, den, v, total []float32, wnum, wden float32)
	ratio                 func(dst, num, den []float32)
	ratioFloor            func(dst, num, den []float32, floor float32)
	dropout               func(dst, x []float32, first, k0, k1, threshold uint32)
	apart                 func(acc, x, y []float32)
	lanes                 func(x, a, b []uint32)
	equal                 func(x []float32, value uint32, set []uint64)

	mix         func(dst []uint16, x []*uint16, w []float32) float32
	mixDelta    func(dst, base []uint16, x []*uint16, w []float32, lambda float32) float32
	windowSum   func(dst, base []uint16, x []*uint16, w []float32, lambda float32, lo, hi []uint32) float32
	windowElect func(dst, base []uint16, x []*uint16, w []float32, lambda float32, lo, hi []uint32,
		den, stored []float32) float32
	randomSum   func(dst, base []uint16, x []*uint16, w []float32, lambda float32, key []uint32, first uint32) float32
	randomElect func(dst, base []uint16, x []*uint16, w []float32, lambda float32, key []uint32, first uint32,
		den, stored []float32) float32
	pair       func(sums []float64, x, y []uint16)
	pairDelta  func(sums []float64, x, y, base []uint16)
	tallyDelta func(x, base []uint16, lo, hi uint32, count []int64, out []uint32) int
	signs      func(x, base []uint16, lo uint32, net []float32, plus, minus []uint64, sum []float64) float32
	equalDelta func(x, base []uint16, value uint32, set []uint64)
}

// fastest is what this process uses.
var fastest = choose(isa.Usable(isa.Disabled()))

// Slack is how many elements more than its input the output of [Tally] must have room for.
const Slack = 16

// Infinite is the magnitude, as bits, from which on a float32 is not finite.
const Infinite = 0x7f800000

// Add computes dst = a + scale·b.
func Add(dst, a, b []float32, scale float32) { fastest.add(dst, a[:len(dst)], b[:len(dst)], scale) }

// Sub computes dst = a - b.
func Sub(dst, a, b []float32) { Add(dst, a, b, -1) }

// Scale computes dst = scale·x.
func Scale(dst, x []float32, scale float32) { fastest.scale(dst, x[:len(dst)], scale) }

// WidenBF16 computes dst = x for bfloat16.
func WidenBF16(dst []float32, x []uint16) { fastest.widenBF16(dst, x[:len(dst)]) }

// WidenF16 computes dst = x for IEEE halves.
func WidenF16(dst []float32, x []uint16) { fastest.widenF16(dst, x[:len(dst)]) }

// NarrowBF16 rounds x to bfloat16, nearest with ties to even.
func NarrowBF16(dst []uint16, x []float32) { fastest.narrowBF16(dst, x[:len(dst)]) }

// NarrowF16 rounds x to IEEE halves, nearest with ties to even.
func NarrowF16(dst []uint16, x []float32) { fastest.narrowF16(dst, x[:len(dst)]) }

// Dot is Σ x·y in float64.
func Dot(x, y []float32) float64 { return fastest.dot(x, y[:len(x)]) }

// SumAbs is Σ |x| in float64.
func SumAbs(x []float32) float64 { return fastest.sumAbs(x) }

// Peak is the highest magnitude of x as bits, 0 for none: [Infinite] and above for an infinity or a NaN.
func Peak(x []float32) uint32 { return math.Float32bits(fastest.peak(x)) }

// Within copies the elements of x whose key has a magnitude, as bits, in [lo, hi]; the others become 0.
func Within(dst, x, key []float32, lo, hi uint32) {
	fastest.within(dst, x[:len(dst)], key[:len(dst)], lo, min(hi, math.MaxInt32))
}

// Count is what [Tally] counts: magnitudes above two bounds, and at or above them.
type Count struct{ AboveHi, FromHi, AboveLo, FromLo int64 }

// Tally compares the magnitudes of x, as bits, with two bounds lo ≤ hi, adds to the counts and writes the
// magnitudes strictly between the bounds to out, which has room for [Slack] more elements than x. It returns
// how many it wrote.
func Tally(x []float32, lo, hi uint32, count *Count, out []uint32) int {
	_ = out[:len(x)+Slack]
	var c [4]int64
	n := fastest.tally(x, lo, hi, c[:], out)
	count.AboveHi += c[0]
	count.FromHi += c[1]
	count.AboveLo += c[2]
	count.FromLo += c[3]
	return n
}

// Equal sets bit i%64 of word i/64 of set where the magnitude of x[i], as bits, is the value, and clears the others, up
// to the end of the last word that x reaches.
func Equal(x []float32, value uint32, set []uint64) {
	whole := len(x) / step * step
	fastest.equal(x[:whole], value, set[:whole/64])
	portable.equal(x[whole:], value, set[whole/64:])
}

// Elect adds wnum·v to num and wden to den where v has the sign of the total: v > 0 and total ≥ 0, or v < 0 and
// not total ≥ 0.
func Elect(num, den, v, total []float32, wnum, wden float32) {
	fastest.elect(num, den[:len(num)], v[:len(num)], total[:len(num)], wnum, wden)
}

// Ratio computes dst = num / den, with a den of 0 counted as 1.
func Ratio(dst, num, den []float32) { fastest.ratio(dst, num[:len(dst)], den[:len(dst)]) }

// RatioFloor computes dst = num / max(den, floor).
func RatioFloor(dst, num, den []float32, floor float32) {
	fastest.ratioFloor(dst, num[:len(dst)], den[:len(dst)], floor)
}

// Apart adds (x - y)² to acc.
func Apart(acc, x, y []float32) { fastest.apart(acc, x[:len(acc)], y[:len(acc)]) }

// Key selects a sequence of pseudo-random numbers.
type Key struct{ A, B uint32 }

// Draw is number i of the sequence of a key, uniform over 32 bits: a hash of i with two multiplications, keyed
// before and between them.
func (k Key) Draw(i uint32) uint32 {
	x := i*0x9e3779b1 + k.A
	x ^= x >> 16
	x *= 0x7feb352d
	x ^= x >> 15
	x += k.B
	x *= 0x846ca68b
	return x ^ x>>16
}

// Dropout copies element i of x where number first+i of the sequence is below the threshold; the others become 0.
func Dropout(dst, x []float32, k Key, first, threshold uint32) {
	fastest.dropout(dst, x[:len(dst)], first, k.A, k.B, threshold)
}

// Checksum is a checksum of bytes, of which a changed, moved or missing word is seen: sixteen lanes of sums of
// 32-bit words and of sums of those sums, hashed together with the length. It is no defence against intent.
func Checksum(p []byte) uint64 {
	var a, b [16]uint32
	whole := len(p) &^ 63
	if whole > 0 && uintptr(unsafe.Pointer(&p[0]))%4 == 0 {
		fastest.lanes(unsafe.Slice((*uint32)(unsafe.Pointer(&p[0])), whole/4), a[:], b[:])
	} else {
		for i := 0; i < whole; i += 4 {
			lane := i / 4 % 16
			a[lane] += binary.LittleEndian.Uint32(p[i:])
			b[lane] += a[lane]
		}
	}

	h := uint64(len(p))
	for _, c := range p[whole:] {
		h = scramble(h ^ uint64(c))
	}
	for i := range a {
		h = scramble(h ^ uint64(a[i])<<32 ^ uint64(b[i]))
	}

	return h
}

// scramble is a bijection that spreads every bit.
func scramble(x uint64) uint64 {
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// portable are the loops in Go.
var portable = loops{
	add: func(dst, a, b []float32, scale float32) {
		for i := range dst {
			dst[i] = a[i] + scale*b[i]
		}
	},
	scale: func(dst, x []float32, scale float32) {
		for i := range dst {
			dst[i] = x[i] * scale
		}
	},
	widenBF16: func(dst []float32, x []uint16) {
		for i := range dst {
			dst[i] = kernels.FromBF16(x[i])
		}
	},
	widenF16: func(dst []float32, x []uint16) {
		for i := range dst {
			dst[i] = kernels.FromF16(x[i])
		}
	},
	narrowBF16: func(dst []uint16, x []float32) {
		for i := range dst {
			dst[i] = kernels.ToBF16(x[i])
		}
	},
	narrowF16: func(dst []uint16, x []float32) {
		for i := range dst {
			dst[i] = kernels.ToF16(x[i])
		}
	},
	dot: func(x, y []float32) (sum float64) {
		for i := range x {
			sum += float64(x[i]) * float64(y[i])
		}
		return sum
	},
	sumAbs: func(x []float32) (sum float64) {
		for _, v := range x {
			sum += math.Abs(float64(v))
		}
		return sum
	},
	mix: mix, mixDelta: mixDelta, windowSum: windowSum, randomSum: randomSum,
	windowElect: func(dst, base []uint16, x []*uint16, w []float32, lambda float32, lo, hi []uint32,
		den, stored []float32,
	) float32 {
		return elected(dst, base, x, &Sparse{W: w, Lambda: lambda, Den: den}, stored, func(j, _ int, v float32) bool {
			return magnitude(v) >= lo[j] && magnitude(v) <= hi[j]
		})
	},
	randomElect: func(dst, base []uint16, x []*uint16, w []float32, lambda float32, key []uint32, first uint32,
		den, stored []float32,
	) float32 {
		return elected(dst, base, x, &Sparse{W: w, Lambda: lambda, Den: den}, stored, func(j, i int, _ float32) bool {
			return drawn(key[3*j:], first+uint32(i))
		})
	},
	pair: pair, pairDelta: pairDelta, tallyDelta: tallyDelta, signs: signs, equal: equal, equalDelta: equalDelta,
	peak:   peak,
	within: within, tally: tally, elect: elect,
	ratio: func(dst, num, den []float32) {
		for i := range dst {
			d := den[i]
			if d == 0 {
				d = 1
			}
			dst[i] = num[i] / d
		}
	},
	ratioFloor: func(dst, num, den []float32, floor float32) {
		for i := range dst {
			dst[i] = num[i] / max(den[i], floor)
		}
	},
	dropout: func(dst, x []float32, first, k0, k1, threshold uint32) {
		k := Key{k0, k1}
		for i := range dst {
			v := x[i]
			if k.Draw(first+uint32(i)) >= threshold {
				v = 0
			}
			dst[i] = v
		}
	},
	lanes: func(x, a, b []uint32) {
		for i, w := range x {
			a[i%16] += w
			b[i%16] += a[i%16]
		}
	},
	apart: func(acc, x, y []float32) {
		for i := range acc {
			d := x[i] - y[i]
			acc[i] += d * d
		}
	},
}

// magnitude is |x| as bits.
func magnitude(x float32) uint32 { return math.Float32bits(x) & math.MaxInt32 }

func peak(x []float32) float32 {
	highest := uint32(0)
	for _, v := range x {
		highest = max(highest, magnitude(v))
	}
	return math.Float32frombits(highest)
}

func equal(x []float32, value uint32, set []uint64) {
	for i, v := range x {
		if i%64 == 0 {
			set[i/64] = 0
		}
		if magnitude(v) == value {
			set[i/64] |= 1 << (i % 64)
		}
	}
}

func within(dst, x, key []float32, lo, hi uint32) {
	for i := range dst {
		v := x[i]
		if m := magnitude(key[i]); m < lo || m > hi {
			v = 0
		}
		dst[i] = v
	}
}

func tally(x []float32, lo, hi uint32, count []int64, out []uint32) int {
	n := 0
	for _, v := range x {
		m := magnitude(v)
		if m < lo {
			continue
		}

		count[3]++
		if m == lo && lo != hi {
			continue
		}

		switch {
		case m > hi:
			count[0]++
			count[1]++
		case m == hi:
			count[1]++
		default:
			out[n] = m
			n++
		}

		if m > lo {
			count[2]++
		}
	}

	return n
}

func elect(num, den, v, total []float32, wnum, wden float32) {
	for i := range num {
		plus := total[i] >= 0
		if x := v[i]; x > 0 && plus || x < 0 && !plus {
			num[i] += wnum * x
			den[i] += wden
		}
	}
}
