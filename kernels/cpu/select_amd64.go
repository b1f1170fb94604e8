//go:build amd64 && !noasm

package cpu

// selectKernelsFor returns the fastest kernels for the processor.
func selectKernelsFor(features) *selectKernels { return &portableSelect }
