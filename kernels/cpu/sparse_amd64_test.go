//go:build !noasm

package cpu

// oldSparseDevices are processors with AVX-512 that cannot expand elements of 16 bits.
func oldSparseDevices(threads int) map[string]*Device {
	f := detect("amx")
	if !f.AVX512 {
		return nil
	}
	f.AVX512VBMI2 = false
	d := deviceWith(f, threads)
	s := &sparseOps{matmuls: *d.matmuls(), sparse: sparseKernelsOf(f)}
	d.ops.MatMulSparse, d.ops.Expand = s.matMul, s.expand
	return map[string]*Device{"avx512 without vbmi2": d}
}
