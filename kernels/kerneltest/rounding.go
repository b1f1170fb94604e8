package kerneltest

// Rounding bounds how far two float32 computations of the same values may lie apart, as a fraction of the largest
// of them, where sums of these many terms feed each other. A sum of n products is within n·2⁻²⁴ of the exact one,
// times the sum of the terms' magnitudes, in any order, with fused multiply-adds or without (Higham, Accuracy and
// Stability of Numerical Algorithms, 2nd ed., 3.5 and 4.4): it is what holds for vectors of every width. Errors of
// sums that feed each other add up, and either computation has its own.
//
// The sum of the magnitudes is not known to a test, which knows the largest result; terms of both signs make it
// smaller than that sum, by about √n, and make roundings cancel, by about √n too.
func Rounding(lengths ...int) float64 {
	n := 0
	for _, l := range lengths {
		n += l
	}
	return 2 * 0x1p-24 * float64(n)
}

// Path is a way through a decoder: how many terms the sums have that feed each other from the embeddings to the
// logits.
type Path struct {
	Blocks, Hidden, Inner, Heads, HeadDim, Vocab int
	Tokens                                       int // of the longest sequence
	Rank                                         int // of low-rank factors beside every matrix; 0: none
}

// Logits is the [Rounding] of logits: queries, scores, weighted values, output projection, gate, down projection
// in every block, the head at the end.
func (p Path) Logits() float64 { return Rounding(p.forward()) }

// Gradients is the [Rounding] of gradients: the way to the logits, the same products back, and sums over the
// tokens of all sequences.
func (p Path) Gradients(tokens int) float64 { return Rounding(2*p.forward(), p.Vocab, tokens) }

func (p Path) forward() int {
	attention := p.Hidden + p.HeadDim + p.Tokens + p.Heads*p.HeadDim
	mlp := p.Hidden + p.Inner
	return p.Blocks*(attention+mlp+4*p.Rank) + p.Hidden // a block multiplies with four matrices in turn
}
