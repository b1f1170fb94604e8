package lanes

import (
	"math"
	"math/rand/v2"
	"testing"
)

// values mixes ordinary, huge, tiny and special numbers.
func values(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	special := []float32{
		0, float32(math.Copysign(0, -1)), 1, -1, 88.7, 89, -87.4, -103.9, -104.1, 100, 1e-45, -1e-40, 3.4e38, -3.4e38,
		9, 20, 0.999, 1e-8,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
	}

	x := make([]float32, n)
	for i := range x {
		switch r.IntN(8) {
		case 0:
			x[i] = special[r.IntN(len(special))]
		case 1:
			x[i] = math.Float32frombits(r.Uint32())
		default:
			x[i] = float32(r.NormFloat64() * math.Pow(10, 3*r.Float64()-1.5))
		}
	}

	return x
}

func same(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b }

// guard surrounds room for n elements with canaries.
func guard(n int) (all, room []float32) {
	all = make([]float32, n+64)
	for i := range all {
		all[i] = 12345
	}
	return all, all[32 : 32+n : 32+n]
}

func intact(t *testing.T, all []float32, what string) {
	t.Helper()
	for i, v := range all {
		if (i < 32 || i >= len(all)-32) && v != 12345 {
			t.Fatalf("%s writes outside its destination", what)
		}
	}
}

var lengths = []int{0, 1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 172, 512, 513}

// TestVersionsAgree: every version of every loop gives the bits of the portable one, at all lengths, with
// canaries around the destination, and in place.
func TestVersionsAgree(t *testing.T) {
	for _, l := range All()[1:] {
		for _, n := range lengths {
			x, y := values(n, uint64(n)), values(n, uint64(n)+1000)
			check := func(name string, got, want func(dst []float32)) {
				all, room := guard(n)
				expect := make([]float32, n)
				got(room)
				want(expect)
				intact(t, all, name)

				for i := range expect {
					if !same(room[i], expect[i]) {
						t.Fatalf("%s %s, %d elements: f(%g, %g) = %x, want %x", l.Name, name, n, x[i], y[i], room[i],
							expect[i])
					}
				}
			}

			for name, f := range map[string][2]func(dst, x []float32){
				"sqr": {l.Sqr, portable.Sqr}, "neg": {l.Neg, portable.Neg}, "abs": {l.Abs, portable.Abs},
				"log": {l.Log, portable.Log},
				"exp": {l.Exp, portable.Exp}, "sqrt": {l.Sqrt, portable.Sqrt}, "tanh": {l.Tanh, portable.Tanh},
			} {
				check(name, func(d []float32) { f[0](d, x) }, func(d []float32) { f[1](d, x) })
				check(name+" in place", func(d []float32) { copy(d, x); f[0](d, d) }, func(d []float32) { f[1](d, x) })
			}

			for name, f := range map[string][2]func(dst, x, y []float32){
				"add": {l.Add, portable.Add}, "sub": {l.Sub, portable.Sub}, "mul": {l.Mul, portable.Mul},
				"min": {l.Min, portable.Min},
				"max": {l.Max, portable.Max}, "pdiv": {l.Pdiv, portable.Pdiv},
			} {
				check(name, func(d []float32) { f[0](d, x, y) }, func(d []float32) { f[1](d, x, y) })
				check(name+" in place", func(d []float32) { copy(d, y); f[0](d, x, d) }, func(d []float32) {
					f[1](d, x,
						y)
				})
			}

			check("affine", func(d []float32) { l.Affine(d, x, 0.3, 1.7) }, func(d []float32) {
				portable.Affine(d, x,
					0.3, 1.7)
			})

			half := make([]uint16, n)
			for i := range half {
				half[i] = uint16(rand.Uint32())
			}

			for _, mask := range []uint16{math.MaxUint16, math.MaxInt16} {
				check("bf16", func(d []float32) { l.BF16(d, half, mask) }, func(d []float32) {
					portable.BF16(d, half,
						mask)
				})

				check("f16", func(d []float32) { l.F16(d, half, mask) }, func(d []float32) {
					portable.F16(d, half,
						mask)
				})
			}
		}
	}
}

