//go:build amd64 && !noasm

package cpu

// selectKernelsFor returns the fastest kernels for the processor.
func selectKernelsFor(f features) *selectKernels {
	switch {
	case f.AVX512:
		return selectAVX512.kernels()
	case f.AVX2:
		return selectAVX2.kernels()
	}
	return &portableSelect
}

var selectAVX512 = selectAsm{
	lanes: 16, keys: keysF32AVX512, bf16: keysBF16AVX512, f16: keysF16AVX512, within: withinAVX512, above: aboveAVX512,
	rank: groupsAVX512, wide: wideGroupsAVX2,
	sumSq1: sumSq1AVX512, sumSq4: sumSq4AVX512, zero32: zero32AVX512, zero16: zero16AVX512,
	finite32: finite32AVX512, finite16: finite16AVX512, count32: count32AVX512, count16: count16AVX512,
	count8: count8AVX512,
}

var selectAVX2 = selectAsm{
	lanes: 8, keys: keysF32AVX2, bf16: keysBF16AVX2, f16: keysF16AVX2, within: withinByTable, above: aboveAVX2,
	rank: groupsAVX2, wide: wideGroupsAVX2,
	sumSq1: sumSq1AVX2, sumSq4: sumSq4AVX2, zero32: zero32AVX2, zero16: zero16AVX2,
	finite32: finite32AVX2, finite16: finite16AVX2, count32: count32AVX2, count16: count16AVX2, count8: count8AVX2,
}

func withinByTable(dst, keys *int32, n int, lo, hi int32) (kept, below int) {
	return withinAVX2(dst, keys, n, lo, hi, &packTable)
}
