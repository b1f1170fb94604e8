// Package remote factors and solves on a device away from the host: matrices go there, results come back.
package remote

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// Sizes from which a matrix is worth moving to a device.
const (
	Order = 256 // rows of a matrix that is factored
	Sides = 8   // right sides of a system
)

// Device does the work of one kind.
type Device struct {
	dev    kernels.Device
	solver kernels.Solver
	what   string // in errors, and what the device is told where the host does it
}

// At reads an element of a matrix.
type At func(i, j int) float64

// Unit is the identity.
func Unit(i, j int) float64 {
	if i == j {
		return 1
	}
	return 0
}

// Find is the device, if it does such work and the work is worth it; nil means the host. A device that cannot is told.
func Find(dev kernels.Device, what string, order, sides int) *Device {
	if dev == nil || order < Order || sides < Sides {
		return nil
	}
	solver, ok := kernels.As[kernels.Solver](dev)
	if !ok {
		kernels.Missed(dev, what)
		return nil
	}
	return &Device{dev, solver, what}
}

// place makes a matrix on the device; false if there is no room.
func (d *Device) place(rows, cols int, at At) (kernels.Mat, bool, error) {
	buf, err := d.dev.Alloc(kernels.F64, rows*cols)
	if err != nil {
		kernels.Missed(d.dev, d.what)
		return kernels.Mat{}, false, nil
	}

	host := kernels.NewHost(kernels.F64, rows*cols)
	for i := range rows {
		row := host.F64()[i*cols:][:cols]
		for j := range row {
			row[j] = at(i, j)
		}
	}

	if err := d.dev.Upload(buf, 0, host.Bytes()); err != nil {
		buf.Free()
		return kernels.Mat{}, true, fmt.Errorf("%s: %w", d.what, err)
	}

	return kernels.MatOf(buf, rows, cols), true, nil
}

// fetch waits and brings a matrix to the host.
func (d *Device) fetch(m kernels.Mat) ([]float64, error) {
	host := kernels.NewHost(kernels.F64, m.Len())
	err := d.dev.Ops().Sync()
	if err == nil {
		err = d.dev.Download(host.Bytes(), m.Buf, m.Off)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.what, err)
	}
	return host.F64(), nil
}

// factor leaves the lower factor on the device. The error of a pivot is a [*kernels.PivotError].
func (d *Device) factor(n int, a At) (l kernels.Mat, done bool, err error) {
	l, done, err = d.place(n, n, a)
	if !done || err != nil {
		return l, done, err
	}
	if err = d.solver.Cholesky(l); err != nil {
		l.Buf.Free()
		err = fmt.Errorf("%s: %w", d.what, err)
	}
	return l, true, err
}

// Cholesky gives the lower factor of a symmetric matrix, of which the lower triangle is read, row by row. Not
// done means that there was no room.
func (d *Device) Cholesky(n int, a At) (l []float64, done bool, err error) {
	there, done, err := d.factor(n, a)
	if !done || err != nil {
		return nil, done, err
	}
	defer there.Buf.Free()
	l, err = d.fetch(there)
	return l, true, err
}

// InverseOfFactor gives L⁻¹ with a = L·Lᵀ.
func (d *Device) InverseOfFactor(n int, a At) (x []float64, done bool, err error) {
	l, done, err := d.factor(n, a)
	if !done || err != nil {
		return nil, done, err
	}
	defer l.Buf.Free()

	b, done, err := d.place(n, n, Unit)
	if !done || err != nil {
		return nil, done, err
	}
	defer b.Buf.Free()

	d.solver.SolveLower(l, b, false)
	x, err = d.fetch(b)
	return x, true, err
}

// Solve gives the solution of L·Lᵀ·x = b, [n, sides] row by row, for a lower factor L.
func (d *Device) Solve(n int, lower At, sides int, b At) (x []float64, done bool, err error) {
	l, done, err := d.place(n, n, lower)
	if !done || err != nil {
		return nil, done, err
	}
	defer l.Buf.Free()

	right, done, err := d.place(n, sides, b)
	if !done || err != nil {
		return nil, done, err
	}
	defer right.Buf.Free()

	d.solver.SolveLower(l, right, false)
	d.solver.SolveLower(l, right, true)
	x, err = d.fetch(right)

	return x, true, err
}
