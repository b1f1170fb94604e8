//go:build !noasm

package cpu

import "github.com/modelcompress/compress/kernels"

// vectorLoops returns the fastest loops that the instruction sets allow.
func vectorLoops(f features) *loops {
	if !f.NEON {
		return portableLoops()
	}
	return &loops{
		add: addNEON, scale: scaleNEON,
		widenBF16: widenRowBF16NEON, widenF16: widenRowF16NEON,
		narrowBF16: narrowRowBF16NEON, narrowF16: narrowRowF16NEON,
		act: [...]func(dst, x []float32){
			kernels.SiLU: siluNEON, kernels.GELU: geluNEON, kernels.GELUTanh: geluTanhNEON, kernels.ReLU: reluNEON,
		},
		gate: [...]func(dst, g, u []float32){
			kernels.SiLU: siluGateNEON, kernels.GELU: geluGateNEON, kernels.GELUTanh: geluTanhGateNEON,
			kernels.ReLU: reluGateNEON,
		},
		tanh: tanhNEON, sum: sumNEON, sumSq: sumSqNEON, sumSqDev: sumSqDevNEON, norm: normNEON, affine: affineNEON,
		top: topNEON, exp: expNEON, expSum: expSumNEON, rope: ropeNEON, ropePairs: ropePairsNEON,
		dots: dotsNEON, weigh: weighNEON,
		lanes: laneLoops{
			n: 24, load: laneLoadNEON, tile: laneTileNEON, mask: laneMaskNEON, soft: laneSoftNEON,
			store: laneStoreNEON,
		},
	}
}
