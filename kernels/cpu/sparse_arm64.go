//go:build !noasm

package cpu

// sparseKernelsOf picks the best kernels that the instruction sets allow.
func sparseKernelsOf(f features) sparseKernels {
	if !f.NEON {
		return sparseKernels{}
	}
	return sparseKernels{
		words:     expandKernel{run: expandWordsNEON, lanes: 8},
		doubles:   expandKernel{run: expandDoublesNEON, lanes: 8},
		fusedF32:  fusedKernels{by: []func(*fusedArgs){fusedF32NEONx1, fusedF32NEONx2}, maxRows: 2},
		fusedBF16: fusedKernels{by: []func(*fusedArgs){fusedBF16NEONx1, fusedBF16NEONx2}, maxRows: 4},
		fusedF16:  fusedKernels{by: []func(*fusedArgs){fusedF16NEONx1, fusedF16NEONx2}, maxRows: 4},
	}
}
