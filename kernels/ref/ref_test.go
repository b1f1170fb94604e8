package ref_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/kerneltest"
	"github.com/modelcompress/compress/kernels/ref"
)

// TestConformance holds the reference to the suite's own rules: guards, untouched operands, panics, aliasing.
func TestConformance(t *testing.T) { kerneltest.Run(t, ref.New()) }

func BenchmarkOps(b *testing.B) { kerneltest.Benchmark(b, ref.New()) }

func mat(rows, cols int, v ...float32) kernels.Mat {
	return kernels.MatOf(kernels.WrapF32(v), rows, cols)
}

func zeros(rows, cols int) kernels.Mat { return mat(rows, cols, make([]float32, rows*cols)...) }

// near compares with values computed by hand, to float32's rounding.
func near(t *testing.T, what string, got kernels.Mat, want ...float64) {
	t.Helper()
	for i, w := range want {
		g := float64(got.RowF32(i / got.Cols)[i%got.Cols])
		if math.Abs(g-w) > 1e-7*max(1, math.Abs(w)) {
			t.Errorf("%s: element %d is %v, want %v", what, i, g, w)
		}
	}
}

func TestProductsByHand(t *testing.T) {
	o := ref.New().Ops()
	a, b := mat(2, 3, 1, 2, 3, 4, 5, 6), mat(2, 3, 1, 0, -1, 2, 2, 2)
	dst := zeros(2, 2)
	o.MatMulNT(dst, a, b, kernels.MatMul{Bias: mat(1, 2, 10, 20)})
	near(t, "a·bᵀ + bias", dst, 8, 32, 8, 50)
	o.MatMulNT(dst, a, b, kernels.MatMul{Accumulate: true})
	near(t, "the same added", dst, 6, 44, 6, 80)

	wide := zeros(3, 3)
	o.MatMulTN(wide, a, b, kernels.MatMul{})
	near(t, "aᵀ·b", wide, 9, 8, 7, 12, 10, 8, 15, 12, 9)
	o.MatMulNN(dst, a, mat(3, 2, 1, 0, 0, 1, 1, 1), kernels.MatMul{})
	near(t, "a·c", dst, 4, 5, 10, 11)
}

func TestNormsByHand(t *testing.T) {
	o := ref.New().Ops()
	dst := zeros(1, 2)
	o.RMSNorm(dst, mat(1, 2, 3, 4), mat(1, 2, 1, 2), 0, false)
	near(t, "RMSNorm", dst, 3/math.Sqrt(12.5), 8/math.Sqrt(12.5))
	o.RMSNorm(dst, mat(1, 2, 3, 4), mat(1, 2, 0, 1), 0, true)
	near(t, "RMSNorm with 1 + w", dst, 3/math.Sqrt(12.5), 8/math.Sqrt(12.5))
	o.LayerNorm(dst, mat(1, 2, 1, 3), mat(1, 2, 2, 2), mat(1, 2, 5, 5), 0)
	near(t, "LayerNorm", dst, 3, 7)
	o.Softmax(dst, mat(1, 2, 0, float32(math.Log(3))))
	near(t, "Softmax", dst, 0.25, 0.75)
}

func TestActivationsByHand(t *testing.T) {
	o := ref.New().Ops()
	for f, want := range map[kernels.Activation][]float64{
		kernels.SiLU:     {0, 0.7310585786300049, -0.2689414213699951},
		kernels.GELU:     {0, 0.8413447460685429, -0.15865525393145707},
		kernels.GELUTanh: {0, 0.8411919906082768, -0.15880800939172324},
		kernels.ReLU:     {0, 1, 0},
	} {
		dst := zeros(1, 3)
		o.Activate(dst, mat(1, 3, 0, 1, -1), f)
		near(t, "activation", dst, want...)
		o.Gate(dst, mat(1, 3, 0, 1, -1), mat(1, 3, 7, -2, 3), f)
		near(t, "gate", dst, 0, -2*want[1], 3*want[2])
	}
}

// TestAttentionByHand: equal scores give the mean of the values seen.
func TestAttentionByHand(t *testing.T) {
	o := ref.New().Ops()
	q := zeros(3, 2)
	k := mat(3, 1, 5, 6, 7)

	v := mat(3, 1, 1, 2, 6)
	dst := zeros(3, 2)
	a := kernels.Attention{Heads: 2, KVHeads: 1, HeadDim: 1, Scale: 1}
	o.Attention(dst, q, k, v, a)
	near(t, "causal means", dst, 1, 1, 1.5, 1.5, 3, 3)
	a.Window = 2

	o.Attention(dst, q, k, v, a)
	near(t, "means of two", dst, 1, 1, 1.5, 1.5, 4, 4)
	one := mat(1, 2, 1, 0)
	dst = zeros(1, 2)
	o.Attention(dst, one, k, v, kernels.Attention{Heads: 2, KVHeads: 1, HeadDim: 1, Scale: 1, Pos: 1})
	near(t, "a step of generation", dst, (1*math.Exp(5)+2*math.Exp(6))/(math.Exp(5)+math.Exp(6)), 1.5)
}

