//go:build !noasm

package quantized

import "github.com/modelcompress/compress/internal/isa"

// choose returns the fastest loops that the instruction sets allow.
func choose(s isa.Sets) *loops {
	if !s.NEON {
		return &portable
	}
	return &loops{
		codes: codesNEON, tableLanes: tableLanesNEON, descentLanes: descentLanesNEON,
		largest: largestNEON, extremes: extremesNEON,
		bounds32: bounds32NEON, round: roundNEON, truncate: truncateNEON, away: awayNEON,
		e2m1: e2m1NEON, extents: extentsNEON, quotients: quotientsNEON, wholes: wholesNEON,
		weigh: weighNEON, narrowF16: narrowF16NEON, narrowBF16: narrowBF16NEON,
		lanes: 8, offsetLanes: offsetLanesNEON, symmetricLanes: symmetricLanesNEON,
		spreadLanes: spreadLanesNEON, magnitudeLanes: magnitudeLanesNEON, squareLanes: squareLanesNEON,
		scale: scaleNEON, affine: affineNEON, scaleBF16: scaleBF16NEON, affineBF16: affineBF16NEON,
		translate: translateNEON,
		widenF16:  widenF16NEON, widenBF16: widenBF16NEON,
		roundF16: roundF16NEON, roundBF16: roundBF16NEON,
	}
}
