package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// loopLevels opens the vector loops of every instruction set that the processor has.
func loopLevels() map[string]*loops {
	return map[string]*loops{
		"best":     vectorLoops(detect("")),
		"avx2":     vectorLoops(detect("avx512")),
		"portable": portableLoops(),
	}
}

// sweep is n values evenly spread over [lo, hi].
func sweep(lo, hi float64, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(lo + (hi-lo)*float64(i)/float64(n-1))
	}
	return x
}

// TestFunctionAccuracy holds the vector functions to a relative error in units of 2^-24, half of the last place
// of a float32. Where the true value is exp(-x²/2) and the like, the rounding of the exponent counts, in
// proportion to it.
func TestFunctionAccuracy(t *testing.T) {
	silu := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	phi := func(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }
	tanhPhi := func(x float64) float64 { return 1 / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) }
	for name, v := range loopLevels() {
		quotient := func(f kernels.Activation) func(dst, x []float32) {
			return func(dst, x []float32) {
				v.act[f](dst, x)
				for i := range dst {
					dst[i] /= x[i] // one more rounding
				}
			}
		}

		for _, c := range []struct {
			name   string
			lo, hi float64
			f      func(dst, x []float32)
			want   func(float64) float64
			units  float64 // bound
			grows  func(x float64) float64
		}{
			{"exp", -86.9, 0, func(dst, x []float32) { v.exp(dst, x, 0) }, math.Exp, 2, nil},
			{"sigmoid", -80, 80, quotient(kernels.SiLU), silu, 5, nil},
			{"tanh", -12, 12, func(dst, x []float32) { v.tanh(dst, x, 1, 1) }, math.Tanh, 3, nil},
			{"tanh near 0", -0.01, 0.01, func(dst, x []float32) { v.tanh(dst, x, 1, 1) }, math.Tanh, 2, nil},
			{"normal distribution", -12, 12, quotient(kernels.GELU), phi, 6, func(x float64) float64 {
				return min(x,
					0) * x
			}},
			{
				"its approximation", -8, 8, quotient(kernels.GELUTanh), tanhPhi, 6,
				func(x float64) float64 { return 3 * math.Abs(min(x, 0)*(1+0.05*x*x)) },
			},
		} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				x := sweep(c.lo, c.hi, 200003)
				dst := make([]float32, len(x))
				c.f(dst, x)

				worst := 0.0
				for i, g := range dst {
					in := float64(x[i])
					want := c.want(in)
					if in == 0 || want == 0 {
						continue
					}

					units := math.Abs(float64(g)-want) / math.Abs(want) * 0x1p24
					if c.grows != nil {
						units /= 1 + math.Abs(c.grows(in))/4
					}

					worst = max(worst, units)
					if units > c.units {
						t.Fatalf("f(%v) is %v, want %v: %.2f units", in, g, want, units)
					}
				}

				t.Logf("at most %.2f·2^-24", worst)
			})
		}
	}
}

// TestSumsKeepSmallTerms: a sum of exponentials over a quarter of a million terms is good to 1e-7.
func TestSumsKeepSmallTerms(t *testing.T) {
	x := sweep(-30, 0, 1<<18+5)
	want := 0.0
	for _, v := range x {
		want += math.Exp(float64(v))
	}

	for name, v := range loopLevels() {
		if got := v.expSum(x, 0); math.Abs(got/want-1) > 1e-7 {
			t.Errorf("%s: sum is %v, want %v", name, got, want)
		}
	}
}

// TestDecodeDoesNotDependOnSplits: a long context computed in parts by the row form equals the lane form, which
// does not split, to rounding.
func TestDecodeDoesNotDependOnSplits(t *testing.T) {
	d := New(Options{Threads: 1})
	const keys, dim, heads = 3*splitKeys + 11, 16, 32
	q := sweep(-1, 1, dim)
	k := sweep(-2, 2, keys*dim)
	v := sweep(-1, 1, keys*dim)

	mat := func(s []float32, cols int) kernels.Mat { return kernels.MatOf(kernels.WrapF32(s), len(s)/cols, cols) }
	var wide []float32 // equal heads that share keys and values: enough for the lane form
	for range heads {
		wide = append(wide, q...)
	}

	a := kernels.Attention{Heads: 1, KVHeads: 1, HeadDim: dim, Pos: keys - 1, Scale: 0.3}
	split, whole := make([]float32, dim), make([]float32, heads*dim)
	d.Ops().Attention(mat(split, dim), mat(q, dim), mat(k, dim), mat(v, dim), a)
	a.Heads = heads
	d.Ops().Attention(mat(whole, heads*dim), mat(wide, heads*dim), mat(k, dim), mat(v, dim), a)

	for c, w := range whole {
		if math.Abs(float64(split[c%dim]-w)) > 1e-6 {
			t.Errorf("channel %d is %v in parts and %v in one", c, split[c%dim], w)
		}
	}
}

