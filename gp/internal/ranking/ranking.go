// Package ranking finds which elements of a row of scores are pruned first.
package ranking

import (
	"encoding/binary"
	"math"
	"slices"
)

// Keys writes keys that order as the scores do, -0 with +0 and NaN on top.
func Keys(keys []uint32, row []float32) {
	for j, v := range row {
		u := math.Float32bits(v)
		switch {
		case v != v:
			u = math.MaxUint32
		case u<<1 == 0:
			u = 1 << 31
		case u>>31 != 0:
			u = ^u
		default:
			u |= 1 << 31
		}

		keys[j] = u
	}
}

// Distinct counts the different keys; scratch has their length.
func Distinct(scratch, keys []uint32) (n int) {
	copy(scratch, keys)
	slices.Sort(scratch)
	for i, k := range scratch {
		if i == 0 || k != scratch[i-1] {
			n++
		}
	}
	return n
}

// Half appends the mask of the lower half of a row, bit = pruned, of equal keys the lower column; scratch has
// the length of keys.
func Half(mask []byte, scratch, keys []uint32) []byte {
	drop := len(keys) / 2
	if drop == 0 {
		return mask
	}

	copy(scratch, keys)
	limit := nth(scratch, drop-1)
	ties := drop
	for _, k := range keys {
		if k < limit {
			ties--
		}
	}

	var word uint64
	for j, k := range keys {
		if k < limit || k == limit && ties > 0 {
			word |= 1 << (j % 64)
			if k == limit {
				ties--
			}
		}

		if j%64 == 63 || j == len(keys)-1 {
			mask, word = binary.LittleEndian.AppendUint64(mask, word), 0
		}
	}

	return mask
}

// nth returns the key of rank n, from 0, and disorders the keys (Hoare's selection with the median of three).
func nth(keys []uint32, n int) uint32 {
	lo, hi := 0, len(keys)-1
	for lo < hi {
		a := keys[lo]
		b := keys[(lo+hi)/2]
		c := keys[hi]

		pivot := max(min(a, b), min(max(a, b), c))
		i, j := lo, hi
		for i <= j {
			for keys[i] < pivot {
				i++
			}
			for keys[j] > pivot {
				j--
			}

			if i <= j {
				keys[i], keys[j] = keys[j], keys[i]
				i++
				j--
			}
		}

		switch {
		case n <= j:
			hi = j
		case n >= i:
			lo = i
		default:
			return keys[n]
		}
	}

	return keys[n]
}

// Quads appends the mask of the two lowest of every four columns, four bits a group, of equal keys the lower column. A
// short last group loses two as well.
func Quads(mask []byte, keys []uint32) []byte {
	for len(keys) >= 4 {
		a := keys[0]
		b := keys[1]
		c := keys[2]

		d := keys[3]
		ba := less(b, a)
		ca := less(c, a)
		da := less(d, a)

		cb := less(c, b)
		db := less(d, b)
		dc := less(d, c)
		mask = append(mask, two(ba+ca+da)|two(1-ba+cb+db)<<1|two(1-ca+1-cb+dc)<<2|two(1-da+1-db+1-dc)<<3)
		keys = keys[4:]
	}

	return append(mask, byte(len(keys)))
}

// less is 1 if a < b, else 0.
func less(a, b uint32) byte { return byte((uint64(a) - uint64(b)) >> 63) }

// two is 1 if fewer than two elements go before, else 0.
func two(before byte) byte { return (before - 2) >> 7 }
