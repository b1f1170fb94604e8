package admm

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
)

func mul(dst, x, w kernels.Mat) {
	a := linalg.FromMat(dst)
	linalg.Solver{}.Mul(a, linalg.FromMat(x), linalg.FromMat(w), linalg.Product{Accumulate: true})
	a.ToF32(dst)
}

// random makes a job of a few correlated inputs.
func random(rng *rand.Rand, rows, cols int) Job {
	x := linalg.New(3*cols, cols)
	for i := range x.Data {
		x.Data[i] = rng.NormFloat64() + x.Data[max(0, i-1)]*.5
	}

	j := Job{
		W: f32(rows, cols), H: linalg.New(cols, cols),
		Mask: kernels.MatOf(kernels.NewHost(kernels.U8, rows*cols), rows, cols), Mul: mul, Threads: 2, Rho: 1,
	}
	linalg.Solver{}.Mul(j.H, x, x, linalg.Product{TransA: true})

	for i := range j.W.Buf.F32() {
		j.W.Buf.F32()[i] = float32(rng.NormFloat64())
		j.Mask.Buf.U8()[i] = uint8(rng.IntN(2))
	}

	return j
}

// At the end the gradient is zero on what stays: the normal equations hold, to single precision; what goes is zero.
func TestNormalEquations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		rows, cols := rapid.IntRange(1, 5).Draw(rt, "rows"), rapid.IntRange(1, 20).Draw(rt, "cols")
		j := random(rng, rows, cols)
		j.Steps, j.Polish = rapid.IntRange(0, 2).Draw(rt, "steps"), 80
		before := linalg.FromMat(j.W)
		if err := j.Run(); err != nil {
			rt.Fatal(err)
		}

		d := linalg.FromMat(j.W)
		for i := range d.Data {
			d.Data[i] -= before.Data[i]
		}

		g := linalg.New(rows, cols)
		linalg.Solver{}.Mul(g, d, j.H, linalg.Product{})

		size := j.H.MaxAbs() * math.Sqrt(float64(cols))
		for i := range rows {
			for c := range cols {
				switch kept := j.Mask.RowU8(i)[c] == 1; {
				case !kept && j.W.RowF32(i)[c] != 0:
					rt.Fatalf("weight [%d, %d] is %g", i, c, j.W.RowF32(i)[c])
				case kept && math.Abs(g.At(i, c)) > 1e-4*size:
					rt.Fatalf("gradient [%d, %d] is %g of %g", i, c, g.At(i, c), size)
				}
			}
		}
	})
}

// Choosing the mask on the way keeps its count and ends no worse than the mask of magnitudes.
func TestMaskSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	worse := 0
	for range 20 {
		fixed := random(rng, 4, 16)
		fixed.Polish, fixed.Ridge = 60, 1e-3
		choose := func(mask, score kernels.Mat) error {
			for i := range mask.Rows {
				for c, v := range score.RowF32(i) {
					lower := 0
					for _, o := range score.RowF32(i) {
						if o < v {
							lower++
						}
					}

					mask.RowU8(i)[c] = uint8(min(1, lower/8))
				}
			}

			return nil
		}

		magnitude := f32(4, 16)
		for i, v := range fixed.W.Buf.F32() {
			magnitude.Buf.F32()[i] = float32(math.Abs(float64(v)))
		}

		_ = choose(fixed.Mask, magnitude)
		moving := fixed
		moving.W, moving.Mask = f32(4, 16), kernels.MatOf(kernels.NewHost(kernels.U8, 64), 4, 16)
		copy(moving.W.Buf.F32(), fixed.W.Buf.F32())

		moving.Steps = 20
		moving.Rechose = 15
		moving.Choose = choose
		dense := linalg.FromMat(fixed.W)
		if err := errors.Join(fixed.Run(), moving.Run()); err != nil {
			t.Fatal(err)
		}
		if loss(fixed, dense) < loss(moving, dense) {
			worse++
		}
	}

	if worse > 4 {
		t.Errorf("choosing anew was worse in %d of 20 matrices", worse)
	}
}

func loss(j Job, dense linalg.Matrix) (sum float64) {
	d := linalg.FromMat(j.W)
	for i := range d.Data {
		d.Data[i] -= dense.Data[i]
	}

	g := linalg.New(d.Rows, d.Cols)
	linalg.Solver{}.Mul(g, d, j.H, linalg.Product{})
	for i, v := range d.Data {
		sum += v * g.Data[i]
	}

	return sum
}

func TestStops(t *testing.T) {
	stop := errors.New("stop")
	for _, j := range []Job{random(rand.New(rand.NewPCG(1, 1)), 2, 4), random(rand.New(rand.NewPCG(1, 1)), 2, 4)} {
		j.Polish, j.Steps = 3, 2
		j.Stop = func(done, steps int) error {
			if done == 4 && steps == 5 {
				return stop
			}
			return nil
		}

		if err := j.Run(); !errors.Is(err, stop) {
			t.Errorf("%v", err)
		}
	}

	j := random(rand.New(rand.NewPCG(1, 1)), 2, 4)
	j.H.Set(2, 2, 0)
	if err := j.Run(); !errors.Is(err, linalg.ErrSingular) {
		t.Errorf("%v", err)
	}
}
