package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// difference is the step of finite differences. Values are multiples of it divided by 16, so that steps are exact.
const difference = 1.0 / 32

// random is a matrix of values in ±1, none nearer to 0 than two steps, where ReLU has a kink.
func random(r *rand.Rand, rows, cols int) kernels.Mat {
	m := zeros(rows, cols)
	for i := range m.Buf.F32() {
		v := float32(2*difference + float64(1+r.IntN(448))*difference/16)
		if r.IntN(2) == 0 {
			v = -v
		}
		m.Buf.F32()[i] = v
	}
	return m
}

// product is Σ a·b.
func product(a, b kernels.Mat) float64 {
	sum := 0.0
	for i := range a.Rows {
		for j, v := range a.RowF32(i) {
			sum += float64(v) * float64(b.RowF32(i)[j])
		}
	}
	return sum
}

// gradient compares got with finite differences of loss over the elements of x, which loss reads: the
// five-point formula, whose truncation is of the order of step⁴ = 1e-6 times a fifth derivative, over results
// rounded to float32, half a unit of 6e-8 divided by the step for each of a few values.
func gradient(t *testing.T, what string, got, x kernels.Mat, loss func() float64) {
	t.Helper()

	for i := range x.Rows {
		for j := range x.Cols {
			e := &x.RowF32(i)[j]
			old := *e
			at := func(steps float32) float64 {
				*e = old + steps*difference
				defer func() { *e = old }()
				return loss()
			}

			want := (8*(at(1)-at(-1)) - (at(2) - at(-2))) / (12 * difference)
			if g := float64(got.RowF32(i)[j]); math.Abs(g-want) > 3e-5*(1+math.Abs(want)) {
				t.Errorf("%s: element (%d, %d) is %v, finite differences give %v", what, i, j, g, want)
			}
		}
	}
}

func TestNormGradients(t *testing.T) {
	r, o := rand.New(rand.NewPCG(1, 1)), ref.New().Ops()
	const rows, cols, eps = 3, 7, 0.25
	x := random(r, rows, cols)
	w := random(r, 1, cols)
	b := random(r, 1, cols)

	dy := random(r, rows, cols)
	y := zeros(rows, cols)
	for _, plusOne := range []bool{false, true} {
		loss := func() float64 {
			o.RMSNorm(y, x, w, eps, plusOne)
			return product(dy, y)
		}

		dx, dw := zeros(rows, cols), zeros(1, cols)
		o.RMSNormBackward(dx, dw, dy, x, w, eps, plusOne)
		gradient(t, "RMSNorm input", dx, x, loss)
		gradient(t, "RMSNorm weight", dw, w, loss)
	}

	loss := func() float64 {
		o.LayerNorm(y, x, w, b, eps)
		return product(dy, y)
	}

	dx := zeros(rows, cols)
	dw := zeros(1, cols)
	db := zeros(1, cols)
	o.LayerNormBackward(dx, dw, db, dy, x, w, eps)
	gradient(t, "LayerNorm input", dx, x, loss)
	gradient(t, "LayerNorm weight", dw, w, loss)
	gradient(t, "LayerNorm bias", db, b, loss)
}

// TestNormGradientsAreAdded: what a destination held stays in the sum.
func TestNormGradientsAreAdded(t *testing.T) {
	r, o := rand.New(rand.NewPCG(2, 1)), ref.New().Ops()
	x := random(r, 2, 5)
	w := random(r, 1, 5)
	dy := random(r, 2, 5)

	once := zeros(2, 5)
	twice := zeros(2, 5)
	dw := zeros(1, 5)
	dw2 := zeros(1, 5)
	o.RMSNormBackward(once, dw, dy, x, w, 1e-5, false)
	for range 2 {
		o.RMSNormBackward(twice, dw2, dy, x, w, 1e-5, false)
	}

	o.Add(once, once, once, 1)
	o.Add(dw, dw, dw, 1)

	for i := range 2 {
		for j, v := range twice.RowF32(i) {
			if math.Abs(float64(v-once.RowF32(i)[j])) > 1e-6 {
				t.Errorf("dx (%d, %d) is %v after two calls, want %v", i, j, v, once.RowF32(i)[j])
			}
		}
	}

	for j, v := range dw2.RowF32(0) {
		if math.Abs(float64(v-dw.RowF32(0)[j])) > 1e-6 {
			t.Errorf("dw %d is %v after two calls, want %v", j, v, dw.RowF32(0)[j])
		}
	}
}

