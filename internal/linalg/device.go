package linalg

import (
	"errors"
	"math"

	"github.com/modelcompress/compress/internal/linalg/internal/remote"
	"github.com/modelcompress/compress/kernels"
)

// regular reports whether a factor is of an order, without a zero on its diagonal.
func (a Matrix) regular(order int) bool {
	for i := range a.Rows {
		if a.At(i, i) == 0 {
			return false
		}
	}
	return a.Rows == a.Cols && a.Rows == order
}

// lower reads the lower triangle of a factor or symmetric matrix, whichever triangle holds it.
func lower(a Matrix, upper bool) remote.At {
	return func(i, j int) float64 {
		switch {
		case j > i:
			return 0
		case upper:
			return a.At(j, i)
		}
		return a.At(i, j)
	}
}

// fill writes the named triangle of a and zeroes the other. The diagonal of a factor is positive and finite,
// unless the matrix held an infinity: the error names the row.
func (a Matrix) fill(upper bool, at remote.At) error {
	for i := range a.Rows {
		for j := range a.Cols {
			v := 0.0
			if i == j || upper == (j > i) {
				v = at(i, j)
			}
			if i == j && (!(v > 0) || math.IsInf(v, 1)) {
				return &PivotError{i, math.NaN()}
			}

			a.Set(i, j, v)
		}
	}

	return nil
}

// pivoted gives the error about a pivot on a device the form of this package's; row tells which row of the
// matrix it is.
func pivoted(err error, row func(pivot int) int) error {
	if p := (*kernels.PivotError)(nil); errors.As(err, &p) {
		return &PivotError{row(p.Pivot), math.NaN()}
	}
	return err
}

// choleskyThere is [Solver.Cholesky] on a device; not done means that the host has to.
func choleskyThere(d *remote.Device, a Matrix, upper bool) (done bool, err error) {
	l, done, err := d.Cholesky(a.Rows, lower(a, upper))
	if !done || err != nil {
		return done, pivoted(err, func(p int) int { return p })
	}
	n := a.Rows
	return true, a.fill(upper, func(i, j int) float64 { return l[max(i, j)*n+min(i, j)] })
}

// inverseFactorThere is [Solver.InverseFactor] on a device: with rows and columns in reverse order, H = L·Lᵀ,
// and U is L⁻¹ in that order.
func inverseFactorThere(d *remote.Device, h Matrix) (done bool, err error) {
	last := h.Rows - 1
	x, done, err := d.InverseOfFactor(h.Rows, func(i, j int) float64 {
		if j > i {
			return 0
		}
		return h.At(last-i, last-j)
	})
	if !done || err != nil {
		return done, pivoted(err, func(p int) int { return last - p })
	}

	return true, h.fill(true, func(i, j int) float64 { return x[(last-i)*h.Rows+last-j] })
}
