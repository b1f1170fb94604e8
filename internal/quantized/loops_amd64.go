//go:build amd64 && !noasm

package quantized

import "github.com/modelcompress/compress/internal/isa"

// choose returns the fastest loops that the instruction sets allow.
func choose(s isa.Sets) *loops {
	switch {
	case !s.AVX2NoFMA:
		return &portable
	case !s.AVX512:
		return &loops{
			codes: codesAVX2, tableLanes: tableLanesAVX2, descentLanes: descentLanesAVX2,
			largest: largestAVX2, extremes: extremesAVX2,
			bounds32: bounds32AVX2, round: roundAVX2, truncate: truncateAVX2, away: awayAVX2,
			e2m1: e2m1AVX2, extents: extentsAVX2, quotients: quotientsAVX2, wholes: wholesAVX2,
			weigh: weighAVX2, narrowF16: narrowF16AVX2, narrowBF16: narrowBF16AVX2,
			lanes: 8, offsetLanes: offsetLanesAVX2, symmetricLanes: symmetricLanesAVX2,
			spreadLanes: spreadLanesAVX2, magnitudeLanes: magnitudeLanesAVX2, squareLanes: squareLanesAVX2,
			scale: scaleAVX2, affine: affineAVX2, scaleBF16: scaleBF16AVX2, affineBF16: affineBF16AVX2,
			translate: translateAVX2,
			widenF16:  widenF16AVX2, widenBF16: widenBF16AVX2,
			roundF16: roundF16AVX2, roundBF16: roundBF16AVX2,
		}
	}
	return &loops{
		codes: codesAVX512, tableLanes: tableLanesAVX512, descentLanes: descentLanesAVX512,
		largest: largestAVX512, extremes: extremesAVX512,
		bounds32: bounds32AVX512, round: roundAVX512, truncate: truncateAVX512, away: awayAVX512,
		e2m1: e2m1AVX512, extents: extentsAVX512, quotients: quotientsAVX512, wholes: wholesAVX512,
		weigh: weighAVX512, narrowF16: narrowF16AVX512, narrowBF16: narrowBF16AVX512,
		lanes: 16, offsetLanes: offsetLanesAVX512, symmetricLanes: symmetricLanesAVX512,
		spreadLanes: spreadLanesAVX512, magnitudeLanes: magnitudeLanesAVX512, squareLanes: squareLanesAVX512,
		scale: scaleAVX512, affine: affineAVX512, scaleBF16: scaleBF16AVX512, affineBF16: affineBF16AVX512,
		translate: translateAVX512,
		widenF16:  widenF16AVX512, widenBF16: widenBF16AVX512,
		roundF16: roundF16AVX512, roundBF16: roundBF16AVX512,
	}
}
