//go:build !noasm

package vec

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
		add: addNEON, scale: scaleNEON, widenBF16: widenRowBF16NEON, widenF16: widenRowF16NEON,
		narrowBF16: narrowRowBF16NEON, narrowF16: narrowRowF16NEON, dot: dotNEON, sumAbs: sumAbsNEON,
		peak:   peakNEON,
		within: withinNEON, tally: tallyNEON, elect: electNEON, ratio: ratioNEON, ratioFloor: ratioFloorNEON,
		dropout: dropoutNEON, apart: apartNEON, lanes: lanesNEON,
		mix: mixNEON, mixDelta: mixDeltaNEON, windowSum: windowSumNEON, windowElect: windowElectNEON,
		randomSum: randomSumNEON, randomElect: randomElectNEON, pair: pairNEON, pairDelta: pairDeltaNEON,
		tallyDelta: tallyDeltaNEON, signs: signsNEON, equal: equalNEON, equalDelta: equalDeltaNEON,
	}
}
