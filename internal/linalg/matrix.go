package linalg

import (
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// ErrNonFinite is the error of an operand that holds a NaN or an infinity. It is wrapped with the position.
var ErrNonFinite = errors.New("matrix holds a value that is not finite")

// Matrix is a row-major view of float64 values: element (i, j) is Data[i·Stride+j].
type Matrix struct {
	Rows, Cols int
	Stride     int // elements between the starts of two rows; at least Cols
	Data       []float64
}

// New returns a zero matrix.
func New(rows, cols int) Matrix {
	return Matrix{rows, cols, cols, make([]float64, rows*cols)}
}

// newSpaced is New for large scratch matrices: rows do not compete for the same cache lines.
func newSpaced(rows, cols int) Matrix {
	stride := roundUp(cols, 8)
	if stride%256 == 0 {
		stride += 8
	}
	return Matrix{rows, cols, stride, make([]float64, rows*stride)}
}

// Identity returns the n×n identity.
func Identity(n int) Matrix {
	a := New(n, n)
	for i := range n {
		a.Data[i*n+i] = 1
	}
	return a
}

// Of views the first rows·cols values of data.
func Of(data []float64, rows, cols int) Matrix {
	return Matrix{rows, cols, cols, data[:rows*cols]}
}

// FromMat copies a matrix of element type F32, BF16, F16 or F64 on a host device.
func FromMat(m kernels.Mat) Matrix {
	a := New(m.Rows, m.Cols)
	for i := range m.Rows {
		row := a.Row(i)
		switch m.DType() {
		case kernels.F32:
			for j, v := range m.RowF32(i) {
				row[j] = float64(v)
			}
		case kernels.BF16:
			for j, v := range m.RowU16(i) {
				row[j] = float64(kernels.FromBF16(v))
			}
		case kernels.F16:
			for j, v := range m.RowU16(i) {
				row[j] = float64(kernels.FromF16(v))
			}
		case kernels.F64:
			copy(row, m.Buf.F64()[m.Off+i*m.Stride:])
		default:
			panic("linalg: matrix of a type that is not floating point")
		}
	}

	return a
}

// ToF32 rounds a to an F32 matrix of the same shape on a host device.
func (a Matrix) ToF32(dst kernels.Mat) {
	if dst.Rows != a.Rows || dst.Cols != a.Cols {
		panic("linalg: destination has another shape")
	}

	for i := range a.Rows {
		row := dst.RowF32(i)
		for j, v := range a.Row(i) {
			row[j] = float32(v)
		}
	}

	dst.Buf.Changed()
}

// Row is row i, without a copy.
func (a Matrix) Row(i int) []float64 {
	if a.Cols == 0 {
		return nil
	}
	return a.Data[i*a.Stride:][:a.Cols:a.Cols]
}

// At is element (i, j).
func (a Matrix) At(i, j int) float64 { return a.Data[i*a.Stride+j] }

// Set changes element (i, j).
func (a Matrix) Set(i, j int, v float64) { a.Data[i*a.Stride+j] = v }

// Sub views rows [i0, i1) and columns [j0, j1).
func (a Matrix) Sub(i0, i1, j0, j1 int) Matrix {
	if i0 < 0 || i1 < i0 || i1 > a.Rows || j0 < 0 || j1 < j0 || j1 > a.Cols {
		panic("linalg: view leaves its matrix")
	}
	v := Matrix{Rows: i1 - i0, Cols: j1 - j0, Stride: a.Stride}
	if v.Rows > 0 && v.Cols > 0 {
		v.Data = a.Data[i0*a.Stride+j0 : (i1-1)*a.Stride+j1]
	}
	return v
}

// Clone is a copy without gaps between rows.
func (a Matrix) Clone() Matrix {
	b := New(a.Rows, a.Cols)
	b.Copy(a)
	return b
}

// Copy overwrites a with b, of the same shape.
func (a Matrix) Copy(b Matrix) {
	if a.Rows != b.Rows || a.Cols != b.Cols {
		panic("linalg: copy between different shapes")
	}
	for i := range a.Rows {
		copy(a.Row(i), b.Row(i))
	}
}

// T is a transposed copy.
func (a Matrix) T() Matrix {
	b := New(a.Cols, a.Rows)
	const side = 16 // squares that stay in the first-level cache
	for i0 := 0; i0 < a.Rows; i0 += side {
		for j0 := 0; j0 < a.Cols; j0 += side {
			for i := i0; i < min(i0+side, a.Rows); i++ {
				row := a.Row(i)
				for j := j0; j < min(j0+side, a.Cols); j++ {
					b.Data[j*b.Stride+i] = row[j]
				}
			}
		}
	}

	return b
}

// Zero clears a.
func (a Matrix) Zero() {
	for i := range a.Rows {
		clear(a.Row(i))
	}
}

// Scale multiplies a by f in place.
func (a Matrix) Scale(f float64) {
	for i := range a.Rows {
		for j := range a.Row(i) {
			a.Data[i*a.Stride+j] *= f
		}
	}
}

// MaxAbs is the largest magnitude in a; 0 for an empty matrix.
func (a Matrix) MaxAbs() float64 {
	top := 0.0
	for i := range a.Rows {
		for _, v := range a.Row(i) {
			top = max(top, math.Abs(v))
		}
	}
	return top
}

// Norm is the Frobenius norm, free of overflow and underflow.
func (a Matrix) Norm() float64 {
	top := a.MaxAbs()
	if top == 0 || math.IsInf(top, 0) || math.IsNaN(top) {
		return top
	}

	sum := 0.0
	for i := range a.Rows {
		for _, v := range a.Row(i) {
			v /= top
			sum += v * v
		}
	}

	return top * math.Sqrt(sum)
}

// CheckFinite returns an error wrapping [ErrNonFinite] that names the first element that is a NaN or an infinity.
func (a Matrix) CheckFinite() error {
	for i := range a.Rows {
		for j, v := range a.Row(i) {
			if v-v != 0 {
				return fmt.Errorf("%w: %v at row %d, column %d", ErrNonFinite, v, i, j)
			}
		}
	}
	return nil
}

// Symmetrize copies the lower triangle to the upper one.
func (a Matrix) Symmetrize() {
	for i := range a.Rows {
		for j := range i {
			a.Data[j*a.Stride+i] = a.Data[i*a.Stride+j]
		}
	}
}

func (a Matrix) checkSquare() {
	if a.Rows != a.Cols {
		panic("linalg: matrix is not square")
	}
}
