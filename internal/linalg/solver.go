package linalg

import (
	"runtime"

	"github.com/modelcompress/compress/kernels"
)

// Solver computes. The zero value is ready and uses all processors.
type Solver struct {
	Threads int // worker threads; 0 means GOMAXPROCS
	// Device, if it is one that can (see kernels.Solver), factors large symmetric matrices and solves with
	// their factors; the results differ from the host's by rounding. nil means the host.
	Device kernels.Device
	// Stop, if not nil, is asked now and then by factorisations, eigenvalues and singular values; its error ends them.
	Stop func() error
}

// stopped asks whether to go on.
func (s Solver) stopped() error {
	if s.Stop == nil {
		return nil
	}
	return s.Stop()
}

// workers is how many goroutines to use at most.
func (s Solver) workers() int {
	if s.Threads > 0 {
		return s.Threads
	}
	return runtime.GOMAXPROCS(0)
}

// workersFor is one for products too small to share.
func (s Solver) workersFor(m, n, k int) int {
	if m*n*k < 1<<19 {
		return 1
	}
	return s.workers()
}

// Energy is Σ_i d_i·h·d_iᵀ over the rows d_i of d; with a Hessian h, what a change d of a matrix does to the squares of
// its outputs.
func (s Solver) Energy(d, h Matrix) (sum float64) {
	p := New(d.Rows, d.Cols)
	s.Mul(p, d, h, Product{})
	for i, v := range d.Data {
		sum += v * p.Data[i]
	}
	return sum
}
