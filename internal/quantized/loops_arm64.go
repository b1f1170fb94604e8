//go:build !noasm

package quantized

import (
	"strings"

	"golang.org/x/sys/cpu"
)

// choose returns the fastest loops that the processor has and the list does not switch off.
func choose(disable string) *loops {
	if strings.Contains(disable, "neon") || !cpu.ARM64.HasASIMD {
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
