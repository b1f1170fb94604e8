package cpu

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// gradLevels opens the vector loops of gradients of every instruction set that the processor has.
func gradLevels() map[string]*gradLoops {
	return map[string]*gradLoops{
		"best":     vectorGradLoops(detect("")),
		"avx2":     vectorGradLoops(detect("avx512")),
		"portable": portableGradLoops(),
	}
}

// TestSlopeAccuracy holds derivatives to an absolute error in units of 2^-24: they are of the size of 1, and
// cross zero. Those of GELU take the error of its normal distribution, 6 units, the approximation that of its
// argument, enlarged by it.
func TestSlopeAccuracy(t *testing.T) {
	for name, v := range gradLevels() {
		for _, c := range []struct {
			name  string
			f     kernels.Activation
			want  func(x float64) float64
			units float64
		}{
			{"SiLU", kernels.SiLU, func(x float64) float64 {
				p := 1 / (1 + math.Exp(-x))
				return p * (1 + x*(1-p))
			}, 6},
			{"GELU", kernels.GELU, func(x float64) float64 {
				return 0.5*math.Erfc(-x/math.Sqrt2) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
			}, 6},
			{"GELUTanh", kernels.GELUTanh, func(x float64) float64 {
				k := math.Sqrt(2 / math.Pi)
				th := math.Tanh(k * (x + 0.044715*x*x*x))
				return 0.5*(1+th) + 0.5*x*(1-th*th)*k*(1+3*0.044715*x*x)
			}, 8},
		} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				x := sweep(-30, 30, 200003)
				ones, dx := sweep(1, 1, len(x)), make([]float32, len(x))
				v.act[c.f](dx, ones, x)

				worst := 0.0
				for i, g := range dx {
					units := math.Abs(float64(g)-c.want(float64(x[i]))) * 0x1p24
					worst = max(worst, units)
					if units > c.units {
						t.Fatalf("f'(%v) is %v, want %v: %.2f units", x[i], g, c.want(float64(x[i])), units)
					}
				}

				t.Logf("at most %.2f·2^-24", worst)
			})
		}
	}
}

// TestRunsCoverTheKeys: runs follow each other, have work, and every row is seen by those that its keys are in.
func TestRunsCoverTheKeys(t *testing.T) {
	for _, c := range []struct{ tq, pos, extra, window, kv int }{
		{1, 0, 0, 0, 1},
		{1024, 0, 0, 0, 4},
		{4096, 0, 0, 0, 1},
		{4096, 0, 100, 300, 2},
		{5000, 77, 0, 1, 8},
		{3, 9000, 0, 0, 1},
		{1, 9000, 5, 10, 1},
	} {
		a := &attendGrad{n: 32}
		a.q.Rows = c.tq
		a.k.Rows = c.pos + c.tq + c.extra
		a.v.Rows = c.pos + c.tq

		a.Pos = c.pos
		a.Window = c.window
		a.KVHeads = c.kv
		a.plan()

		next := 0
		for i, r := range a.runs {
			if r[0] != next || r[1] < r[0] {
				t.Fatalf("%+v: run %d is %v, want a start at %d", c, i, r, next)
			}
			next = r[1]
		}

		if next*a.n < a.k.Rows || len(a.runs) > gradParts {
			t.Fatalf("%+v: %d runs end at block %d", c, len(a.runs), next)
		}

		for i := range c.tq {
			lo, hi := a.keys(i)
			for s, r := range a.runs {
				if sees := lo < r[1]*a.n && hi > r[0]*a.n; sees && (i < a.rows[s][0] || i >= a.rows[s][1]) {
					t.Fatalf("%+v: row %d sees keys [%d, %d) of run %v, which has rows %v", c, i, lo, hi, r, a.rows[s])
				}
			}
		}
	}
}

// TestHeadsOneByOne: with little scratch, heads are computed one after the other, with the same bits.
func TestHeadsOneByOne(t *testing.T) {
	d := New(Options{Threads: 2})
	b := &backward{layers: &layers{d: d, v: vectorLoops(d.isa)}, g: vectorGradLoops(d.isa), space: 1}
	const tq, heads, kv, dim = 1100, 6, 3, 20
	mat := func(cols int, step float64) kernels.Mat {
		return kernels.MatOf(kernels.WrapF32(sweep(-step, step, tq*cols)), tq, cols)
	}
	q := mat(heads*dim, 1)
	k := mat(kv*dim, 2)
	v := mat(kv*dim, 3)

	out := mat(heads*dim, 0)
	dout := mat(heads*dim, 1)
	a := kernels.Attention{Heads: heads, KVHeads: kv, HeadDim: dim, Scale: 0.1, LSE: mat(heads, 0)}
	d.Ops().Attention(out, q, k, v, a)

	var results [2][3]kernels.Mat
	for i, f := range []func(dq, dk, dv, dout, q, k, v, out kernels.Mat, a kernels.Attention){
		d.Ops().AttentionBackward,
		b.attention,
	} {
		results[i] = [3]kernels.Mat{mat(heads*dim, 0), mat(kv*dim, 0), mat(kv*dim, 0)}
		f(results[i][0], results[i][1], results[i][2], dout, q, k, v, out, a)
	}

	for i, want := range results[0] {
		for j, w := range want.Buf.F32() {
			if g := results[1][i].Buf.F32()[j]; math.Float32bits(g) != math.Float32bits(w) {
				t.Fatalf("result %d: element %d is %v one by one and %v together", i, j, g, w)
			}
		}
	}
}
