//go:build amd64 && !noasm

package cpu

import "github.com/modelcompress/compress/kernels"

// vectorGradLoops returns the fastest loops of gradients that the instruction sets allow.
func vectorGradLoops(f features) *gradLoops {
	switch {
	case f.AVX512:
		return &gradLoops{
			act: [...]func(dx, dy, x []float32){
				kernels.SiLU: siluSlopeAVX512, kernels.GELU: geluSlopeAVX512, kernels.GELUTanh: geluTanhSlopeAVX512,
				kernels.ReLU: reluSlopeAVX512,
			},
			gate: [...]func(dg, du, dy, g, u []float32){
				kernels.SiLU: siluGateSlopeAVX512, kernels.GELU: geluGateSlopeAVX512,
				kernels.GELUTanh: geluTanhGateSlopeAVX512,
				kernels.ReLU:     reluGateSlopeAVX512,
			},
			softcap: softcapSlopeAVX512, softmax: softmaxSlopeAVX512, dot: dotAVX512, square: addSquareAVX512,
			sum: sumIntoAVX512, sumFour: sumFourIntoAVX512,
			moments: momentsAVX512, norm: normSlopeAVX512, scores: laneScoresAVX512, lanes: vectorLoops(f).lanes,
		}
	case f.AVX2:
		return &gradLoops{
			act: [...]func(dx, dy, x []float32){
				kernels.SiLU: siluSlopeAVX2, kernels.GELU: geluSlopeAVX2, kernels.GELUTanh: geluTanhSlopeAVX2,
				kernels.ReLU: reluSlopeAVX2,
			},
			gate: [...]func(dg, du, dy, g, u []float32){
				kernels.SiLU: siluGateSlopeAVX2, kernels.GELU: geluGateSlopeAVX2,
				kernels.GELUTanh: geluTanhGateSlopeAVX2,
				kernels.ReLU:     reluGateSlopeAVX2,
			},
			softcap: softcapSlopeAVX2, softmax: softmaxSlopeAVX2, dot: dotAVX2, square: addSquareAVX2, sum: sumIntoAVX2,
			sumFour: sumFourIntoAVX2,
			moments: momentsAVX2, norm: normSlopeAVX2, scores: laneScoresAVX2, lanes: vectorLoops(f).lanes,
		}
	}

	return portableGradLoops()
}
