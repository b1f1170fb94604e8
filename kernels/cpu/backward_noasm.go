//go:build (!amd64 && !arm64) || noasm

package cpu

// vectorGradLoops returns the loops of gradients of this build.
func vectorGradLoops(features) *gradLoops { return portableGradLoops() }
