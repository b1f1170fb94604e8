//go:build arm64 && !noasm

package lanes

import "golang.org/x/sys/cpu"

// vector returns the loops in assembly that the processor has and allow lets through, fastest last.
func vector(allow func(set string) bool) (list []*Loops) {
	if cpu.ARM64.HasASIMD && allow("neon") {
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
