//go:build !noasm

package cpu

// selectKernelsFor returns the fastest kernels for the processor.
func selectKernelsFor(f features) *selectKernels {
	if f.NEON {
		return selectNEON.kernels()
	}
	return &portableSelect
}

var selectNEON = selectAsm{
	lanes: 8, keys: keysF32NEON, bf16: keysBF16NEON, f16: keysF16NEON, within: withinByTable, above: aboveNEON,
	rank: groupsNEON, wide: wideGroupsNEON,
	sumSq1: sumSq1NEON, sumSq4: sumSq4NEON, zero32: zero32NEON, zero16: zero16NEON,
	finite32: finite32NEON, finite16: finite16NEON, count32: count32NEON, count16: count16NEON, count8: count8NEON,
}

func withinByTable(dst, keys *int32, n int, lo, hi int32) (kept, below int) {
	return withinNEON(dst, keys, n, lo, hi, &packTable)
}
