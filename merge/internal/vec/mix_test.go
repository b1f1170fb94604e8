package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// halves draws n bfloat16 values.
func halves(r *rand.Rand, n int) []uint16 {
	h := make([]uint16, n)
	portable.narrowBF16(h, sample(r, n))
	return h
}

// nearWords compares bfloat16 results: a fused multiplication and addition rounds once less, which may move the
// last rounding by a unit, or where terms cancel what is left by 1e-6 of them.
func nearWords(t *testing.T, what string, got, want []uint16) {
	t.Helper()
	for i := range want {
		a, b := float64(math.Float32frombits(uint32(got[i])<<16)), float64(math.Float32frombits(uint32(want[i])<<16))
		if !(math.Abs(a-b) <= 1e-6+math.Abs(b)/128) {
			t.Fatalf("%s: element %d of %d is %v, want %v", what, i, len(want), a, b)
		}
	}
}

// mixes are all the ways to merge words, the result and the peak.
func mixes(m *Mixer, base []uint16, x [][]uint16, den bool) map[string]func(dst []uint16) uint32 {
	n := len(x)
	w := make([]float32, n)
	d := make([]float32, n)

	lo := make([]uint32, n)
	hi := make([]uint32, n)
	key := make([]uint32, 3*n)
	for j := range w {
		w[j], d[j] = 0.7-0.4*float32(j), 0.5+float32(j)
		lo[j], hi[j] = magnitude(0.25*float32(j)), magnitude(1.5)
		key[3*j], key[3*j+1], key[3*j+2] = uint32(j), uint32(n), 3<<30
	}

	if !den {
		d = nil
	}

	return map[string]func(dst []uint16) uint32{
		"mix":      func(dst []uint16) uint32 { return m.Mix(dst, x, w) },
		"mixDelta": func(dst []uint16) uint32 { return m.MixDelta(dst, base, x, w, 0.9) },
		"windowSum": func(dst []uint16) uint32 {
			return m.Sparse(dst, base, x, &Sparse{W: w, Lambda: 0.9, Lo: lo, Hi: hi})
		},
		"windowElect": func(dst []uint16) uint32 {
			return m.Sparse(dst, base, x, &Sparse{W: w, Lambda: 0.9, Lo: lo, Hi: hi, Elect: true, Den: d})
		},
		"randomSum": func(dst []uint16) uint32 {
			return m.Sparse(dst, base, x, &Sparse{W: w, Lambda: 0.9, Key: key, First: 1<<32 - 9})
		},
		"randomElect": func(dst []uint16) uint32 {
			return m.Sparse(dst, base, x, &Sparse{W: w, Lambda: 0.9, Key: key, First: 77, Elect: true, Den: d})
		},
	}
}

// TestMixer compares every version of every way with the portable one, at lengths around the steps, with one to
// five inputs.
func TestMixer(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	defer func(l *loops) { fastest = l }(fastest)

	for _, n := range []int{0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 1000} {
		for inputs := 1; inputs <= 5; inputs++ {
			base := halves(r, n)
			var x [][]uint16
			for range inputs {
				x = append(x, halves(r, n))
			}

			for name, l := range sets() {
				var m Mixer
				for way, f := range mixes(&m, base, x, n%2 == 0) {
					got, want := make([]uint16, n), make([]uint16, n)
					fastest = &portable
					high := f(want)
					fastest = l
					peak := f(got)
					nearWords(t, fmt.Sprintf("%s %s of %d inputs", name, way, inputs), got, want)

					if a, b := math.Float32frombits(peak),
						math.Float32frombits(high); !(math.Abs(float64(a-b)) <= 1e-6*float64(b)) {
						t.Fatalf("%s %s: peak %v, want %v", name, way, a, b)
					}
				}
			}
		}
	}
}

