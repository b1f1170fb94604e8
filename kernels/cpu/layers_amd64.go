//go:build amd64 && !noasm

package cpu

import "github.com/modelcompress/compress/kernels"

// vectorLoops returns the fastest loops that the instruction sets allow.
func vectorLoops(f features) *loops {
	switch {
	case f.AVX512:
		return &loops{
			add: addAVX512, scale: scaleAVX512,
			widenBF16: widenRowBF16AVX512, widenF16: widenRowF16AVX512,
			narrowBF16: narrowRowBF16AVX512, narrowF16: narrowRowF16AVX512,
			act: [...]func(dst, x []float32){
				kernels.SiLU: siluAVX512, kernels.GELU: geluAVX512, kernels.GELUTanh: geluTanhAVX512,
				kernels.ReLU: reluAVX512,
			},
			gate: [...]func(dst, g, u []float32){
				kernels.SiLU: siluGateAVX512, kernels.GELU: geluGateAVX512, kernels.GELUTanh: geluTanhGateAVX512,
				kernels.ReLU: reluGateAVX512,
			},
			tanh: tanhAVX512, sum: sumAVX512, sumSq: sumSqAVX512, sumSqDev: sumSqDevAVX512, norm: normAVX512,
			affine: affineAVX512,
			top:    topAVX512, exp: expAVX512, expSum: expSumAVX512, rope: ropeAVX512, ropePairs: ropePairsAVX512,
			dots: dotsAVX512, weigh: weighAVX512,
			lanes: laneLoops{
				n: 32, load: laneLoadAVX512, tile: laneTileAVX512, mask: laneMaskAVX512,
				soft: laneSoftAVX512, store: laneStoreAVX512,
			},
		}
	case f.AVX2:
		return &loops{
			add: addAVX2, scale: scaleAVX2,
			widenBF16: widenRowBF16AVX2, widenF16: widenRowF16AVX2,
			narrowBF16: narrowRowBF16AVX2, narrowF16: narrowRowF16AVX2,
			act: [...]func(dst, x []float32){
				kernels.SiLU: siluAVX2, kernels.GELU: geluAVX2, kernels.GELUTanh: geluTanhAVX2, kernels.ReLU: reluAVX2,
			},
			gate: [...]func(dst, g, u []float32){
				kernels.SiLU: siluGateAVX2, kernels.GELU: geluGateAVX2, kernels.GELUTanh: geluTanhGateAVX2,
				kernels.ReLU: reluGateAVX2,
			},
			tanh: tanhAVX2, sum: sumAVX2, sumSq: sumSqAVX2, sumSqDev: sumSqDevAVX2, norm: normAVX2, affine: affineAVX2,
			top: topAVX2, exp: expAVX2, expSum: expSumAVX2, rope: ropeAVX2, ropePairs: ropePairsAVX2,
			dots: dotsAVX2, weigh: weighAVX2,
			lanes: laneLoops{
				n: 24, load: laneLoadAVX2, tile: laneTileAVX2, mask: laneMaskAVX2, soft: laneSoftAVX2,
				store: laneStoreAVX2,
			},
		}
	}

	return portableLoops()
}
