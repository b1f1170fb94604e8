//go:build (!amd64 && !arm64) || noasm

package cpu

// vectorLoops returns the loops of this build.
func vectorLoops(features) *loops { return portableLoops() }
