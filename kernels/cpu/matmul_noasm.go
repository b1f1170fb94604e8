//go:build !amd64 || noasm

package cpu

import "unsafe"

// matmulKernels returns the portable kernels: this build has no others.
func matmulKernels(features) kernelSet { return portableKernels }

// peakKernel returns the kernel that only multiplies and adds, and the floating-point operations of one round.
func peakKernel(features) (run func(int), flops int) { return peakPortable, portablePeakFlops }

// readStream reads n bytes, a multiple of 1024 greater than 0.
func readStream(_ features, p unsafe.Pointer, n int) uint64 {
	return readStreamPortable(unsafe.Slice((*uint64)(p), n/8))
}