func TestRopeByHand(t *testing.T) {
	o := ref.New().Ops()
	cos, sin := mat(2, 2, 1, 1, 0, -1), mat(2, 2, 0, 0, 1, 0)
	x := mat(1, 4, 1, 2, 3, 4)
	o.RoPE(x, kernels.Rope{Heads: 1, HeadDim: 4, Dim: 4, Cos: cos, Sin: sin, Pos: []int32{1}})
	near(t, "halves", x, -3, -2, 1, -4)
	x = mat(1, 4, 1, 2, 3, 4)
	o.RoPE(x, kernels.Rope{Heads: 1, HeadDim: 4, Dim: 4, Cos: cos, Sin: sin, Pos: []int32{1}, Interleaved: true})
	near(t, "pairs", x, -2, 1, -3, -4)
}

// TestConvertRoundsOnce: a float64 just above a tie of the 16-bit types goes up, though float32 would make it the tie.
func TestConvertRoundsOnce(t *testing.T) {
	o := ref.New().Ops()
	for _, c := range []struct {
		d    kernels.DType
		x    float64
		want uint16
	}{
		{kernels.BF16, 1 + 0x1p-8, 0x3f80},
		{kernels.BF16, 1 + 0x1p-8 + 0x1p-40, 0x3f81},
		{kernels.F16, 1 + 0x1p-11 + 0x1p-40, 0x3c01},
		{kernels.F16, 1 + 0x3p-11 - 0x1p-40, 0x3c01},
		{kernels.F16, 65520 - 1e-9, 0x7bff},
		{kernels.BF16, 1e300, 0x7f80},
	} {
		src, dst := kernels.NewHost(kernels.F64, 1), kernels.NewHost(c.d, 1)
		src.F64()[0] = c.x
		o.Convert(kernels.MatOf(dst, 1, 1), kernels.MatOf(src, 1, 1))
		if dst.U16()[0] != c.want {
			t.Errorf("%v becomes %s %#04x, want %#04x", c.x, c.d, dst.U16()[0], c.want)
		}
	}
}

// TestConvertFromF64IsNearest: of the three candidates around the result none is nearer.
func TestConvertFromF64IsNearest(t *testing.T) {
	o := ref.New().Ops()
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float64Range(-60000, 60000).Draw(t, "x")
		src, dst := kernels.NewHost(kernels.F64, 1), kernels.NewHost(kernels.F16, 1)
		src.F64()[0] = x
		o.Convert(kernels.MatOf(dst, 1, 1), kernels.MatOf(src, 1, 1))

		h := dst.U16()[0]
		off := math.Abs(float64(kernels.FromF16(h)) - x)
		for _, other := range []uint16{h - 1, h + 1} {
			if d := math.Abs(float64(kernels.FromF16(other)) - x); d < off {
				t.Fatalf("%v becomes %v; %v is nearer", x, kernels.FromF16(h), kernels.FromF16(other))
			}
		}
	})
}

func TestSelectionByHand(t *testing.T) {
	o := ref.New().Ops()
	x := mat(2, 4, 1, -1, 3, 0, -2, 2, 2, 5)
	mask := kernels.MatOf(kernels.NewHost(kernels.U8, 8), 2, 4)
	check := func(what string, want ...uint8) {
		t.Helper()
		for i, w := range want {
			if mask.Buf.U8()[i] != w {
				t.Errorf("%s: mask is %v, want %v", what, mask.Buf.U8(), want)
				return
			}
		}
	}

	o.SelectRows(mask, kernels.Score{X: x}, 2)
	check("two of a row", 0, 1, 1, 0, 0, 0, 1, 1)
	o.SelectAll(mask, kernels.Score{X: x}, 1)
	check("up to the score of rank 1", 0, 0, 1, 0, 1, 1, 1, 1)
	o.SelectAll(mask, kernels.Score{X: x}, -1)
	check("nothing", 1, 1, 1, 1, 1, 1, 1, 1)
	o.SelectNM(mask, kernels.Score{X: x, Raw: true}, 1, 2)
	check("one of two, with sign", 1, 0, 1, 0, 0, 1, 0, 1)
	o.SelectRows(mask, kernels.Score{X: x, Col: mat(1, 4, 1, 10, 0, 1)}, 1)
	check("with a factor", 1, 1, 0, 1, 1, 1, 0, 1)
}

func TestTransfersAreChecked(t *testing.T) {
	d := ref.New()
	b, err := d.Alloc(kernels.F32, 4)
	if err != nil {
		t.Fatal(err)
	}

	for _, err := range []error{
		d.Upload(b, 2, make([]byte, 9)), d.Upload(b, -1, nil), d.Upload(b, 1<<62, make([]byte, 4)),
		d.Download(make([]byte, 17), b, 0), d.Download(nil, b, 5),
	} {
		if err == nil {
			t.Error("a transfer outside the buffer was accepted")
		}
	}

	for _, n := range []int{-1, math.MaxInt} {
		if _, err := d.Alloc(kernels.F64, n); err == nil {
			t.Errorf("%d elements were allocated", n)
		}
	}
}
