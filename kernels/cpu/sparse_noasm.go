//go:build (!amd64 && !arm64) || noasm

package cpu

// sparseKernelsOf returns none: this build expands in Go.
func sparseKernelsOf(features) sparseKernels { return sparseKernels{} }