// TestMixerEqualsBlocks: the same bits as the loops over float32 of the same version, which is what a block
// falls back to.
func TestMixerEqualsBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	defer func(l *loops) { fastest = l }(fastest)

	const n = 1000
	base, x := halves(r, n), [][]uint16{halves(r, n), halves(r, n), halves(r, n)}
	w := []float32{0.3, -0.2, 0.55}
	wide := func(h []uint16) []float32 {
		v := make([]float32, n)
		WidenBF16(v, h)
		return v
	}

	for name, l := range sets() {
		fastest = l
		var m Mixer
		got, want := make([]uint16, n), make([]uint16, n)

		out := make([]float32, n)
		Scale(out, wide(x[0]), w[0])
		Add(out, out, wide(x[1]), w[1])
		Add(out, out, wide(x[2]), w[2])
		NarrowBF16(want, out)
		m.Mix(got, x, w)
		if !slices.Equal(got, want) {
			t.Errorf("%s: mix differs", name)
		}

		total := make([]float32, n)
		for j := range x {
			d := wide(x[j])
			Sub(d, d, wide(base))
			Add(total, total, d, w[j])
		}

		Add(out, wide(base), total, 0.9)
		NarrowBF16(want, out)
		m.MixDelta(got, base, x, w, 0.9)
		if !slices.Equal(got, want) {
			t.Errorf("%s: mixDelta differs", name)
		}
	}
}

// TestMixerNotFinite: what is not finite in an input shows in the peak, whatever is kept.
func TestMixerNotFinite(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	defer func(l *loops) { fastest = l }(fastest)

	for name, l := range sets() {
		fastest = l

		for _, n := range []int{7, 64, 130} {
			for _, bad := range []uint16{0x7f80, 0xff80, 0x7fc0} {
				for at := range 3 {
					base, x := halves(r, n), [][]uint16{halves(r, n), halves(r, n)}
					append(x, base)[at][n/2] = bad
					var m Mixer
					if at < 2 && m.Mix(make([]uint16, n), x, []float32{0, 0.5}) < Infinite {
						t.Errorf("%s: %x is not seen by mix", name, bad)
					}
					if m.MixDelta(make([]uint16, n), base, x, []float32{0, 0.5}, 1) < Infinite {
						t.Errorf("%s: %x is not seen by mixDelta", name, bad)
					}

					for way, f := range mixes(&m, base, x, true) {
						if way != "mix" && f(make([]uint16, n)) < Infinite {
							t.Errorf("%s: %x is not seen by %s", name, bad, way)
						}
					}
				}
			}
		}
	}
}

// TestPairs compares products and tallies of words with those of float32.
func TestPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	defer func(l *loops) { fastest = l }(fastest)

	for name, l := range sets() {
		fastest = l

		for _, n := range []int{0, 1, 63, 64, 100, 1000} {
			x := halves(r, n)
			y := halves(r, n)
			b := halves(r, n)

			var got, want, delta, ref [3]float64
			Pair(&got, x, y)
			pair(want[:], x, y)
			PairDelta(&delta, x, y, b)
			pairDelta(ref[:], x, y, b)

			for i := range got {
				// other orders of float64 additions
				if math.Abs(got[i]-want[i]) > 1e-12*(1+math.Abs(want[i])) ||
					math.Abs(delta[i]-ref[i]) > 1e-12*(1+math.Abs(ref[i])) {
					t.Fatalf("%s: %v %v, want %v %v", name, got, delta, want, ref)
				}
			}

			for _, bound := range [][2]float32{{0, 1}, {0.25, 0.75}, {0.75, 0.75}, {0, 0}} {
				lo, hi := magnitude(bound[0]), magnitude(bound[1])
				var c, d Count
				d5 := [5]int64{}

				out, kept := make([]uint32, n+Slack), make([]uint32, n+Slack)
				m, peak := TallyDelta(x, b, lo, hi, &c, out)
				k := tallyDelta(x, b, lo, hi, d5[:], kept)
				d = Count{d5[0], d5[1], d5[2], d5[3]}
				if c != d || peak != uint32(d5[4]) || !slices.Equal(out[:m], kept[:k]) {
					t.Fatalf("%s: tally of %d in %v: %v, want %v", name, n, bound, c, d)
				}
			}
		}
	}
}

func BenchmarkMixer(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 16384
	base, x := halves(r, n), [][]uint16{halves(r, n), halves(r, n)}
	dst := make([]uint16, n)
	var m Mixer
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
		})
	}

	for way, f := range mixes(&m, base, x, true) {
		run(way, func() { f(dst) })
	}

	var sums [3]float64
	out := make([]uint32, n+Slack)
	run("pair", func() { Pair(&sums, x[0], x[1]) })
	run("pairDelta", func() { PairDelta(&sums, x[0], x[1], base) })
	run("tallyDelta", func() { TallyDelta(x[0], base, 1<<29, 1<<29+9, &Count{}, out) })
}

