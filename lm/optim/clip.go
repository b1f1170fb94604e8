package optim

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// SumSquares is the sum of the squares of a gradient, F32 in host memory, carried in float64. The root of the
// sum of those of all gradients is the global norm.
func SumSquares(g kernels.Mat, threads int) float64 { return sumSquaresOf(g, threads) }

// sumSquaresOf takes any type that values have.
func sumSquaresOf(m kernels.Mat, threads int) float64 {
	rows := max(1, chunk/max(1, m.Cols))
	part := make([]float64, pieces(m.Rows, rows))
	mmapsafe.Each(threads, len(part), func(i int) {
		var buf [1024]float32
		for r := i * rows; r < min(m.Rows, (i+1)*rows); r++ {
			part[i] += rowSquares(m, r, &buf)
		}
	})

	sum := 0.0
	for _, v := range part {
		sum += v
	}

	return sum
}

func rowSquares(m kernels.Mat, r int, buf *[1024]float32) (sum float64) {
	if m.DType() == kernels.F32 {
		return squares(m.RowF32(r))
	}

	row := values{m: m.RowRange(r, r+1)}
	for lo := 0; lo < m.Cols; lo += len(buf) {
		p := buf[:min(len(buf), m.Cols-lo)]
		row.widen(p, lo)
		sum += squares(p)
	}

	return sum
}

// squares keeps four sums, so that additions need not wait for each other.
func squares(x []float32) float64 {
	var s [4]float64
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a := float64(x[i])
		b := float64(x[i+1])
		c := float64(x[i+2])

		d := float64(x[i+3])
		s[0] += a * a
		s[1] += b * b
		s[2] += c * c
		s[3] += d * d
	}

	for ; i < len(x); i++ {
		s[0] += float64(x[i]) * float64(x[i])
	}

	return (s[0] + s[1]) + (s[2] + s[3])
}

// ClipCoefficient is the factor that brings a global norm down to the given bound: min(1, bound / (norm + 1e-6)), as
// torch.nn.utils.clip_grad_norm_ computes it. A bound of 0 means none: the factor is 1.
func ClipCoefficient(norm, bound float64) float64 {
	if bound == 0 {
		return 1
	}
	return min(1, bound/(norm+1e-6))
}

// Clip returns the global norm of the gradients of params, and the coefficient to be given as [Step].GradScale;
// the gradients stay as they are. It scales where torch.nn.utils.clip_grad_norm_ scales. The error wraps
// [ErrNonFinite] and names the first gradient that is not finite.
func Clip(params []Param, bound float64, threads int) (norm, coefficient float64, err error) {
	return clipBy(params, bound, func(g kernels.Mat) (float64, error) { return sumSquaresOf(g, threads), nil })
}

func clipBy(params []Param, bound float64,
	squares func(g kernels.Mat) (float64, error),
) (norm, coefficient float64, err error) {
	if !(bound >= 0) {
		return 0, 0, fmt.Errorf("clipping norm %g: want 0 (no clipping) or more", bound)
	}

	sum := 0.0
	for _, p := range params {
		s, err := squares(p.Grad)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", p.Name, err)
		}

		if math.IsNaN(s) || math.IsInf(s, 0) {
			return s, 0, fmt.Errorf("%s: %w", p.Name, ErrNonFinite)
		}

		sum += s
	}

	norm = math.Sqrt(sum)
	return norm, ClipCoefficient(norm, bound), nil
}
