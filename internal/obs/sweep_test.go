package obs

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

// The sweep in blocks and strides equals the plain one, column by column over the whole matrix, in float64: to
// 1e-4 of the largest weight, which is what single precision leaves of a sum over some hundred columns.
func TestSweepEqualsPlain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		rows, cols := rapid.IntRange(1, 6).Draw(rt, "rows"), rapid.IntRange(1, 90).Draw(rt, "cols")
		j := Job{
			W: random(rows, cols), U: random(cols, cols),
			Mask:  kernels.MatOf(kernels.NewHost(kernels.U8, rows*cols), rows, cols),
			Width: rapid.IntRange(0, 40).Draw(rt, "width"), Threads: 2, Mul: mul,
		}

		for i := range cols {
			for c, row := 0, j.U.RowF32(i); c < cols; c++ {
				if row[c] *= .05; c == i {
					row[c] = 1 + rng.Float32()
				}
			}
		}

		if m := rapid.SampledFrom([]int{0, 0, 3, 4, 20}).Draw(rt, "m"); m > 0 {
			j.N, j.M = 1+rng.IntN(m-1), m
		}
		for i := range j.Mask.Buf.U8() {
			j.Mask.Buf.U8()[i] = uint8(rng.IntN(2))
		}

		w := linalg.FromMat(j.W)
		loss, err := j.Run()
		if err != nil {
			rt.Fatal(err)
		}

		want := plain(w, j)
		if math.Abs(loss-want) > 1e-4*(1+want) {
			rt.Fatalf("loss %g, want %g", loss, want)
		}

		for i := range rows {
			for c, v := range j.W.RowF32(i) {
				if math.Abs(float64(v)-w.At(i, c)) > 1e-4*w.MaxAbs() {
					rt.Fatalf("weight [%d, %d]: %g, want %g", i, c, v, w.At(i, c))
				}
			}

			for c := 0; j.M > 0 && c < cols; c += j.M {
				gone := 0
				for _, k := range j.Mask.RowU8(i)[c:min(c+j.M, cols)] {
					gone += 1 - int(k)
				}
				if gone != min(j.N, cols-c) {
					rt.Fatalf("row %d loses %d of the group at %d", i, gone, c)
				}
			}
		}
	})
}

// plain removes what the mask drops, and updates the rest at once.
func plain(w linalg.Matrix, j Job) (loss float64) {
	for c := range w.Cols {
		for i := range w.Rows {
			if j.Mask.RowU8(i)[c] != 0 {
				continue
			}

			e := w.At(i, c) / float64(j.U.RowF32(c)[c])
			loss += e * e / 2
			for k := c; k < w.Cols; k++ {
				w.Set(i, k, w.At(i, k)-e*float64(j.U.RowF32(c)[k]))
			}

			w.Set(i, c, 0)
		}
	}

	return loss
}

func TestStops(t *testing.T) {
	stop := errors.New("stop")
	mask := kernels.MatOf(kernels.NewHost(kernels.U8, 64), 8, 8)
	for _, j := range []Job{
		{Stop: func(int, int) error { return stop }},
		{Choose: func(kernels.Mat, kernels.Mat) error { return stop }},
	} {
		j.W = random(8, 8)
		j.U = random(8, 8)
		j.Mask = mask
		j.Mul = mul
		j.Threads = 1
		if _, err := j.Run(); !errors.Is(err, stop) {
			t.Errorf("%v", err)
		}
	}
}
