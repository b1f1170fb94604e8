//go:build (!amd64 && !arm64) || noasm

package cpu

// quantKernelsOf returns none: this build takes weights apart in Go.
func quantKernelsOf(features) quantKernels { return quantKernels{} }
