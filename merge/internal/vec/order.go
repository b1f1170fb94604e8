package vec

import (
	"math"
	"math/bits"
	"slices"
)

// Select returns the key of rank at, from 0, in ascending order; ranks past an end are that end's. There is at
// least one key. Only the bits in which keys differ are looked at, eleven in a pass.
func Select(keys []uint32, at int) uint32 {
	at = max(0, min(at, len(keys)-1))
	if len(keys) < 256 {
		sorted := slices.Clone(keys)
		slices.Sort(sorted)
		return sorted[at]
	}

	and, or := keys[0], keys[0]
	for _, k := range keys {
		and &= k
		or |= k
	}

	open := bits.Len32(and ^ or) // bits above are the same in all
	mask := ^(uint32(1)<<open - 1)
	prefix := and & mask
	for open > 0 {
		width := min(open, selectBits)
		shift := open - width
		var h [1 << selectBits]int
		for _, k := range keys {
			if k&mask == prefix {
				h[k>>shift&(1<<width-1)]++
			}
		}

		bin := 0
		for ; at >= h[bin]; bin++ {
			at -= h[bin]
		}

		prefix |= uint32(bin) << shift
		mask |= (1<<width - 1) << shift
		open = shift
	}

	return prefix
}

// selectBits is how many bits a pass of [Select] decides.
const selectBits = 11

// Rank finds the k-th largest key, from 1, of several lists together, which hold k keys at least, and none
// below lo or above hi; how many keys are above it and how many of every list equal it. The lists are read
// twice; what is copied is what shares the upper bits of the result.
func Rank(lists [][]uint32, lo, hi uint32, k int64) (value uint32, above, same int64, equal []int64) {
	open := bits.Len32(hi - lo) // bits of a key, less lo, that are not known yet
	for open > 0 {
		shift := max(0, open-selectBits)
		h := spread(lists, lo, shift)
		bin := len(h) - 1
		for ; bin > 0 && above+h[bin] < k; bin-- {
			above += h[bin]
		}

		lo += uint32(bin) << shift
		lists = sharing(lists, lo, shift)
		open = shift
	}

	for _, list := range lists {
		equal = append(equal, int64(len(list)))
		same += int64(len(list))
	}

	return lo, above, same, equal
}

// spread counts keys by their upper bits: bin i holds those from lo + i<<shift on. Two tables keep equal
// neighbours apart.
func spread(lists [][]uint32, lo uint32, shift int) (h [1 << selectBits]int64) {
	var even, odd [1 << selectBits]uint32
	const last = 1<<selectBits - 1
	for _, list := range lists {
		for len(list) >= 2 {
			even[(list[0]-lo)>>shift&last]++
			odd[(list[1]-lo)>>shift&last]++
			list = list[2:]
		}

		if len(list) > 0 {
			even[(list[0]-lo)>>shift&last]++
		}
		for i := range h { // before a count overflows
			h[i] += int64(even[i]) + int64(odd[i])
		}

		clear(even[:])
		clear(odd[:])
	}

	return h
}

// sharing keeps the keys of a bin, list by list.
func sharing(lists [][]uint32, lo uint32, shift int) [][]uint32 {
	kept := make([][]uint32, len(lists))
	for i, list := range lists {
		for _, key := range list {
			if (key-lo)>>shift == 0 {
				kept[i] = append(kept[i], key)
			}
		}
	}
	return kept
}

// Ranked sorts the positions of a row by magnitude, equal ones by their draws, if there are any, and then by
// position: the upper half of an element is the magnitude, the lower the position. order has room for two lists.
func Ranked(x []float32, draws []uint16, order []uint64) []uint64 {
	a, b := order[:len(x)], order[len(x):2*len(x)]
	for i, v := range x {
		a[i] = uint64(math.Float32bits(v)&math.MaxInt32)<<32 | uint64(i)
	}

	if draws != nil {
		for shift := 0; shift < 16; shift += 8 {
			a, b = ordered(a, b, func(e uint64) int { return int(draws[uint32(e)]>>shift) & 255 })
		}
	}

	for shift := 32; shift < 64; shift += 8 {
		a, b = ordered(a, b, func(e uint64) int { return int(e>>shift) & 255 })
	}

	return a
}

// ordered sorts a by a digit into b, equal ones as they stand, and exchanges the two.
func ordered(a, b []uint64, digit func(e uint64) int) (sorted, spare []uint64) {
	var count [257]int
	for _, e := range a {
		count[digit(e)+1]++
	}
	for i := range 256 {
		count[i+1] += count[i]
	}

	for _, e := range a {
		at := &count[digit(e)]
		b[*at] = e
		*at++
	}

	return b, a
}