func TestElementwiseGradients(t *testing.T) {
	r, o := rand.New(rand.NewPCG(3, 1)), ref.New().Ops()
	const rows, cols = 4, 9
	x := random(r, rows, cols)
	u := random(r, rows, cols)

	dy := random(r, rows, cols)
	y := zeros(rows, cols)
	dx, du := zeros(rows, cols), zeros(rows, cols)
	for f := kernels.SiLU; f <= kernels.ReLU; f++ {
		o.ActivateBackward(dx, dy, x, f)
		gradient(t, "Activate", dx, x, func() float64 {
			o.Activate(y, x, f)
			return product(dy, y)
		})

		gate := func() float64 {
			o.Gate(y, x, u, f)
			return product(dy, y)
		}

		o.GateBackward(dx, du, dy, x, u, f)
		gradient(t, "Gate, gate", dx, x, gate)
		gradient(t, "Gate, up", du, u, gate)
	}

	cap := func() float64 {
		o.Softcap(y, x, 2)
		return product(dy, y)
	}

	cap()
	o.SoftcapBackward(dx, dy, y, 2)
	gradient(t, "Softcap", dx, x, cap)
	soft := func() float64 {
		o.Softmax(y, x)
		return product(dy, y)
	}

	soft()
	o.SoftmaxBackward(dx, dy, y)
	gradient(t, "Softmax", dx, x, soft)
}

func TestCrossEntropyGradient(t *testing.T) {
	r, o := rand.New(rand.NewPCG(4, 1)), ref.New().Ops()
	x := random(r, 4, 6)
	dx := zeros(4, 6)
	labels := []int32{0, 5, -1, 2}
	loss, again := kernels.MatOf(kernels.NewHost(kernels.F64, 4), 1, 4),
		kernels.MatOf(kernels.NewHost(kernels.F64, 4), 1, 4)
	o.CrossEntropyBackward(dx, loss, x, labels, 0.5)
	gradient(t, "CrossEntropy", dx, x, func() float64 {
		o.CrossEntropy(again, x, labels)
		sum := 0.0
		for _, v := range again.Buf.F64() {
			sum += 0.5 * v
		}
		return sum
	})

	o.CrossEntropy(again, x, labels)

	for i, v := range again.Buf.F64() {
		if v != loss.Buf.F64()[i] {
			t.Errorf("loss %d is %v beside the gradient and %v alone", i, loss.Buf.F64()[i], v)
		}
	}
}

func TestGatherGradient(t *testing.T) {
	r, o := rand.New(rand.NewPCG(5, 1)), ref.New().Ops()
	table := random(r, 3, 4)
	dy := random(r, 5, 4)

	y := zeros(5, 4)
	dtable := zeros(3, 4)
	ids := []int32{2, 0, 2, 2, 0}
	o.GatherBackward(dtable, dy, ids, 0.75)
	gradient(t, "Gather", dtable, table, func() float64 {
		o.Gather(y, table, ids, 0.75)
		return product(dy, y)
	})
}

