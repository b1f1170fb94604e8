//go:build arm64 && !noasm

package lanes

import "github.com/modelcompress/compress/internal/isa"

// vector returns the loops in assembly that the instruction sets allow, fastest last.
func vector(s isa.Sets) (list []*Loops) {
	if s.NEON {
		list = append(list, &neon)
	}
	return list
}

var neon = Loops{
	Name: "neon",
	Sqr:  padded(sqrNEON), Neg: padded(negNEON), Abs: padded(absNEON), Log: padded(logNEON), Exp: padded(expNEON),
	Sqrt: padded(sqrtNEON), Tanh: padded(tanhNEON), Affine: paddedAffine(affineNEON),
	Add: paddedPairs(addNEON), Sub: paddedPairs(subNEON), Mul: paddedPairs(mulNEON), Min: paddedPairs(minNEON),
	Max: paddedPairs(maxNEON), Pdiv: paddedPairs(pdivNEON),
	BF16: paddedWiden(bf16NEON), F16: paddedWiden(f16NEON),
	Range: folded(extremesNEON), SumAbs: laned(sumAbsNEON, plusAbs), SumSq: laned(sumSqNEON, plusSq),
	Moments: lanedMoments(momentsNEON), AddAbs: columns(addAbsNEON, portable.AddAbs),
	AddSq:  columns(addSqNEON, portable.AddSq),
	Finite: allFinite(finiteNEON),
}
