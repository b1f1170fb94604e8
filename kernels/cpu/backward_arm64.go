//go:build !noasm

package cpu

import "github.com/modelcompress/compress/kernels"

// vectorGradLoops returns the fastest loops of gradients that the instruction sets allow.
func vectorGradLoops(f features) *gradLoops {
	if !f.NEON {
		return portableGradLoops()
	}
	return &gradLoops{
		act: [...]func(dx, dy, x []float32){
			kernels.SiLU: siluSlopeNEON, kernels.GELU: geluSlopeNEON, kernels.GELUTanh: geluTanhSlopeNEON,
			kernels.ReLU: reluSlopeNEON,
		},
		gate: [...]func(dg, du, dy, g, u []float32){
			kernels.SiLU: siluGateSlopeNEON, kernels.GELU: geluGateSlopeNEON,
			kernels.GELUTanh: geluTanhGateSlopeNEON,
			kernels.ReLU:     reluGateSlopeNEON,
		},
		softcap: softcapSlopeNEON, softmax: softmaxSlopeNEON, dot: dotNEON, square: addSquareNEON, sum: sumIntoNEON,
		sumFour: sumFourIntoNEON,
		moments: momentsNEON, norm: normSlopeNEON, scores: laneScoresNEON, lanes: vectorLoops(f).lanes,
	}
}
