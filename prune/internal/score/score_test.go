package score

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

func mat(rows, cols int, at func(i, j int) float32) kernels.Mat {
	m := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	for i := range rows {
		for j := range cols {
			m.RowF32(i)[j] = at(i, j)
		}
	}
	return m
}

// TestScores: magnitudes times factors, whatever type the weights have; signed ones as they are.
func TestScores(t *testing.T) {
	x := mat(3, 4, func(i, j int) float32 { return float32(i*4+j) - 5 })
	col := mat(1, 4, func(_, j int) float32 { return float32(j) + 0.5 })
	half := kernels.MatOf(kernels.NewHost(kernels.BF16, 12), 3, 4)
	for i, v := range x.Buf.F32() {
		half.Buf.U16()[i] = kernels.ToBF16(v)
	}

	for name, c := range map[string]struct {
		score  kernels.Score
		factor func(j int) float32
		signed bool
	}{
		"plain":   {kernels.Score{X: x}, func(int) float32 { return 1 }, false},
		"factors": {kernels.Score{X: x, Col: col}, func(j int) float32 { return float32(j) + 0.5 }, false},
		"bf16":    {kernels.Score{X: half, Col: col}, func(j int) float32 { return float32(j) + 0.5 }, false},
		"raw":     {kernels.Score{X: x, Raw: true}, func(int) float32 { return 1 }, true},
	} {
		h, err := New(ref.New(), c.score)
		if err != nil {
			t.Fatal(err)
		}

		sum := 0.0
		above := int64(0)
		for k, got := range h.All() {
			want := x.Buf.F32()[k]
			if !c.signed {
				want = max(want, -want)
			}
			want *= c.factor(k % 4)
			if got != want {
				t.Errorf("%s: score %d is %g, want %g", name, k, got, want)
			}

			sum += float64(want)
			if want > 2 {
				above++
			}
		}

		for _, threads := range []int{1, 3} { // quarters and their sums are exact
			h.Threads = threads
			if h.Sum() != sum || h.Above(2) != above {
				t.Errorf("%s, %d threads: sum %g, %d above; want %g, %d", name, threads, h.Sum(), h.Above(2), sum,
					above)
			}
		}
	}
}

// TestRelative is the formula of RIA on a matrix of powers of two, where it is exact: rows and columns sum to 4.
func TestRelative(t *testing.T) {
	w := mat(2, 2, func(i, j int) float32 { return []float32{1, -3, 3, 1}[i*2+j] })
	Relative(w, []float32{1, 2}, 2)
	want := []float32{0.5, 3, 1.5, 1}
	if !slices.Equal(w.Buf.F32(), want) {
		t.Errorf("%v, want %v", w.Buf.F32(), want)
	}

	w = mat(2, 2, func(i, j int) float32 { return float32(i) * float32(j) })
	Relative(w, []float32{1, 1}, 1)
	if want = []float32{0, 0, 0, 2}; !slices.Equal(w.Buf.F32(), want) {
		t.Errorf("with zeros: %v, want %v", w.Buf.F32(), want)
	}
}

// TestShareMask: of every row the lowest scores go whose sum is no more than alpha of the row's, and no fewer; what
// equals the highest of them goes too.
func TestShareMask(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	x := mat(40, 100, func(i, j int) float32 { return float32(random.ExpFloat64()) })
	for j := range 10 { // ties, in one row
		x.RowF32(3)[j] = 0.25
	}

	keep := kernels.MatOf(kernels.NewHost(kernels.U8, x.Len()), x.Rows, x.Cols)
	alpha, err := ShareMask(keep, Of(x, 3), 0.5)
	if err != nil {
		t.Fatal(err)
	}

	gone := 0
	for i := range x.Rows {
		total := 0.0
		lost := 0.0
		highest := float32(-1)
		least := float32(math.MaxFloat32)
		for j, v := range x.RowF32(i) {
			total += float64(v)
			if keep.RowU8(i)[j] == 0 {
				lost += float64(v)
				highest = max(highest, v)
				gone++
			} else {
				least = min(least, v)
			}
		}

		ties := 0
		for _, v := range x.RowF32(i) {
			if v == highest {
				ties++
			}
		}

		if highest >= least {
			t.Errorf("row %d: %g went and %g stayed", i, highest, least)
		}
		limit := alpha * total // sums of 100 elements, whose roundings 1e-12 has room for
		if lost-float64(ties-1)*float64(highest) > limit*(1+1e-12) || lost+float64(least) < limit*(1-1e-12) {
			t.Errorf("row %d: %g of %g went, alpha %g, the next is %g", i, lost, total, alpha, least)
		}
	}

	// 0.001 is what the bisection is content with, or an interval of alpha as short as that, within which a row of 100
	// loses 1/1000 of its total more, less than one element of each row in ten
	if got := float64(gone) / float64(x.Len()); math.Abs(got-0.5) > 0.005 {
		t.Errorf("sparsity %g", got)
	}
}

// TestShareMaskEdges: nothing goes for a sparsity of 0, nor of a row whose lowest score is most of it.
func TestShareMaskEdges(t *testing.T) {
	x := mat(2, 3, func(i, j int) float32 { return float32(1 + i*j) })
	keep := kernels.MatOf(kernels.NewHost(kernels.U8, 6), 2, 3)
	if alpha, err := ShareMask(keep, Of(x, 1), 0); err != nil || alpha != 0 || slices.Contains(keep.Buf.U8(), 0) {
		t.Errorf("sparsity 0: %v, alpha %g, %v", keep.Buf.U8(), alpha, err)
	}

	one := mat(2, 1, func(i, _ int) float32 { return float32(i + 1) })
	keep = kernels.MatOf(kernels.NewHost(kernels.U8, 2), 2, 1)
	if _, err := ShareMask(keep, Of(one, 1), 0.5); err != nil || slices.Contains(keep.Buf.U8(), 0) {
		t.Errorf("rows of one element: %v, %v", keep.Buf.U8(), err)
	}

	x.RowF32(1)[2] = -1
	if _, err := ShareMask(keep, Of(x, 1), 0.5); !errors.Is(err, ErrNegative) {
		t.Errorf("a negative score: %v", err)
	}
}