// TestSelect compares with sorting, for keys that share their upper bits and keys that do not.
func TestSelect(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, spread := range []uint32{1, 2, 1 << 11, 1 << 20, math.MaxInt32} {
		for _, n := range []int{1, 255, 256, 3000} {
			keys := make([]uint32, n)
			for i := range keys {
				keys[i] = 0x3f800000 ^ r.Uint32N(spread)
			}

			sorted := slices.Sorted(slices.Values(keys))
			for _, at := range []int{-1, 0, n / 3, n - 1, n} {
				if got, want := Select(keys, at), sorted[max(0, min(at, n-1))]; got != want {
					t.Fatalf("rank %d of %d within %d: %d, want %d", at, n, spread, got, want)
				}
			}
		}
	}
}

// TestSigns compares every version with the portable one, which is compared with the definition, at lengths
// around the steps and with bounds that keep everything, some and nothing.
func TestSigns(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	defer func(l *loops) { fastest = l }(fastest)

	for _, n := range []int{0, 1, 15, 63, 64, 65, 127, 128, 200, 1000} {
		x, base := halves(r, n), halves(r, n)
		for i := 0; i < n; i += 3 {
			x[i] = base[i] // no difference
		}

		for _, lo := range []uint32{0, 1, magnitude(0.5), math.MaxInt32} {
			words := (n + 63) / 64
			net := make([]float32, n)
			plus := make([]uint64, words)

			minus := make([]uint64, words)
			mass := 0.0
			high := uint32(0)
			for i := range x {
				d := math.Float32frombits(uint32(x[i])<<16) - math.Float32frombits(uint32(base[i])<<16)
				high = max(high, magnitude(d))
				if magnitude(d) < lo {
					d = 0
				}

				net[i] = 1 + d
				mass += math.Abs(float64(d))

				if d > 0 {
					plus[i/64] |= 1 << (i % 64)
				} else if d < 0 {
					minus[i/64] |= 1 << (i % 64)
				}
			}

			for name, l := range sets() {
				fastest = l
				sum := make([]float32, n)
				p := make([]uint64, words)
				m := make([]uint64, words)
				for i := range sum {
					sum[i] = 1
				}
				for i := range p {
					p[i], m[i] = 77, 99 // what was there before
				}

				got, peak := Signs(x, base, lo, sum, p, m)
				if !slices.Equal(sum, net) || !slices.Equal(p, plus) || !slices.Equal(m, minus) || peak != high {
					t.Fatalf("%s: %d elements, bound %#x: %v %x %x %x", name, n, lo, sum, p, m, peak)
				}
				if math.Abs(got-mass) > 1e-12*mass { // the order of float64 additions
					t.Errorf("%s: %d elements, bound %#x: sum %v, want %v", name, n, lo, got, mass)
				}
			}
		}
	}
}

// TestEqual compares every version with the definition, at lengths around the steps, for values that some, all and no
// elements have, and for NaN, which equals itself here because bits are compared.
func TestEqual(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	defer func(l *loops) { fastest = l }(fastest)

	for _, n := range []int{0, 1, 15, 63, 64, 65, 127, 128, 200, 1000} {
		x, base := halves(r, n), halves(r, n)
		for i := 0; i < n; i += 3 {
			x[i] = base[i] // no difference
		}
		if n > 70 {
			x[70] = 0x7fc0
		}

		d := make([]float32, n)
		for i := range d {
			d[i] = math.Float32frombits(uint32(x[i])<<16) - math.Float32frombits(uint32(base[i])<<16)
		}

		values := []uint32{0, math.MaxInt32, 0x7fc00000}
		if n > 0 {
			values = append(values, magnitude(d[n-1]), magnitude(d[n/2]))
		}

		for _, value := range values {
			want := make([]uint64, (n+63)/64)
			for i, v := range d {
				if magnitude(v) == value {
					want[i/64] |= 1 << (i % 64)
				}
			}

			for name, l := range sets() {
				fastest = l
				set := slices.Repeat([]uint64{77}, len(want)) // what was there before
				Equal(d, value, set)
				if !slices.Equal(set, want) {
					t.Fatalf("%s: %d values, %#x: %x, want %x", name, n, value, set, want)
				}

				set = slices.Repeat([]uint64{99}, len(want))
				EqualDelta(x, base, value, set)
				if !slices.Equal(set, want) {
					t.Fatalf("%s: %d differences, %#x: %x, want %x", name, n, value, set, want)
				}
			}
		}
	}
}
