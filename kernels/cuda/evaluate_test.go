//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
)

// floats makes n values in ±1 from a seed.
func floats(seed uint64, n int) []float32 {
	rng, out := rand.New(rand.NewPCG(seed, 1)), make([]float32, n)
	for i := range out {
		out[i] = 2*rng.Float32() - 1
	}
	return out
}

// read downloads a dense F32 matrix.
func read(t *testing.T, d *cuda.Device, m kernels.Mat) []float32 {
	t.Helper()
	host := kernels.NewHost(kernels.F32, m.Len())
	if err := d.Download(host.Bytes(), m.Buf, m.Off); err != nil {
		t.Fatal(err)
	}
	return host.F32()
}

// TestFormula computes statistics, scores and masks of |w|·√x, normalised over the matrix, and compares them
// with plain loops.
func TestFormula(t *testing.T) {
	d := open(t, "")
	const rows, cols = 13, 301
	w, x := floats(1, rows*cols), floats(2, cols)
	in := cuda.FormulaInputs{
		Matrices: []kernels.Mat{alloc(t, d, rows, cols, kernelBytes(w))},
		Vectors:  []kernels.Mat{alloc(t, d, 1, cols, kernelBytes(x))},
		Stats:    alloc(t, d, 1, 8, nil),
	}

	raw := cuda.Formula{{Op: cuda.LoadMatrix}, {Op: cuda.LoadCol}, {Op: cuda.Root, A: 1}, {Op: cuda.Times, A: 0, B: 2}}
	value := func(i int) float64 { return math.Abs(float64(w[i])) * math.Sqrt(math.Abs(float64(x[i%cols]))) }
	lo := math.Inf(1)

	hi := math.Inf(-1)
	sum := 0.0
	square := 0.0
	for i := range w {
		v := value(i)
		lo, hi, sum, square = min(lo, v), max(hi, v), sum+v, square+v*v
	}

	n := float64(len(w))

	for i, kind := range []cuda.StatKind{cuda.StatRange, cuda.StatMoments, cuda.StatNorm, cuda.StatTotal} {
		if err := d.Gather(rows, cols, raw, in, kind, i); err != nil {
			t.Fatal(err)
		}
	}

	want := []float64{
		lo, hi - lo, sum / n, math.Sqrt((square - sum*sum/n) / (n - 1)), 0, math.Sqrt(square), 0,
		sum + 1e-8,
	}
	for i, got := range read(t, d, in.Stats) {
		if math.Abs(float64(got)-want[i]) > 1e-6*(1+math.Abs(want[i])) { // values and sums are rounded to float32
			t.Errorf("number %d is %v, want %v", i, got, want[i])
		}
	}

	score := append(slices.Clone(raw), cuda.FormulaInstr{Op: cuda.Affine, A: 3, Arg: 1})
	out := alloc(t, d, rows, cols, nil)
	if err := d.Score(out, score, in); err != nil {
		t.Fatal(err)
	}

	values := read(t, d, out)
	for i, got := range values {
		// a few roundings, divided by a deviation of 0.2
		if v := (value(i) - want[2]) / want[3]; math.Abs(float64(got)-v) > 4e-6 {
			t.Fatalf("score %d is %v, want %v", i, got, v)
		}
	}

	fused := masks(t, d, rows, cols)
	apart := masks(t, d, rows, cols)
	early := masks(t, d, rows, cols)
	if err := d.SelectFormula(early, score, in, cols/2); err != nil {
		t.Fatal(err)
	}

	d.CompileAfter(0)
	if err := d.SelectFormula(fused, score, in, cols/2); err != nil {
		t.Fatal(err)
	}

	d.Ops().SelectRows(apart, kernels.Score{X: out, Raw: true}, cols/2)
	if want := bits(t, d, apart); !slices.Equal(bits(t, d, fused), want) || !slices.Equal(bits(t, d, early), want) {
		t.Error("the fused selection gives another mask than scores and SelectRows")
	}
}

