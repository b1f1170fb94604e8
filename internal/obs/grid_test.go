package obs

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
)

// steps is a grid of even steps for each group of a row, whose size follows from the group's largest weight.
type steps struct {
	group int

	mu    sync.Mutex
	sizes map[[2]int]float32
	fixed int
}

func (s *steps) Fix(i, lo int, w []float32) {
	largest := float32(0)
	for _, v := range w {
		largest = max(largest, v, -v)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.fixed++
	s.sizes[[2]int{i, lo}] = largest/7 + 1e-3
}

func (s *steps) Round(i, j int, w float32) float32 {
	lo := 0
	if s.group > 0 {
		lo = j / s.group * s.group
	}

	s.mu.Lock()
	size := s.sizes[[2]int{i, lo}]
	s.mu.Unlock()
	return float32(math.RoundToEven(float64(w/size))) * size
}

// factor is an upper triangular matrix with a diagonal away from 0.
func factor(rng *rand.Rand, cols int) kernels.Mat {
	u := random(cols, cols)
	for i := range cols {
		for c, row := 0, u.RowF32(i); c < cols; c++ {
			if row[c] *= .05; c == i {
				row[c] = 1 + rng.Float32()
			}
		}
	}
	return u
}

// The sweep with a grid equals the plain one, column by column in float64: scales that differ in the last bit may
// round a weight near the middle of a step to the other side, after which all to its right differs, so a row is
// compared up to the first weight that a plain row has within 1e-3 of a step's middle. Every value lies on the grid; a
// mask's zeros are zeros.
func TestGridEqualsPlain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		rows, cols := rapid.IntRange(1, 5).Draw(rt, "rows"), rapid.IntRange(1, 150).Draw(rt, "cols")
		group := rapid.SampledFrom([]int{0, 16, 32, 48, 128, 256}).Draw(rt, "group")
		g := &steps{group: group, sizes: map[[2]int]float32{}}
		j := Job{
			W: random(rows, cols), U: factor(rng, cols), Grid: g, Group: group, Threads: 2, Mul: mul,
			Width: rapid.SampledFrom([]int{0, 16, 64}).Draw(rt, "width"),
		}
		if rapid.Bool().Draw(rt, "masked") {
			j.Mask = kernels.MatOf(kernels.NewHost(kernels.U8, rows*cols), rows, cols)
			for i := range j.Mask.Buf.U8() {
				j.Mask.Buf.U8()[i] = uint8(rng.IntN(2))
			}
		}

		w := linalg.FromMat(j.W)
		if _, err := j.Run(); err != nil {
			rt.Fatal(err)
		}

		groups := 1
		if group > 0 {
			groups = (cols + group - 1) / group
		}
		if g.fixed != rows*groups {
			rt.Fatalf("scales were chosen %d times, want %d", g.fixed, rows*groups)
		}

		for i := range rows {
			compareRow(rt, j, g, w, i)
		}
	})
}

// compareRow rounds a row column by column and compares.
func compareRow(rt *rapid.T, j Job, g *steps, w linalg.Matrix, i int) {
	got := j.W.RowF32(i)
	for c := range w.Cols {
		lo := 0
		if g.group > 0 {
			lo = c / g.group * g.group
		}

		size := float64(g.sizes[[2]int{i, lo}])
		v := w.At(i, c)
		target := math.RoundToEven(v/size) * size
		if !j.Mask.IsZero() && j.Mask.RowU8(i)[c] == 0 {
			target = 0
		} else if away := math.Abs(v/size - math.Floor(v/size) - 0.5); away < 1e-3 {
			return
		}
		if math.Abs(float64(got[c])-target) > 1e-4*w.MaxAbs() {
			rt.Fatalf("weight [%d, %d]: %g, want %g", i, c, got[c], target)
		}

		e := (v - target) / float64(j.U.RowF32(c)[c])
		for k := c; k < w.Cols; k++ {
			w.Set(i, k, w.At(i, k)-e*float64(j.U.RowF32(c)[k]))
		}
	}
}

// Rounding whose errors are made up for costs less of the outputs than rounding alone, on correlated inputs.
func TestSweepHelps(t *testing.T) {
	const cols, rows, tokens = 96, 16, 400
	x := random(tokens, cols)
	for i := range tokens {
		row := x.RowF32(i)
		for c := 1; c < cols; c++ {
			row[c] = 0.9*row[c-1] + 0.4*row[c]
		}
	}

	h := linalg.FromMat(x)
	gram := linalg.New(cols, cols)
	linalg.Solver{}.Mul(gram, h, h, linalg.Product{TransA: true})
	work := gram.Clone()
	u := kernels.MatOf(kernels.NewHost(kernels.F32, cols*cols), cols, cols)
	view := kernels.MatOf(kernels.NewHost(kernels.F64, cols*cols), cols, cols)
	copy(view.Buf.F64(), work.Data)
	if _, err := (linalg.Solver{}).DampedInverseFactor(u, view, 0.01); err != nil {
		t.Fatal(err)
	}

	dense := random(rows, cols)
	loss := func(w kernels.Mat) (sum float64) {
		for i := range rows {
			for a := range cols {
				da := float64(w.RowF32(i)[a] - dense.RowF32(i)[a])
				for b := range cols {
					sum += da * gram.At(a, b) * float64(w.RowF32(i)[b]-dense.RowF32(i)[b])
				}
			}
		}
		return sum
	}

	alone, swept := random(rows, cols), random(rows, cols)
	g := &steps{sizes: map[[2]int]float32{}}
	for i := range rows {
		g.Fix(i, 0, alone.RowF32(i))
		for c, v := range alone.RowF32(i) {
			alone.RowF32(i)[c] = g.Round(i, c, v)
		}
	}
	if _, err := (Job{W: swept, U: u, Grid: g, Mul: mul}).Run(); err != nil {
		t.Fatal(err)
	}

	if a, b := loss(alone), loss(swept); b > 0.6*a {
		t.Errorf("error of the outputs %g, of rounding alone %g", b, a)
	}
}
