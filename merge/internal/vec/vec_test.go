package vec

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/isa"
)

// sets are the loops that this processor can run, by name.
func sets() map[string]*loops {
	return map[string]*loops{
		"portable": &portable, "avx2": choose(isa.Usable("avx512")), "fastest": choose(isa.Usable("")),
	}
}

// sample draws n values with zeros, equal magnitudes and both signs.
func sample(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		switch r.IntN(5) {
		case 0:
		case 1:
			x[i] = float32(r.IntN(7)-3) / 4
		default:
			x[i] = float32(r.NormFloat64())
		}
	}

	return x
}

// close2 compares element-wise results: a fused multiplication and addition rounds once less.
func close2(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= 1e-6*(1+math.Abs(float64(want[i])))) {
			t.Fatalf("%s: element %d of %d is %v, want %v", what, i, len(want), got[i], want[i])
		}
	}
}

// TestLoopsAgree compares every version of every loop with the portable one, at all lengths around the widths
// of vectors.
func TestLoopsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, l := range sets() {
		for n := range 100 {
			x := sample(r, n)
			y := sample(r, n)
			z := sample(r, n)
			elementwise(t, name, l, x, y, z)
			reductions(t, name, l, x, y)
		}
	}
}

func elementwise(t *testing.T, name string, l *loops, x, y, z []float32) {
	t.Helper()
	n := len(x)
	both := func(what string, f func(l *loops, dst []float32)) {
		t.Helper()
		got, want := append(slices.Clone(z), 42), append(slices.Clone(z), 42)
		f(l, got[:n])
		f(&portable, want[:n])
		close2(t, name+" "+what, got, want)
	}

	both("add", func(l *loops, d []float32) { l.add(d, x, y, 0.3) })
	both("scale", func(l *loops, d []float32) { l.scale(d, x, 0.3) })
	both("ratio", func(l *loops, d []float32) { l.ratio(d, x, y) })
	both("ratioFloor", func(l *loops, d []float32) { l.ratioFloor(d, x, y, 0.1) })
	both("apart", func(l *loops, d []float32) { l.apart(d, x, y) })
	both("dropout", func(l *loops, d []float32) { l.dropout(d, x, 1<<32-7, 12345, 1<<32-5, 3<<30) })

	for _, b := range [][2]float32{{0, 1}, {0.25, 0.75}, {0.75, 0.75}, {0, 0}} {
		lo, hi := magnitude(b[0]), magnitude(b[1])
		both("within", func(l *loops, d []float32) { l.within(d, x, y, lo, hi) })
	}

	den := make([]float32, n)
	both("elect", func(l *loops, d []float32) { l.elect(d, den, x, y, 0.7, 0.3) })
	both("elect den", func(l *loops, d []float32) { l.elect(make([]float32, n), d, x, y, 0.7, 0.3) })

	h, g := make([]uint16, n), make([]uint16, n)
	l.narrowBF16(h, x)
	portable.narrowBF16(g, x)
	both("widenBF16", func(l *loops, d []float32) { l.widenBF16(d, h) })
	if !slices.Equal(h, g) {
		t.Fatalf("%s narrowBF16 of %d", name, n)
	}

	l.narrowF16(h, x)
	portable.narrowF16(g, x)
	both("widenF16", func(l *loops, d []float32) { l.widenF16(d, h) })
	if !slices.Equal(h, g) {
		t.Fatalf("%s narrowF16 of %d", name, n)
	}
}

func reductions(t *testing.T, name string, l *loops, x, y []float32) {
	t.Helper()
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-12*(1+math.Abs(want)) { // the order of some hundred float64 additions
			t.Fatalf("%s %s of %d: %v, want %v", name, what, len(x), got, want)
		}
	}

	near("dot", l.dot(x, y), portable.dot(x, y))
	near("sumAbs", l.sumAbs(x), portable.sumAbs(x))
	near("peak", float64(l.peak(x)), float64(portable.peak(x)))

	for _, b := range [][2]float32{{0, 1}, {0.25, 0.75}, {0.75, 0.75}, {0, 0}} {
		lo, hi := magnitude(b[0]), magnitude(b[1])
		var c, d [4]int64
		out, ref := make([]uint32, len(x)+Slack), make([]uint32, len(x)+Slack)
		out, ref = out[:l.tally(x, lo, hi, c[:], out)], ref[:portable.tally(x, lo, hi, d[:], ref)]
		if c != d || !slices.Equal(out, ref) {
			t.Fatalf("%s tally of %d in %v: %v %v, want %v %v", name, len(x), b, c, out, d, ref)
		}
	}
}

// TestPeakNaN: a NaN is above every bound.
func TestPeakNaN(t *testing.T) {
	for name, l := range sets() {
		for n := 1; n < 70; n++ {
			for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
				x := make([]float32, n)
				x[n/2] = float32(bad)
				if got := math.Float32bits(l.peak(x)); got < Infinite {
					t.Errorf("%s: peak of %d with %v is %x", name, n, bad, got)
				}
			}
		}
	}
}

