//go:build !noasm

package cpu

import "golang.org/x/sys/cpu"

// sparseKernelsOf picks the best kernels that the instruction sets allow.
func sparseKernelsOf(f features) sparseKernels {
	return chooseSparse(f, cpu.X86.HasAVX512VBMI2)
}

// chooseSparse picks the kernels; expandWords says whether AVX-512 expands elements of 16 bits too, which came later.
func chooseSparse(f features, expandWords bool) sparseKernels {
	var s sparseKernels
	if f.avx2 {
		s.words = expandKernel{run: expandWordsAVX2, lanes: 8}
		s.doubles = expandKernel{run: expandDoublesAVX2, lanes: 8}
	}
	if f.avx512 {
		s.doubles = expandKernel{run: expandDoublesAVX512, lanes: 16, careful: true}
		s.fusedF32 = []func(*fusedArgs){fusedF32x1, fusedF32x2, fusedF32x3, fusedF32x4}
	}
	if f.avx512 && expandWords {
		s.words = expandKernel{run: expandWordsAVX512, lanes: 32, careful: true}
		s.fusedBF16 = []func(*fusedArgs){fusedBF16x1, fusedBF16x2, fusedBF16x3, fusedBF16x4}
		s.fusedF16 = []func(*fusedArgs){fusedF16x1, fusedF16x2, fusedF16x3, fusedF16x4}
	}
	if f.amx && expandWords {
		s.tiles = sparseTilesAMX
	}
	return s
}

// sparseTilesAMX returns the kernel for one or three parts of up to 32 rows of x.
func sparseTilesAMX(parts, rows int) func(*sparseTileArgs) {
	switch {
	case parts == 1 && rows <= 16:
		return sparseAMX1x1
	case parts == 1:
		return sparseAMX1x2
	case rows <= 16:
		return sparseAMX3x1
	}
	return sparseAMX3x2
}

// The expanders write whole groups of columns; see expandArgs.

//go:noescape
func expandWordsAVX512(e *expandArgs)

//go:noescape
func expandDoublesAVX512(e *expandArgs)

//go:noescape
func expandWordsAVX2(e *expandArgs)

//go:noescape
func expandDoublesAVX2(e *expandArgs)

// The fused kernels multiply four rows of a sparse weight with one to four rows of x; see fusedArgs.

//go:noescape
func fusedF32x1(d *fusedArgs)

//go:noescape
func fusedF32x2(d *fusedArgs)

//go:noescape
func fusedF32x3(d *fusedArgs)

//go:noescape
func fusedF32x4(d *fusedArgs)

//go:noescape
func fusedBF16x1(d *fusedArgs)

//go:noescape
func fusedBF16x2(d *fusedArgs)

//go:noescape
func fusedBF16x3(d *fusedArgs)

//go:noescape
func fusedBF16x4(d *fusedArgs)

//go:noescape
func fusedF16x1(d *fusedArgs)

//go:noescape
func fusedF16x2(d *fusedArgs)

//go:noescape
func fusedF16x3(d *fusedArgs)

//go:noescape
func fusedF16x4(d *fusedArgs)

// The tile kernels multiply 32 rows of a sparse bfloat16 weight with packed rows of one or three parts; see sparseTileArgs.

//go:noescape
func sparseAMX1x1(d *sparseTileArgs)

//go:noescape
func sparseAMX1x2(d *sparseTileArgs)

//go:noescape
func sparseAMX3x1(d *sparseTileArgs)

//go:noescape
func sparseAMX3x2(d *sparseTileArgs)