// TestInverseRotation: the transpose of a rotation is its inverse.
func TestInverseRotation(t *testing.T) {
	r, o := rand.New(rand.NewPCG(6, 1)), ref.New().Ops()
	cos, sin := zeros(4, 3), zeros(4, 3)
	for i := range cos.Buf.F32() {
		s, c := math.Sincos(float64(i))
		cos.Buf.F32()[i], sin.Buf.F32()[i] = float32(c), float32(s)
	}

	for _, interleaved := range []bool{false, true} {
		spec := kernels.Rope{
			Heads: 2, HeadDim: 7, Dim: 6, Cos: cos, Sin: sin, Pos: []int32{3, 1, 0},
			Interleaved: interleaved,
		}
		x, dy := random(r, 3, 14), random(r, 3, 14)
		dx := mat(3, 14, append([]float32(nil), dy.Buf.F32()...)...)
		inverse := spec
		inverse.Inverse = true
		o.RoPE(dx, inverse)
		gradient(t, "RoPE", dx, x, func() float64 {
			y := mat(3, 14, append([]float32(nil), x.Buf.F32()...)...)
			o.RoPE(y, spec)
			return product(dy, y)
		})
	}
}

func TestAttentionGradients(t *testing.T) {
	r, o := rand.New(rand.NewPCG(7, 1)), ref.New().Ops()
	for _, a := range []kernels.Attention{
		{Heads: 1, KVHeads: 1, HeadDim: 3},
		{Heads: 4, KVHeads: 2, HeadDim: 2, Pos: 2, QHeadStride: 3, KVHeadStride: 4},
		{Heads: 2, KVHeads: 2, HeadDim: 3, Window: 2},
		{Heads: 2, KVHeads: 1, HeadDim: 3, Pos: 1, Window: 3, Softcap: 1.5},
	} {
		const tq, extra = 5, 1
		a.Scale = 0.75
		tk := a.Pos + tq + extra

		qStride := max(a.QHeadStride, a.HeadDim)
		kvStride := max(a.KVHeadStride, a.HeadDim)
		q := random(r, tq, a.Heads*qStride)
		k := random(r, tk, a.KVHeads*kvStride)

		v := random(r, tk, a.KVHeads*kvStride)
		dq := zeros(q.Rows, q.Cols)
		dk := zeros(k.Rows, k.Cols)
		dv := zeros(v.Rows, v.Cols)

		dout, out := random(r, tq, a.Heads*a.HeadDim), zeros(tq, a.Heads*a.HeadDim)
		a.LSE = zeros(tq, a.Heads)
		loss := func() float64 {
			o.Attention(out, q, k, v, a)
			return product(dout, out)
		}

		loss()
		o.AttentionBackward(dq, dk, dv, dout, q, k, v, out, a)
		gradient(t, "Attention, q", dq, q, loss)
		gradient(t, "Attention, k", dk, k, loss)
		gradient(t, "Attention, v", dv, v, loss)
	}
}

func TestStatisticsByHand(t *testing.T) {
	o := ref.New().Ops()
	acc := mat(1, 2, 10, 20)
	o.ColSum(acc, mat(3, 2, 1, 2, 3, 4, 5, 6))
	near(t, "ColSum", acc, 19, 32)
	wide := kernels.MatOf(kernels.NewHost(kernels.F64, 2), 1, 2)
	o.ColSum(wide, mat(2, 2, 1e8, 1, 1, 2))
	if got := wide.Buf.F64(); got[0] != 1e8+1 || got[1] != 3 {
		t.Errorf("ColSum in float64 is %v", got)
	}

	square := mat(2, 2, 1, 1, 1, 1)
	o.AddSquare(square, mat(2, 2, 1, 2, -3, 0), 2)
	near(t, "AddSquare", square, 5, 17, 37, 1)
	lse := zeros(2, 1)
	o.Attention(zeros(2, 1), mat(2, 1, 1, 1), mat(2, 1, 3, 4), zeros(2, 1),
		kernels.Attention{Heads: 1, KVHeads: 1, HeadDim: 1, Scale: 1, LSE: lse})
	near(t, "LSE", lse, 3, math.Log(math.Exp(3)+math.Exp(4)))
}
