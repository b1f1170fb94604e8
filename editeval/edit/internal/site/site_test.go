package site

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// TestChunks: every entry is in one run, in order, no run is empty, and only a single entry is larger than a pass.
func TestChunks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for n := range 40 {
		list := make([]int, n)
		for i := range list {
			list[i] = random.IntN(PassTokens * 5 / 4)
		}

		at := 0
		runs := Chunks(list, func(v int) int { return v })
		for k, c := range runs {
			if c[0] != at || c[1] <= c[0] {
				t.Fatalf("%d entries: runs %v", n, runs)
			}

			at = c[1]
			sum := 0
			for _, v := range list[c[0]:c[1]] {
				sum += v
			}
			if sum > PassTokens && c[1]-c[0] > 1 {
				t.Errorf("run %v has %d tokens", c, sum)
			}
			if k+1 < len(runs) && sum+list[c[1]] <= PassTokens {
				t.Errorf("run %v has room for the next entry", c)
			}
		}

		if at != n {
			t.Errorf("%d entries: runs %v", n, runs)
		}
	}
}

// TestRows: what is put, added and changed in a row of a part of a matrix stays within it.
func TestRows(t *testing.T) {
	whole := kernels.MatOf(kernels.NewHost(kernels.F32, 12), 3, 4)
	for i := range whole.Buf.F32() {
		whole.Buf.F32()[i] = float32(i)
	}

	r := Rows{ref.New()}
	part := whole.ColRange(1, 3) // 1 2 | 5 6 | 9 10
	if err := r.Put(part, 1, []float64{50, 60}); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(part, 1, []float64{1, -1}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Get(part, 1); err != nil || !slices.Equal(got, []float64{51, 59}) {
		t.Errorf("%v %v", got, err)
	}

	err := r.Each(part, func(i int, row []float64) {
		for j := range row {
			row[j] += float64(100 * i)
		}
	})
	want := []float32{0, 1, 2, 3, 4, 151, 159, 7, 8, 209, 210, 11}
	if err != nil || !slices.Equal(whole.Buf.F32(), want) {
		t.Errorf("%v %v, want %v", whole.Buf.F32(), err, want)
	}
}

// TestGroupMean: groups count alike, however many vectors each has.
func TestGroupMean(t *testing.T) {
	got := GroupMean([][]float64{{4, 0}, {1, 2}, {3, 6}}, []int{1, 2})
	if !slices.Equal(got, []float64{3, 2}) {
		t.Errorf("%v, want [3 2]", got)
	}
}

// TestVectors: 3, 4, 5 is exact, and a number that is none is found wherever it stands.
func TestVectors(t *testing.T) {
	a, b := []float64{3, 4}, []float64{3, 0}
	if Norm(a) != 5 || Distance(a, b) != 4 || Dot(a, b) != 9 {
		t.Errorf("norm %g, distance %g, dot %g", Norm(a), Distance(a, b), Dot(a, b))
	}
	if got := Plus(a, -2, b); !slices.Equal(got, []float64{-3, 4}) || !slices.Equal(a, []float64{3, 4}) {
		t.Errorf("%v, of %v", got, a)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if Finite([]float64{1, bad}) || Finite([]float64{bad, 1}) {
			t.Errorf("%g is finite", bad)
		}
	}
	if !Finite([]float64{1, math.MaxFloat64}) {
		t.Error("numbers are not finite")
	}
}

// TestAdamConstantGradient: with a gradient that stays, both means are it after their correction, and every step is the
// rate, whatever the size of the gradient; 1e-7 has room for ε against the least gradient here.
func TestAdamConstantGradient(t *testing.T) {
	a := &Adam{Lr: 0.25}
	x := []float64{1, 1, 1}
	for range 20 {
		a.Step(x, []float64{3, -0.5, 1000})
	}
	for i, want := range []float64{-4, 6, -4} {
		if math.Abs(x[i]-want) > 5*1e-7 {
			t.Errorf("value %d: %g, want %g", i, x[i], want)
		}
	}
}
