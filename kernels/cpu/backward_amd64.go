//go:build amd64 && !noasm

package cpu

// vectorGradLoops returns the fastest loops of gradients that the instruction sets allow.
func vectorGradLoops(f features) *gradLoops {
	g := portableGradLoops()
	if l := vectorLoops(f).lanes; l.n > 0 {
		g.lanes = l
	}
	return g
}