// TestDraw: the draws of a key are uniform enough for the shares that they are used for, and keys differ.
func TestDraw(t *testing.T) {
	const n = 1 << 20
	for _, k := range []Key{{}, {1, 0}, {0, 1}, {0xdeadbeef, 0x12345678}} {
		var bins [64]float64
		var lag float64
		last := 0.0
		for i := range uint32(n) {
			d := k.Draw(i)
			bins[d>>26]++
			u := float64(d)/(1<<32) - 0.5
			lag += u * last
			last = u
		}

		chi := 0.0
		for _, b := range bins {
			chi += (b - n/64) * (b - n/64) / (n / 64)
		}
		if chi > 120 { // 63 degrees of freedom: mean 63, standard deviation 11
			t.Errorf("%v: chi-square %v", k, chi)
		}
		if c := lag / n * 12; math.Abs(c) > 5/math.Sqrt(n) {
			t.Errorf("%v: neighbours correlate by %v", k, c)
		}
	}
}

// TestChecksum: all versions agree at any length and alignment, and see what can go wrong with a file.
func TestChecksum(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := make([]byte, 1000)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	defer func(l *loops) { fastest = l }(fastest)

	for n := range 900 {
		for off := range 5 {
			sums := map[uint64]bool{}
			for _, l := range sets() {
				fastest = l
				sums[Checksum(p[off:off+n])] = true
			}

			if len(sums) != 1 {
				t.Fatalf("%d bytes at %d: versions differ", n, off)
			}
		}
	}

	want := Checksum(p)
	for i := range p {
		p[i] ^= 1 << (i % 8)
		if Checksum(p) == want {
			t.Errorf("a change of byte %d is not seen", i)
		}
		p[i] ^= 1 << (i % 8)
	}

	for i := 0; i+128 <= 960; i += 64 { // two groups, then two words, change places
		for _, size := range []int{64, 4} {
			q := slices.Clone(p)
			copy(q[i:], p[i+size:i+2*size])
			copy(q[i+size:], p[i:i+size])
			if Checksum(q) == want {
				t.Errorf("an exchange of %d bytes at %d is not seen", size, i)
			}
		}
	}

	if Checksum(p[:999]) == want || Checksum(append(slices.Clone(p), 0)) == want {
		t.Error("another length is not seen")
	}
}

func BenchmarkLoops(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 4096
	x := sample(r, n)
	y := sample(r, n)
	z := sample(r, n)

	w := make([]float32, n)
	h := make([]uint16, n)
	out := make([]uint32, n+Slack)
	for name, f := range map[string]func(){
		"add": func() { Add(z, x, y, 0.5) }, "widenBF16": func() { WidenBF16(z, h) },
		"narrowBF16": func() { NarrowBF16(h, x) },
		"dot":        func() { Dot(x, y) }, "sumAbs": func() { SumAbs(x) }, "peak": func() { Peak(x) },
		"within": func() { Within(z, x, x, 5, 1<<30) }, "tally": func() { Tally(x, 1<<29, 1<<29+9, &Count{}, out) },
		"elect": func() { Elect(w, z, x, y, 1, 0.5) }, "ratio": func() { Ratio(z, x, y) },
		"dropout": func() { Dropout(z, x, Key{1, 2}, 0, 1<<31) }, "apart": func() { Apart(z, x, y) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
		})
	}
}

// TestRank holds it to sorting, over lists that are empty, short and long, and keys that are close, far apart
// and equal.
func TestRank(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, spread := range []uint32{1, 2, 300, 1 << 20, 1 << 31} {
		for _, sizes := range [][]int{{1}, {0, 5, 1}, {4000, 0, 3001}} {
			lo, all := uint32(1000), []uint32(nil)
			lists := make([][]uint32, len(sizes))
			for i, n := range sizes {
				for range n {
					lists[i] = append(lists[i], lo+rnd.Uint32N(spread))
				}
				all = append(all, lists[i]...)
			}

			slices.Sort(all)
			for _, k := range []int{1, 2, len(all) / 2, len(all)} {
				checkRank(t, lists, all, lo, lo+spread, max(1, min(k, len(all))))
			}
		}
	}
}

func checkRank(t *testing.T, lists [][]uint32, sorted []uint32, lo, hi uint32, k int) {
	t.Helper()
	value, above, same, equal := Rank(lists, lo, hi, int64(k))

	want := sorted[len(sorted)-k]
	var higher, alike int64
	for _, key := range sorted {
		if key > want {
			higher++
		}
	}

	for i, list := range lists {
		n := int64(0)
		for _, key := range list {
			if key == want {
				n++
			}
		}

		alike += n
		if equal[i] != n {
			t.Errorf("rank %d of %d: %d of list %d equal %d, want %d", k, len(sorted), equal[i], i, value, n)
		}
	}

	if value != want || above != higher || same != alike {
		t.Errorf("rank %d of %d: %d with %d above and %d alike, want %d, %d, %d", k, len(sorted), value, above, same,
			want, higher, alike)
	}
}