func masks(t *testing.T, d *cuda.Device, rows, cols int) kernels.Mat {
	t.Helper()
	b, err := d.Alloc(kernels.U8, rows*cols)
	if err != nil {
		t.Fatal(err)
	}
	return kernels.MatOf(b, rows, cols)
}

func bits(t *testing.T, d *cuda.Device, m kernels.Mat) []byte {
	t.Helper()
	out := make([]byte, m.Len())
	if err := d.Download(out, m.Buf, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFormulaVectors: sums of rows and columns.
func TestFormulaVectors(t *testing.T) {
	d := open(t, "")
	const rows, cols = 5, 70
	w := floats(3, rows*cols)

	in := cuda.FormulaInputs{Matrices: []kernels.Mat{alloc(t, d, rows, cols, kernelBytes(w))}}
	f := cuda.Formula{{Op: cuda.LoadMatrix}}
	byRow, byCol := alloc(t, d, 1, rows, nil), alloc(t, d, 1, cols, nil)
	if err := errors.Join(d.GatherRows(byRow, cols, f, in, cuda.StatTotal),
		d.GatherCols(byCol, rows, f, in, cuda.StatNorm)); err != nil {
		t.Fatal(err)
	}

	sums, norms := make([]float64, rows), make([]float64, cols)
	for i, v := range w {
		sums[i/cols] += math.Abs(float64(v))
		norms[i%cols] += float64(v) * float64(v)
	}

	for i, got := range read(t, d, byRow) {
		if math.Abs(float64(got)-sums[i]) > 1e-6*sums[i] { // one rounding of a float64 sum
			t.Errorf("row %d: %v, want %v", i, got, sums[i])
		}
	}

	for j, got := range read(t, d, byCol) {
		if v := math.Sqrt(norms[j]); math.Abs(float64(got)-v) > 1e-6*v {
			t.Errorf("column %d: %v, want %v", j, got, v)
		}
	}
}

// TestConstantsHaveNoMoments: the deviation of a constant is exactly 0, so that what is divided by it is NaN as
// on the host.
func TestConstantsHaveNoMoments(t *testing.T) {
	d := open(t, "")
	w := make([]float32, 900)
	for i := range w {
		w[i] = 0.1
	}

	in := cuda.FormulaInputs{
		Matrices: []kernels.Mat{alloc(t, d, 9, 100, kernelBytes(w))},
		Stats:    alloc(t, d, 1, 2, nil),
	}
	if err := d.Gather(9, 100, cuda.Formula{{Op: cuda.LoadMatrix}}, in, cuda.StatMoments, 0); err != nil {
		t.Fatal(err)
	}
	if got := read(t, d, in.Stats); got[0] != 0.1 || got[1] != 0 {
		t.Errorf("mean and deviation %v", got)
	}
}

// TestFormulaRefuses: what cannot be compiled is an error before anything runs.
func TestFormulaRefuses(t *testing.T) {
	d := open(t, "")
	in := cuda.FormulaInputs{Matrices: []kernels.Mat{alloc(t, d, 2, 4, nil)}}
	out := alloc(t, d, 2, 4, nil)
	for what, f := range map[string]cuda.Formula{
		"nothing":               {},
		"an unknown operation":  {{Op: 99}},
		"no such matrix":        {{Op: cuda.LoadMatrix, Arg: 1}},
		"no such vector":        {{Op: cuda.LoadCol}},
		"no such statistic":     {{Op: cuda.LoadMatrix}, {Op: cuda.Affine}},
		"an operand from later": {{Op: cuda.LoadMatrix}, {Op: cuda.Plus, A: 0, B: 1}},
		"too long":              make(cuda.Formula, 300),
	} {
		if err := d.Score(out, f, in); !errors.Is(err, cuda.ErrFormula) {
			t.Errorf("%s: error %v", what, err)
		}
	}
}