func TestReductionsAgree(t *testing.T) {
	for _, l := range All()[1:] {
		for _, n := range lengths {
			for _, finite := range []bool{true, false} {
				x := values(n, uint64(n)+7)
				if finite {
					for i, v := range x {
						if v-v != 0 {
							x[i] = 3
						}
					}
				}

				equal := func(name string, got, want float64) {
					if got != want && !(got != got && want != want) {
						t.Errorf("%s %s, %d elements: %x, want %x", l.Name, name, n, got, want)
					}
				}

				equal("sumAbs", l.SumAbs(x), portable.SumAbs(x))
				equal("sumSq", l.SumSq(x), portable.SumSq(x))
				got, want := l.Moments(x), portable.Moments(x)
				equal("mean", got.Mean, want.Mean)
				equal("dev", got.Dev, want.Dev)

				lo, hi, nan := l.Range(x)
				wlo, whi, wnan := portable.Range(x)
				if nan != wnan || !nan && (lo != wlo || hi != whi) {
					t.Errorf("%s range, %d elements: %g, %g, %t, want %g, %g, %t", l.Name, n, lo, hi, nan, wlo, whi,
						wnan)
				}

				if g, w := l.Finite(x), portable.Finite(x); g != w {
					t.Errorf("%s finite, %d elements: %t", l.Name, n, g)
				}

				a, b := make([]float64, n), make([]float64, n)
				l.AddAbs(a, x)
				l.AddSq(a, x)
				portable.AddAbs(b, x)
				portable.AddSq(b, x)
				for i := range a {
					equal("columns", a[i], b[i])
				}
			}
		}
	}
}

// TestFunctionsAreAccurate: exp, log and tanh are within 0.51 ulp of the truth over their whole range.
func TestFunctionsAreAccurate(t *testing.T) {
	for name, f := range map[string]struct {
		got  func(float32) float32
		want func(float64) float64
		from float32
		to   float32
	}{
		"exp":  {exp, math.Exp, -87, 88},
		"log":  {log, func(x float64) float64 { return math.Log(float64(float32(math.Abs(x)) + 0.001)) }, 0, 1e6},
		"tanh": {tanh, math.Tanh, -12, 12},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		for range 200000 {
			x := f.from + (f.to-f.from)*r.Float32()
			switch r.IntN(3) {
			case 0:
				x /= 1000
			case 1:
				x = float32(math.Exp2(-30*r.Float64())) * x
			}

			want := f.want(float64(x))
			got := float64(f.got(x))
			ulp := math.Abs(float64(math.Nextafter32(float32(want), float32(math.Inf(1))) - float32(want)))
			if math.Abs(got-want) > 0.51*ulp {
				t.Fatalf("%s(%g) = %g, want %g: %.3f ulp off", name, x, got, want, math.Abs(got-want)/ulp)
			}
		}
	}
}

// TestMoments: against two plain passes, and exactly for constants however they are merged.
func TestMoments(t *testing.T) {
	x := values(4000, 3)
	for i, v := range x {
		if v-v != 0 || v > 1e6 || v < -1e6 {
			x[i] = 7
		}
	}

	var m Moments
	mean, dev := 0.0, 0.0
	for lo := 0; lo < len(x); lo += 700 {
		m.Merge(Best().Moments(x[lo:min(lo+700, len(x))]))
	}
	for _, v := range x {
		mean += float64(v) / float64(len(x))
	}
	for _, v := range x {
		dev += (float64(v) - mean) * (float64(v) - mean)
	}
	if math.Abs(m.Mean-mean) > 1e-9*math.Sqrt(dev) || math.Abs(m.Dev-dev) > 1e-12*dev || m.N != 4000 {
		t.Errorf("%+v, want mean %g, dev %g", m, mean, dev)
	}

	for _, l := range All() {
		var c Moments
		for _, n := range lengths {
			x := make([]float32, n)
			for i := range x {
				x[i] = 0.1
			}
			c.Merge(l.Moments(x))
		}

		if c.Mean != float64(float32(0.1)) || c.Dev != 0 {
			t.Errorf("%s: a constant has %+v", l.Name, c)
		}
	}
}