// TestSmallOperationsStayInline: a step of generation on one row runs on the calling goroutine.
func TestSmallOperationsStayInline(t *testing.T) {
	d := New(Options{Threads: 4})
	x := kernels.MatOf(kernels.NewHost(kernels.F32, 4096), 1, 4096)
	ops := d.Ops()
	for name, f := range map[string]func(){
		"RMSNorm": func() { ops.RMSNorm(x, x, x, 1e-5, false) },
		"Gate":    func() { ops.Gate(x, x, x, kernels.SiLU) },
		"Add":     func() { ops.Add(x, x, x, 1) },
		"Softmax": func() { ops.Softmax(x, x) },
	} {
		if n := testing.AllocsPerRun(10, f); n > 2 {
			t.Errorf("%s makes %v allocations", name, n)
		}
	}
}

func ExampleNew() {
	d := New(Options{Threads: 1})
	x := kernels.MatOf(kernels.WrapF32([]float32{0, 0, 0, 0}), 1, 4)
	d.Ops().Softmax(x, x)
	fmt.Println(x.RowF32(0))
	// Output: [0.25 0.25 0.25 0.25]
}

// TestAttentions: sequences together get the bits that each has alone, wherever their keys and values lie.
func TestAttentions(t *testing.T) {
	const heads, kvHeads, dim, page = 6, 2, 16, 64
	rng := rand.New(rand.NewPCG(3, 1))
	pool := [2]kernels.Mat{}
	for i := range pool {
		pool[i] = randomMat(rng, kernels.F32, 40*page, kvHeads*dim, 0)
	}

	for _, threads := range []int{1, 3} {
		d := New(Options{Threads: threads})
		var list []kernels.SequenceAttention
		var want []kernels.Mat
		for i, keys := range []int{1, 63, 64, 65, 200, 700, 1} {
			s := kernels.SequenceAttention{
				Attention: kernels.Attention{
					Heads: heads, KVHeads: kvHeads, HeadDim: dim, Pos: keys - 1, Scale: 0.25, Window: 100 * (i % 2),
					LSE: newMat(kernels.F32, 1, heads, 0),
				},
				Dst: newMat(kernels.F32, 1, heads*dim, 0),
				Q:   randomMat(rng, kernels.F32, 1, heads*dim, 0),
			}
			whole := [2]kernels.Mat{}
			for j := range whole {
				whole[j] = newMat(kernels.F32, keys, kvHeads*dim, 0)
				for lo := 0; lo < keys; lo += page {
					at := rng.IntN(40) * page
					n := min(page, keys-lo)
					part := pool[j].RowRange(at, at+n)
					for r := range n {
						copy(whole[j].RowF32(lo+r), part.RowF32(r))
					}
					if j == 0 {
						s.K = append(s.K, part)
					} else {
						s.V = append(s.V, part)
					}
				}
			}

			alone, a := newMat(kernels.F32, 1, heads*dim, 0), s.Attention
			a.LSE = newMat(kernels.F32, 1, heads, 0)
			d.ops.Attention(alone, s.Q, whole[0], whole[1], a)
			list, want = append(list, s), append(want, alone, a.LSE)
		}

		d.Attentions(list)
		for i, s := range list {
			for j, got := range []kernels.Mat{s.Dst, s.LSE} {
				if !slices.Equal(got.RowF32(0), want[2*i+j].RowF32(0)) {
					t.Errorf("%d threads, sequence %d: %v, alone %v", threads, i, got.RowF32(0), want[2*i+j].RowF32(0))
				}
			}
		}
	}
}
