//go:build linux && (amd64 || arm64)

package linalg

import (
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/internal/linalg/internal/remote"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
)

// TestDeviceSolves compares factors, solves, inverses and SparseGPT's factor of a device with the host's. Both
// round in F64, so they agree to 1e-10 of the largest value, with a condition of about 100.
func TestDeviceSolves(t *testing.T) {
	dev := standin.Open(t)
	there, n := Solver{Device: dev}, remote.Order+41
	h := positive(3, n)
	near := func(what string, got, want Matrix) {
		t.Helper()
		rest := got.Clone()
		for i := range n {
			for j := range rest.Cols {
				rest.Set(i, j, got.At(i, j)-want.At(i, j))
			}
		}

		if e := rest.MaxAbs() / want.MaxAbs(); !(e <= 1e-10) {
			t.Errorf("%s: off by %g of the largest value", what, e)
		}
	}

	for _, upper := range []bool{false, true} {
		got, want := gapped(h), h.Clone()
		check(t, there.Cholesky(got, upper))
		check(t, Solver{}.Cholesky(want, upper))
		near("Cholesky", got, want)

		b := random(5, n, remote.Sides+3)
		x, y := gapped(b), b.Clone()
		check(t, there.CholeskySolve(got, x, upper))
		check(t, Solver{}.CholeskySolve(want, y, upper))
		near("CholeskySolve", x, y)
		check(t, there.CholeskyInverse(got, upper))
		check(t, Solver{}.CholeskyInverse(want, upper))
		near("CholeskyInverse", got, want)
	}

	got, want := gapped(h), h.Clone()
	check(t, there.InverseFactor(got))
	check(t, Solver{}.InverseFactor(want))
	near("InverseFactor", got, want)
	if f := device.Fallbacks(dev); len(f) != 0 {
		t.Errorf("left to the host: %v", f)
	}
}

// TestDeviceRefuses: a matrix that is not positive definite has the same row in the error as on the host.
func TestDeviceRefuses(t *testing.T) {
	there, n := Solver{Device: standin.Open(t)}, remote.Order+10
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1)} {
		for name, f := range map[string]func(s Solver, a Matrix) error{
			"Cholesky":      func(s Solver, a Matrix) error { return s.Cholesky(a, false) },
			"InverseFactor": Solver.InverseFactor,
		} {
			a := Identity(n)
			a.Set(100, 100, bad)
			var got, want *PivotError
			errors.As(f(Solver{}, a.Clone()), &want)
			if !errors.As(f(there, a), &got) || got.Row != want.Row {
				t.Errorf("%s with %g: %v, want %v", name, bad, got, want)
			}
		}
	}
}

// bare is a device away from the host that has nothing beyond the table, and counts what it is told.
type bare struct {
	kernels.Device
	missed map[string]int
}

func (bare) Info() kernels.Info       { return kernels.Info{Name: "bare:0"} }
func (b bare) Missed(what string)     { b.missed[what]++ }
func (b bare) Unwrap() kernels.Device { return nil }

// TestDeviceWithout: the host does what a device cannot, with its own bits, and the device is told.
func TestDeviceWithout(t *testing.T) {
	b := bare{missed: map[string]int{}}
	h := positive(3, remote.Order)
	got, want := h.Clone(), h.Clone()
	check(t, Solver{Device: b}.InverseFactor(got))
	check(t, Solver{}.InverseFactor(want))

	for i, v := range got.Data {
		if v != want.Data[i] {
			t.Fatal("another result")
		}
	}

	if b.missed["InverseFactor"] != 1 {
		t.Errorf("told %v", b.missed)
	}
}
