package quantized

import (
	"encoding/binary"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// What encoders do to many elements, in plain Go. x has whole groups, of 32 elements where nothing else is said.

// largestPortable is the largest magnitude, as bits: those of a NaN are larger than those of an infinity.
func largestPortable(x []float32) int {
	var most uint32
	for _, v := range x {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	return int(most)
}

// extremesPortable finds the first of the elements of the largest magnitude of each group.
func extremesPortable(x, out []float32) {
	for i := range out {
		out[i], _ = extreme(x[32*i:][:32])
	}
}

// bounds32Portable finds the least and the largest element of each group; which zero is not said.
func bounds32Portable(x, low, high []float32) {
	for i := range low {
		low[i], high[i] = bounds(x[32*i:][:32])
	}
}

// roundPortable computes, in groups of n elements, q = clamp(nearest((x + sub)/mul), -half, top - half) + half. Where
// mul is 0, q stays.
func roundPortable(q []byte, x, mul, sub []float32, n, half, top int) {
	least := int32(-half)
	most := int32(top - half)
	for g := range len(x) / n {
		d := mul[g]
		if d == 0 {
			continue
		}
		m := sub[g]
		out := q[g*n:][:n]
		for i, v := range x[g*n:][:n] {
			out[i] = byte(max(least, min(most, nearest((v+m)/d))) + int32(half))
		}
	}
}

// truncatePortable computes q = trunc((x - least)·inverse + shift), at most top.
func truncatePortable(q []byte, x, least, inverse []float32, shift float32, top int) {
	for i, v := range x {
		l := int(int8(trunc(float32((v-least[i/32])*inverse[i/32]) + shift)))
		q[i] = byte(min(l, top))
	}
}

// awayPortable computes q = x·inverse, rounded to nearest with ties away from 0.
func awayPortable(q []byte, x, inverse []float32) {
	for i, v := range x {
		q[i] = byte(away(float32(v * inverse[i/32])))
	}
}

// away rounds to the nearest integer, with ties away from 0. Adding ½ could round a number just below a tie up to the
// integer above.
func away(v float32) int32 {
	n := trunc(v)
	if n == math.MinInt32 {
		return n
	}
	switch rest := v - float32(n); {
	case rest >= .5:
		return n + 1
	case rest <= -.5:
		return n - 1
	}
	return n
}

// e2m1Portable computes the codes of the nearest of the values doubled[code]·d, the smaller one where two are as near.
// No code is that of a negative zero.
func e2m1Portable(q []byte, x, d []float32) {
	for i, v := range x {
		a := abs(v)
		var code byte
		for _, middle := range [7]float32{.5, 1.5, 2.5, 3.5, 5, 7, 10} {
			if a > middle*d[i/32] {
				code++
			}
		}
		if code > 0 && v < 0 {
			code |= 8
		}
		q[i] = code
	}
}

// extentsPortable finds the least and the largest element, and 0, of groups of a multiple of 16; which zero is not
// said.
func extentsPortable(low, high, x []float32, group int) {
	for g := range len(x) / group {
		low[g], high[g] = extent(x[g*group:][:group])
	}
}

// quotientsPortable divides groups of a multiple of 16 by their scales, in place.
func quotientsPortable(x, by []float32, group int) {
	for i := range x {
		x[i] /= by[i/group]
	}
}

// wholesPortable computes q = nearest(clamp(x, low, high)) in such groups, and the values (q - zero)·scale in place.
func wholesPortable(q []byte, x, scale, zero []float32, group int, low, high float32) {
	for i, v := range x {
		whole := nearest(min(max(v, low), high))
		q[i] = byte(whole)
		x[i] = (float32(whole) - zero[i/group]) * scale[i/group]
	}
}

// weighPortable makes the weight of each element from its column's importance and its own size:
// importance·√(square + x²).
func weighPortable(weights, x, importance []float32, square float32) {
	for i, v := range x {
		weights[i] = importance[i] * sqrt(square+float32(v*v))
	}
}

func narrowF16Portable(dst []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint16(dst[2*i:], kernels.ToF16(v))
	}
}

func narrowBF16Portable(dst []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint16(dst[2*i:], kernels.ToBF16(v))
	}
}

// narrow runs a loop over what it takes, and the portable one over the rest.
func narrow(dst []byte, x []float32, fast, rest func([]byte, []float32)) {
	n := len(x) / 16 * 16
	if n > 0 {
		fast(dst, x[:n])
	}
	rest(dst[2*n:], x[n:])
}
