//go:build !noasm

package cpu

// sparseKernelsOf picks the best kernels that the instruction sets allow.
func sparseKernelsOf(f features) sparseKernels {
	var s sparseKernels
	if f.AVX2 {
		s.words = expandKernel{run: expandWordsAVX2, lanes: 8}
		s.doubles = expandKernel{run: expandDoublesAVX2, lanes: 8}
		s.fusedF32 = fusedKernels{by: []func(*fusedArgs){fusedF32AVX2x1, fusedF32AVX2x2}, maxRows: 2}
		s.fusedBF16 = fusedKernels{by: []func(*fusedArgs){fusedBF16AVX2x1, fusedBF16AVX2x2}, maxRows: 4}
		s.fusedF16 = fusedKernels{by: []func(*fusedArgs){fusedF16AVX2x1, fusedF16AVX2x2}, maxRows: 4}
	}

	if f.AVX512 {
		s.doubles = expandKernel{run: expandDoublesAVX512, lanes: 16, careful: true}
		s.fusedF32 = fusedKernels{by: []func(*fusedArgs){
			fusedF32AVX512x1, fusedF32AVX512x2, fusedF32AVX512x3,
			fusedF32AVX512x4,
		}, maxRows: 16, careful: true}
	}

	if f.AVX512VBMI2 {
		s.words = expandKernel{run: expandWordsAVX512, lanes: 32, careful: true}
		s.fusedBF16 = fusedKernels{by: []func(*fusedArgs){
			fusedBF16AVX512x1, fusedBF16AVX512x2, fusedBF16AVX512x3,
			fusedBF16AVX512x4,
		}, maxRows: 16, careful: true, evenFirst: true}
		s.fusedF16 = fusedKernels{by: []func(*fusedArgs){
			fusedF16AVX512x1, fusedF16AVX512x2, fusedF16AVX512x3,
			fusedF16AVX512x4,
		}, maxRows: 16, careful: true}
	}

	if f.AMX && f.AVX512VBMI2 {
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
func fusedF32AVX512x1(d *fusedArgs)

//go:noescape
func fusedF32AVX512x2(d *fusedArgs)

//go:noescape
func fusedF32AVX512x3(d *fusedArgs)

//go:noescape
func fusedF32AVX512x4(d *fusedArgs)

//go:noescape
func fusedF32AVX2x1(d *fusedArgs)

//go:noescape
func fusedF32AVX2x2(d *fusedArgs)

//go:noescape
func fusedBF16AVX512x1(d *fusedArgs)

//go:noescape
func fusedBF16AVX512x2(d *fusedArgs)

//go:noescape
func fusedBF16AVX512x3(d *fusedArgs)

//go:noescape
func fusedBF16AVX512x4(d *fusedArgs)

//go:noescape
func fusedBF16AVX2x1(d *fusedArgs)

//go:noescape
func fusedBF16AVX2x2(d *fusedArgs)

//go:noescape
func fusedF16AVX512x1(d *fusedArgs)

//go:noescape
func fusedF16AVX512x2(d *fusedArgs)

//go:noescape
func fusedF16AVX512x3(d *fusedArgs)

//go:noescape
func fusedF16AVX512x4(d *fusedArgs)

//go:noescape
func fusedF16AVX2x1(d *fusedArgs)

//go:noescape
func fusedF16AVX2x2(d *fusedArgs)

// The tile kernels multiply 32 rows of a sparse bfloat16 weight with packed rows of one or three parts; see
// sparseTileArgs.

//go:noescape
func sparseAMX1x1(d *sparseTileArgs)

//go:noescape
func sparseAMX1x2(d *sparseTileArgs)

//go:noescape
func sparseAMX3x1(d *sparseTileArgs)

//go:noescape
func sparseAMX3x2(d *sparseTileArgs)
