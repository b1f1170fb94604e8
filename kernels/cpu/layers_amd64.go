//go:build amd64 && !noasm

package cpu

// vectorLoops returns the fastest loops that the instruction sets allow.
func vectorLoops(f features) *loops { return portableLoops() }
