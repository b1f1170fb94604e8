//go:build (!amd64 && !arm64) || noasm

package cpu

// selectKernelsFor returns the portable kernels: this build has no others.
func selectKernelsFor(features) *selectKernels { return &portableSelect }
