//go:build (!amd64 && !arm64) || noasm

package cpu

import "unsafe"

// matmulKernels returns the portable kernels: this build has no others.
func matmulKernels(features) kernelSet { return portableKernels }

// peakKernels returns the kernel that only multiplies and adds.
func peakKernels(features) []peakKernel { return []peakKernel{portablePeak} }

// readStream reads n bytes, a multiple of 1024 greater than 0.
func readStream(_ features, p unsafe.Pointer, n int) uint64 {
	return readStreamPortable(unsafe.Slice((*uint64)(p), n/8))
}
