package vec

import (
	"math"
	"math/bits"
	"slices"
)

// Select returns the key of rank at, from 0, in ascending order; ranks past an end are that end's. There is at least one key. Only
// the bits in which keys differ are looked at, eleven in a pass.
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

// Ranked sorts the positions of a row by magnitude, equal ones by position: the upper half of an element is the magnitude, the
// lower the position. order has room for two lists.
func Ranked(x []float32, order []uint64) []uint64 {
	a, b := order[:len(x)], order[len(x):2*len(x)]
	for i, v := range x {
		a[i] = uint64(math.Float32bits(v)&math.MaxInt32)<<32 | uint64(i)
	}
	for shift := 32; shift < 64; shift += 8 {
		var count [257]int
		for _, e := range a {
			count[e>>shift&255+1]++
		}
		for i := range 256 {
			count[i+1] += count[i]
		}
		for _, e := range a {
			at := &count[e>>shift&255]
			b[*at] = e
			*at++
		}
		a, b = b, a
	}
	return a
}
