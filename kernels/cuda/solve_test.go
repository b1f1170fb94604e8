//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
)

// doubles is an F64 matrix with contents.
func doubles(t *testing.T, d *cuda.Device, rows, cols int, f func(i, j int) float64) kernels.Mat {
	t.Helper()
	host := kernels.NewHost(kernels.F64, rows*cols)
	for i := range host.F64() {
		host.F64()[i] = f(i/cols, i%cols)
	}

	b, err := d.Alloc(kernels.F64, rows*cols)
	if err == nil {
		err = d.Upload(b, 0, host.Bytes())
	}
	if err != nil {
		t.Fatal(err)
	}

	return kernels.MatOf(b, rows, cols)
}

func readDoubles(t *testing.T, d *cuda.Device, m kernels.Mat) []float64 {
	t.Helper()
	host := kernels.NewHost(kernels.F64, m.Len())
	if err := d.Download(host.Bytes(), m.Buf, 0); err != nil {
		t.Fatal(err)
	}
	return host.F64()
}

// TestCholeskyAndSolves: L·Lᵀ gives the matrix back, and the two solves its inverse times the right sides.
func TestCholeskyAndSolves(t *testing.T) {
	d := open(t, "")
	for _, n := range []int{1, 5, 31, 32, 33, 64, 97, 150} {
		const m = 70
		x := floats(uint64(n), n*n)
		spd := func(i, j int) float64 { // X·Xᵀ/n + 1
			sum := 0.0
			for k := range n {
				sum += float64(x[i*n+k]) * float64(x[j*n+k])
			}
			if i == j {
				return sum/float64(n) + 1
			}
			return sum / float64(n)
		}

		a := doubles(t, d, n, n, spd)
		if err := d.Cholesky(a); err != nil {
			t.Fatal(err)
		}

		l := readDoubles(t, d, a)
		for i := range n {
			for j := range i + 1 {
				sum := 0.0
				for k := range j + 1 {
					sum += l[i*n+k] * l[j*n+k]
				}
				if math.Abs(sum-spd(i, j)) > 1e-13*float64(n) { // n roundings of values near 1
					t.Fatalf("n=%d: element (%d, %d) of L·Lᵀ is off by %g", n, i, j, sum-spd(i, j))
				}
			}
		}

		y := floats(uint64(n)+1, n*m)
		b := doubles(t, d, n, m, func(i, j int) float64 { return float64(y[i*m+j]) })
		d.SolveLower(a, b, false)
		d.SolveLower(a, b, true)

		s := readDoubles(t, d, b)
		for i := range n {
			for j := range m {
				sum := 0.0
				for k := range n {
					sum += spd(i, k) * s[k*m+j]
				}
				if math.Abs(sum-float64(y[i*m+j])) > 1e-12*float64(n) { // the condition number is below 10
					t.Fatalf("n=%d: residual (%d, %d) is %g", n, i, j, sum-float64(y[i*m+j]))
				}
			}
		}
	}
}

// TestCholeskyRefuses: the first pivot that is not positive is named.
func TestCholeskyRefuses(t *testing.T) {
	d := open(t, "")
	for _, bad := range []float64{0, -1, math.NaN()} {
		a := doubles(t, d, 50, 50, func(i, j int) float64 {
			switch {
			case i == j && i == 40:
				return bad
			case i == j:
				return 1
			}
			return 0
		})

		if err := d.Cholesky(a); !errors.Is(err, cuda.ErrNotPositive) || !strings.Contains(err.Error(), "pivot 40") {
			t.Errorf("pivot %v: error %v", bad, err)
		}
	}
}
