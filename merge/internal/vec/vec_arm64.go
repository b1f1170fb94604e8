//go:build !noasm

package vec

import "github.com/modelcompress/compress/internal/isa"

// choose returns the fastest loops that the instruction sets allow.
func choose(s isa.Sets) *loops {
	if !s.NEON {
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
