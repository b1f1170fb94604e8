package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// selectKernels is one implementation of the loops under selection, counting and masking. All of them give the same
// bits. Slices that belong together have the length of the first one named.
type selectKernels struct {
	lanes int // keys in a vector; 0 without vectors

	// keysF32 computes dst[j] = key((x[j] & abs) · col[j]); a nil col means ones. keysBF16 and keysF16 widen x first.
	keysF32           func(dst []int32, x, col []float32, abs uint32)
	keysBF16, keysF16 func(dst []int32, x []uint16, col []float32, abs uint32)

	// within copies the keys in [lo, hi] to dst, in order, and counts the keys below lo. It assumes that dst has the
	// length of keys and keyPad writable keys behind; what it leaves there is unspecified.
	within func(dst, keys []int32, lo, hi int32) (kept, below int)
	// above computes mask[j] = keys[j] > t and counts the keys equal to t.
	above func(mask []uint8, keys []int32, t int32) (equal int)
	// groups writes the mask of leading whole groups of 2 to countedGroup keys, of which fewer than all go, and returns
	// how many keys it covered. It assumes that keyPad readable keys follow. Meanwhile it may prefetch the weights at
	// address ahead.
	groups func(mask []uint8, keys []int32, p *groupPlan, ahead uintptr) (done int)

	// sumSq adds to acc[j] the squares of x[i·stride+j] for i in [0, rows), in that order; rows ≤ 4.
	sumSq func(acc []float64, x []float32, stride, rows int)
	// zero32 and zero16 write zero bits to w[j] where mask[j] is 0.
	zero32 func(w []float32, mask []uint8)
	zero16 func(w []uint16, mask []uint8)
	// nonFinite32 and nonFinite16 return the first j whose exponent is all ones, or -1; inf is the format's infinity.
	nonFinite32 func(x []float32) int
	nonFinite16 func(x []uint16, inf uint16) int
	// zeros32, zeros16 and zeros8 count zeros; for floats of either sign.
	zeros32 func(x []float32) int
	zeros16 func(x []uint16) int
	zeros8  func(x []uint8) int
}

// portableSelect is the implementation in plain Go.
var portableSelect = selectKernels{
	keysF32: keysF32, keysBF16: keysBF16, keysF16: keysF16,
	within: within, above: above,
	groups: func([]uint8, []int32, *groupPlan, uintptr) int { return 0 },
	sumSq:  sumSq, zero32: zeroMasked[float32], zero16: zeroMasked[uint16],
	nonFinite32: nonFinite32, nonFinite16: nonFinite16,
	zeros32: zeros32, zeros16: zeros16, zeros8: zeros8,
}

// scoreKey maps a score to its key.
func scoreKey(f float32) int32 {
	if f == 0 {
		return 0
	}
	if f != f {
		return nanKey
	}
	u := int32(math.Float32bits(f))
	return u ^ int32(uint32(u>>31)>>1)
}

// key32 is the key of x (reduced to the bits that count) times col[j]; a nil col means 1.
func key32(bits, abs uint32, col []float32, j int) int32 {
	f := math.Float32frombits(bits & abs)
	if col != nil {
		f *= col[j]
	}
	return scoreKey(f)
}

func keysF32(dst []int32, x, col []float32, abs uint32) {
	for j, v := range x[:len(dst)] {
		dst[j] = key32(math.Float32bits(v), abs, col, j)
	}
}

func keysBF16(dst []int32, x []uint16, col []float32, abs uint32) {
	for j, v := range x[:len(dst)] {
		dst[j] = key32(uint32(v)<<16, abs, col, j)
	}
}

func keysF16(dst []int32, x []uint16, col []float32, abs uint32) {
	for j, v := range x[:len(dst)] {
		dst[j] = key32(math.Float32bits(kernels.FromF16(v)), abs, col, j)
	}
}

func within(dst, keys []int32, lo, hi int32) (kept, below int) {
	dst = dst[:len(keys)]
	for _, k := range keys {
		dst[kept] = k // overwritten by the next key unless it is kept
		kept += b2i(k >= lo && k <= hi)
		below += b2i(k < lo)
	}
	return kept, below
}

func above(mask []uint8, keys []int32, t int32) (equal int) {
	for j, k := range keys[:len(mask)] {
		mask[j] = uint8(b2i(k > t))
		equal += b2i(k == t)
	}
	return equal
}

func sumSq(acc []float64, x []float32, stride, rows int) {
	for i := range rows {
		for j, v := range x[i*stride : i*stride+len(acc)] {
			acc[j] += float64(v) * float64(v)
		}
	}
}

func zeroMasked[T float32 | uint16](w []T, mask []uint8) {
	for j, m := range mask[:len(w)] {
		if m == 0 {
			w[j] = 0
		}
	}
}

func nonFinite32(x []float32) int {
	for j, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return j
		}
	}
	return -1
}

func nonFinite16(x []uint16, inf uint16) int {
	for j, v := range x {
		if v&inf == inf {
			return j
		}
	}
	return -1
}

func zeros32(x []float32) (n int) {
	for _, v := range x {
		n += b2i(v == 0)
	}
	return n
}

func zeros16(x []uint16) (n int) {
	for _, v := range x {
		n += b2i(v&0x7fff == 0)
	}
	return n
}

func zeros8(x []uint8) (n int) {
	for _, v := range x {
		n += b2i(v == 0)
	}
	return n
}
