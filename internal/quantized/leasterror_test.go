package quantized

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// TestFitLeastError: the searches find ranges that leave no more error than those of llm-compressor's observers, and
// mostly the same; never more than the whole range leaves.
func TestFitLeastError(t *testing.T) {
	f, err := safetensors.Open("testdata/leasterror.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	const group, columns = 32, 128
	x := numbersOf(t, f, "x")
	weight := numbersOf(t, f, "weight")
	groups := len(x) / group
	for name, n := range map[string]Numbers{
		"int_4":   {Bits: 4, Symmetric: true, DType: safetensors.F32},
		"asym_4":  {Bits: 4, DType: safetensors.F32},
		"int_3":   {Bits: 3, Symmetric: true, DType: safetensors.F32},
		"int_8":   {Bits: 8, Symmetric: true, DType: safetensors.F32},
		"float_8": {Bits: 8, Float: true, Symmetric: true, DType: safetensors.F32},
	} {
		for prefix, search := range map[string]Search{"": LeastError, "weighted_": WeightedError} {
			ranges := numbersOf(t, f, prefix+name)
			same := 0
			for i := range groups {
				part := Group{X: x[i*group:][:group], Typed: true}
				if prefix != "" {
					part.Weight = weight[i*group%columns:][:group]
				}
				left := func(scale float32, zero int) float64 {
					return n.rangeError(part, scale, zero, powerOf(search.Power), math.Inf(1))
				}

				scale, zero := n.FitLeastError(part, search)
				theirs, theirZero := n.Fit(ranges[i], ranges[groups+i])
				if scale == theirs && zero == theirZero {
					same++
				}

				// Sums in float32 may be told apart otherwise.
				got := left(scale, zero)
				if want := left(theirs, theirZero); got > want*(1+1e-6) {
					t.Errorf("%s%s, group %d: %g is left, %g by the observer", prefix, name, i, got, want)
				}
				whole, wholeZero := n.Fit(bounds(part.X))
				if all := left(whole, wholeZero); got > all {
					t.Errorf("%s%s, group %d: %g is left, %g without a search", prefix, name, i, got, all)
				}
			}
			if same < groups*9/10 {
				t.Errorf("%s%s: %d of %d groups have other ranges", prefix, name, groups-same, groups)
			}
		}
	}
}

// TestPower: the tables give powers with the error that they promise.
func TestPower(t *testing.T) {
	for _, p := range []float64{2.4, 3} {
		table := powerOf(p)
		for x := float32(1e-30); x < 1e12; x *= 1.00137 {
			want := math.Pow(float64(x), p)
			if got := table.of(-x); math.Abs(got-want) > 2e-5*want {
				t.Fatalf("|%g|^%g is %g, want %g", x, p, got, want)
			}
		}
		if table.of(0) != 0 {
			t.Errorf("0^%g is %g", p, table.of(0))
		}
	}
}

// TestNear: the loops of the search give the values that codes have, for every type, kind of numbers and zero point.
func TestNear(t *testing.T) {
	for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
		for _, n := range []Numbers{
			{Bits: 4, Symmetric: true}, {Bits: 4}, {Bits: 8}, {Bits: 8, Float: true}, {Bits: 4, Float: true},
		} {
			n.DType = d
			for _, typed := range []bool{true, false} {
				zero := 0
				if !n.Float && !n.Symmetric {
					zero = 3
				}
				scale := n.round(0.0371)
				for k := -400; k < 400; k++ {
					v := n.round(float32(k) * 0.00731)
					want := n.Value(n.Code(v, scale, zero), scale, zero)
					if typed {
						want = n.round(n.Value(n.CodeRounded(v, scale, zero), scale, zero))
					}
					var got [1]float32
					n.values(got[:], []float32{v}, scale, zero, typed)
					if got[0] != want {
						t.Fatalf("%+v, typed %v: %g becomes %g, want %g", n, typed, v, got[0], want)
					}
				}
			}
		}
	}
}

// BenchmarkFitLeastError: groups of 128.
func BenchmarkFitLeastError(b *testing.B) {
	x := make([]float32, 128)
	for i := range x {
		x[i] = float32(math.Sin(float64(i * i)))
	}
	for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
		b.Run(string(d), func(b *testing.B) {
			n := Numbers{Bits: 4, Symmetric: true, DType: d}
			for b.Loop() {
				n.FitLeastError(Group{X: x, Typed: true}, LeastError)
			}
			b.SetBytes(4 * 128)
		})
	}
}
