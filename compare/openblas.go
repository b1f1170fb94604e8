// Package compare holds the product kernels of this project to OpenBLAS, side by side in one process. It needs cgo and
// libopenblas, and is a module of its own so that the project itself needs neither. See README.md.
package compare

/*
#cgo LDFLAGS: -lopenblas
extern void openblas_set_num_threads(int);
extern char *openblas_get_config(void);
extern char *openblas_get_corename(void);
*/
import "C"

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/netlib/blas/netlib"
)

// openBLAS describes the library: its build and the kernels it chose.
func openBLAS() string {
	return C.GoString(C.openblas_get_config()) + ", kernels " + C.GoString(C.openblas_get_corename())
}

// setThreads says how many threads OpenBLAS uses.
func setThreads(n int) { C.openblas_set_num_threads(C.int(n)) }

// sgemmNT computes dst[m,n] = x[m,k]·w[n,k]ᵀ with OpenBLAS.
func sgemmNT(dst, x, w []float32, m, n, k int) {
	netlib.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, m, n, k, 1, x, k, w, k, 0, dst, n)
}

// sgemmNN computes dst[m,n] = x[m,k]·w[k,n] with OpenBLAS.
func sgemmNN(dst, x, w []float32, m, n, k int) {
	netlib.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, m, n, k, 1, x, k, w, n, 0, dst, n)
}

// sgemmTN computes dst[m,n] = a[k,m]ᵀ·b[k,n] with OpenBLAS.
func sgemmTN(dst, a, b []float32, m, n, k int) {
	netlib.Implementation{}.Sgemm(blas.Trans, blas.NoTrans, m, n, k, 1, a, m, b, n, 0, dst, n)
}
