//go:build amd64 && !noasm

package vec

import "github.com/modelcompress/compress/internal/isa"

// choose returns the fastest loops that the instruction sets allow.
func choose(s isa.Sets) *loops {
	switch {
	case !s.AVX2 || !s.BMI:
		return &portable
	case !s.AVX512:
		return &loops{
			add: addAVX2, scale: scaleAVX2, widenBF16: widenRowBF16AVX2, widenF16: widenRowF16AVX2,
			narrowBF16: narrowRowBF16AVX2, narrowF16: narrowRowF16AVX2, dot: dotAVX2, sumAbs: sumAbsAVX2,
			peak:   peakAVX2,
			within: withinAVX2, tally: tallyAVX2, elect: electAVX2, ratio: ratioAVX2, ratioFloor: ratioFloorAVX2,
			dropout: dropoutAVX2, apart: apartAVX2, lanes: lanesAVX2,
			mix: mixAVX2, mixDelta: mixDeltaAVX2, windowSum: windowSumAVX2, windowElect: windowElectAVX2,
			randomSum: randomSumAVX2, randomElect: randomElectAVX2, pair: pairAVX2, pairDelta: pairDeltaAVX2,
			tallyDelta: tallyDeltaAVX2, signs: signsAVX2, equal: equalAVX2, equalDelta: equalDeltaAVX2,
		}
	}

	return &loops{
		add: addAVX512, scale: scaleAVX512, widenBF16: widenRowBF16AVX512, widenF16: widenRowF16AVX512,
		narrowBF16: narrowRowBF16AVX512, narrowF16: narrowRowF16AVX512, dot: dotAVX512, sumAbs: sumAbsAVX512,
		peak:   peakAVX512,
		within: withinAVX512, tally: tallyAVX512, elect: electAVX512, ratio: ratioAVX512, ratioFloor: ratioFloorAVX512,
		dropout: dropoutAVX512, apart: apartAVX512, lanes: lanesAVX512,
		mix: mixAVX512, mixDelta: mixDeltaAVX512, windowSum: windowSumAVX512, windowElect: windowElectAVX512,
		randomSum: randomSumAVX512, randomElect: randomElectAVX512, pair: pairAVX512, pairDelta: pairDeltaAVX512,
		tallyDelta: tallyDeltaAVX512, signs: signsAVX512, equal: equalAVX512, equalDelta: equalDeltaAVX512,
	}
}
