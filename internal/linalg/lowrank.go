package linalg

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// ErrRank is the error of a rank that a matrix cannot have.
var ErrRank = errors.New("rank out of range")

// Sketch configures [Solver.TruncatedSVD].
type Sketch struct {
	Oversample int    // columns of the sketch beyond the rank; 0 means 16
	Power      int    // power iterations; 0 means 4, negative none
	Seed       uint64 // of the sketch
}

// TruncatedSVD returns the leading rank singular values and vectors of a, u [m, rank] and v [n, rank], from a
// random sketch (Halko, Martinsson and Tropp, SIAM Review 53, 2011): products with a instead of a whole
// decomposition. Every power iteration brings the result nearer to the best approximation of that rank; with
// four, the spectral norm of what is left out exceeds the best by some five per cent for the flat spectrum of
// random numbers, and by nothing that shows for spectra that fall fast. Where the sketch would not be much
// smaller than a, the whole decomposition is made and cut. Same seed, same bits. The error wraps [ErrRank],
// [ErrNonFinite] or [ErrNoConvergence].
func (s Solver) TruncatedSVD(a Matrix, rank int, o Sketch) (u Matrix, values []float64, v Matrix, err error) {
	k := min(a.Rows, a.Cols)
	if rank < 1 || rank > k {
		return Matrix{}, nil, Matrix{}, fmt.Errorf("%w: %d of a [%d, %d] matrix", ErrRank, rank, a.Rows, a.Cols)
	}
	if o.Oversample <= 0 {
		o.Oversample = 16
	}
	if o.Power == 0 {
		o.Power = 4
	}

	if 2*(rank+o.Oversample) >= k {
		u, values, v, err = s.SVD(a)
	} else {
		u, values, v, err = s.sketchSVD(a, rank+o.Oversample, o)
	}
	if err != nil {
		return Matrix{}, nil, Matrix{}, err
	}

	return u.Sub(0, a.Rows, 0, rank).Clone(), values[:rank:rank], v.Sub(0, a.Cols, 0, rank).Clone(), nil
}

// sketchSVD decomposes a within the range of a sketch of the given width.
func (s Solver) sketchSVD(a Matrix, width int, o Sketch) (u Matrix, values []float64, v Matrix, err error) {
	signs := rng.Sketch(o.Seed)
	omega := New(a.Cols, width)
	for i := range omega.Data {
		omega.Data[i] = signs.Sign(uint64(i))
	}

	// The columns of A·Ω span the leading left vectors all but for what the smaller values mix in, which each iteration
	// with A·Aᵀ damps by the square of the quotient. QR in between keeps the columns from all turning to the first
	// vector.
	q := New(a.Rows, width)
	s.Mul(q, a, omega, Product{})
	if q, _, err = s.QR(q); err != nil {
		return Matrix{}, nil, Matrix{}, err
	}

	for range o.Power {
		s.Mul(omega, a, q, Product{TransA: true})
		z, _, err := s.QR(omega)
		if err != nil {
			return Matrix{}, nil, Matrix{}, err
		}

		s.Mul(q, a, z, Product{})
		if q, _, err = s.QR(q); err != nil {
			return Matrix{}, nil, Matrix{}, err
		}
	}

	s.Mul(omega, a, q, Product{TransA: true}) // (Qᵀ·A)ᵀ = V·Σ·Wᵀ
	v, values, w, err := s.SVD(omega)
	if err != nil {
		return Matrix{}, nil, Matrix{}, err
	}

	u = New(a.Rows, width)
	s.Mul(u, q, w, Product{})
	return u, values, v, nil
}

// gram returns the eigenvalues of aᵀ·a or a·aᵀ, whichever is smaller, of a/scale, in descending order, good to
// rounding of the largest.
func (s Solver) gram(a Matrix) (d []float64, scale float64, err error) {
	if err := a.CheckFinite(); err != nil {
		return nil, 0, err
	}

	// Scaled, because squares of large or small elements overflow or vanish.
	n, tall := min(a.Rows, a.Cols), a.Rows > a.Cols
	scale = a.MaxAbs()
	if n == 0 || scale == 0 {
		return make([]float64, n), 1, nil
	}

	x := a.Clone()
	x.divide(scale)
	g := newSpaced(n, n)
	s.run(product{dst: g, a: operand{x, tall}, b: operand{x, !tall}, overwrite: true, dstShape: below},
		max(a.Rows, a.Cols))
	if d, err = s.SymEigenvalues(g); err != nil {
		return nil, 0, err
	}

	slices.Reverse(d)
	for i, v := range d {
		d[i] = max(0, v)
	}

	return d, scale, nil
}

// SingularValues returns the singular values of a in descending order, good to 1e-11 of the largest. They are
// the roots of the eigenvalues of the Gram matrix where these keep that accuracy, that is if none is below 1e-5
// of the largest, and those of [Solver.SVD] otherwise. The error wraps [ErrNonFinite] or [ErrNoConvergence].
func (s Solver) SingularValues(a Matrix) ([]float64, error) {
	d, scale, err := s.gram(a)
	if err != nil || len(d) == 0 {
		return d, err
	}

	if d[len(d)-1] < 1e-10*d[0] {
		_, d, _, err = s.SVD(a)
		return d, err
	}

	for i, v := range d {
		d[i] = math.Sqrt(v) * scale
	}

	return d, nil
}

// SpectralNorm returns the largest singular value of a, to a relative accuracy of about tolerance (0 means
// 1e-9), by power iterations on a small block of vectors. The error wraps [ErrNonFinite] or [ErrNoConvergence].
func (s Solver) SpectralNorm(a Matrix, tolerance float64) (float64, error) {
	const width = 8
	if tolerance <= 0 {
		tolerance = 1e-9
	}

	if min(a.Rows, a.Cols) <= 4*width {
		d, err := s.SingularValues(a)
		if err != nil || len(d) == 0 {
			return 0, err
		}
		return d[0], nil
	}

	if err := a.CheckFinite(); err != nil {
		return 0, err
	}

	// A block of eight converges with the quotient of the ninth value to the first, not of the second, which may be
	// nearly 1. What changes by less than an eighth of the tolerance in a step is taken to be as near as asked for.
	signs := rng.Sketch(1)
	x, y := New(a.Cols, width), New(a.Rows, width)
	for i := range x.Data {
		x.Data[i] = signs.Sign(uint64(i))
	}

	last := 0.0
	const most = 2000
	for range most {
		q, _, err := s.QR(x)
		if err != nil {
			return 0, err
		}

		s.Mul(y, a, q, Product{})
		d, err := s.SingularValues(y)
		if err != nil {
			return 0, err
		}

		if math.Abs(d[0]-last) <= tolerance*d[0]/8 {
			return d[0], nil
		}

		last = d[0]
		if d[0] == 0 {
			return 0, nil
		}

		y.divide(d[0])
		s.Mul(x, a, y, Product{TransA: true})
	}

	return 0, fmt.Errorf("spectral norm: %w", ErrNoConvergence)
}

// EffectiveRank is the exponential of the entropy of the singular values as shares of their sum (Roy and
// Vetterli, EUSIPCO 2007): between 1 and their number; 0 if all are zero.
func EffectiveRank(values []float64) float64 {
	sum, entropy := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	if sum == 0 {
		return 0
	}

	for _, v := range values {
		if p := v / sum; p > 0 {
			entropy -= p * math.Log(p)
		}
	}

	return math.Exp(entropy)
}
