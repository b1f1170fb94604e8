//go:build amd64 && !noasm

package lanes

import "github.com/modelcompress/compress/internal/isa"

//go:generate go -C _gen run . ..

// vector returns the loops in assembly that the instruction sets allow, fastest last.
func vector(s isa.Sets) (list []*Loops) {
	if s.AVX2 {
		list = append(list, &avx2)
	}
	if s.AVX512 {
		list = append(list, &avx512)
	}
	return list
}

var avx512 = Loops{
	Name: "avx512",
	Sqr:  padded(sqrAVX512), Neg: padded(negAVX512), Abs: padded(absAVX512), Log: padded(logAVX512),
	Exp:  padded(expAVX512),
	Sqrt: padded(sqrtAVX512), Tanh: padded(tanhAVX512), Affine: paddedAffine(affineAVX512),
	Add: paddedPairs(addAVX512), Sub: paddedPairs(subAVX512), Mul: paddedPairs(mulAVX512), Min: paddedPairs(minAVX512),
	Max: paddedPairs(maxAVX512), Pdiv: paddedPairs(pdivAVX512),
	BF16: paddedWiden(bf16AVX512), F16: paddedWiden(f16AVX512),
	Range: folded(extremesAVX512), SumAbs: laned(sumAbsAVX512, plusAbs), SumSq: laned(sumSqAVX512, plusSq),
	Moments: lanedMoments(momentsAVX512), AddAbs: columns(addAbsAVX512, portable.AddAbs),
	AddSq:  columns(addSqAVX512, portable.AddSq),
	Finite: allFinite(finiteAVX512),
}

var avx2 = Loops{
	Name: "avx2",
	Sqr:  padded(sqrAVX2), Neg: padded(negAVX2), Abs: padded(absAVX2), Log: padded(logAVX2), Exp: padded(expAVX2),
	Sqrt: padded(sqrtAVX2), Tanh: padded(tanhAVX2), Affine: paddedAffine(affineAVX2),
	Add: paddedPairs(addAVX2), Sub: paddedPairs(subAVX2), Mul: paddedPairs(mulAVX2), Min: paddedPairs(minAVX2),
	Max: paddedPairs(maxAVX2), Pdiv: paddedPairs(pdivAVX2),
	BF16: paddedWiden(bf16AVX2), F16: paddedWiden(f16AVX2),
	Range: folded(extremesAVX2), SumAbs: laned(sumAbsAVX2, plusAbs), SumSq: laned(sumSqAVX2, plusSq),
	Moments: lanedMoments(momentsAVX2), AddAbs: columns(addAbsAVX2, portable.AddAbs),
	AddSq:  columns(addSqAVX2, portable.AddSq),
	Finite: allFinite(finiteAVX2),
}
