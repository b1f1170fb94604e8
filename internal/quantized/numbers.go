package quantized

import (
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// Numbers are what the elements of a matrix become in the folders of compressed-tensors and GPTQ: whole numbers, or
// floats of 8 or 4 bits. An element is (code - zero)·scale. What is computed here is rounded as compressed-tensors
// rounds it, whose tensors all have the type of the weights.
type Numbers struct {
	Float      bool // E4M3 with 8 bits, E2M1 with 4
	Bits       int
	Symmetric  bool // without zero points
	PowerOfTwo bool // scales are powers of two
	// DType is the type of the weights and of the scales: F32, F16 or BF16.
	DType safetensors.DType
}

// smallestScale stands for a scale of 0: the distance of 1 to the next number of the type.
func (n Numbers) smallestScale() float32 {
	switch n.DType {
	case safetensors.BF16:
		return 0x1p-7
	case safetensors.F16:
		return 0x1p-10
	}
	return 0x1p-23
}

// limits are the lowest and the highest number.
func (n Numbers) limits() (lo, hi float32) {
	switch {
	case n.Float && n.Bits == 8:
		return -448, 448
	case n.Float:
		return -6, 6
	}
	half := float32(int(1) << (n.Bits - 1))
	return -half, half - 1
}

// round rounds to the type of the weights.
func (n Numbers) round(v float32) float32 {
	switch n.DType {
	case safetensors.BF16:
		return kernels.FromBF16(kernels.ToBF16(v))
	case safetensors.F16:
		return kernels.FromF16(kernels.ToF16(v))
	}
	return v
}

// Fit gives the scale and zero point of elements from lo to hi, numbers of the type; 0 always has a code of its own.
func (n Numbers) Fit(lo, hi float32) (scale float32, zero int) {
	lo, hi = min(lo, 0), max(hi, 0)
	first, last := n.limits()
	if n.Symmetric {
		largest := max(-lo, hi)
		if n.PowerOfTwo {
			if scale = n.round(n.powerOfTwo(largest)); scale == 0 {
				scale = 1 // below the numbers of the type
			}
			return scale, 0
		}
		scale = n.round(largest / ((last - first) / 2))
	} else {
		scale = n.round(n.round(hi-lo) / (last - first))
	}

	// By a scale of 0 the zero point is no number, which is 0 in integers.
	if !n.Symmetric && scale != 0 {
		z := n.round(first - n.round(lo/scale))
		zero = int(math.RoundToEven(float64(min(max(z, first), last))))
	}
	if scale == 0 {
		scale = n.smallestScale()
	}

	return scale, zero
}

// powerOfTwo is the scale of an MX format for a largest magnitude: its power of two, or the next one where the mantissa
// is 1.75 and more, over 4, the largest power of two of E2M1.
func (n Numbers) powerOfTwo(largest float32) float32 {
	bits := math.Float32bits(largest)
	if n.DType == safetensors.F16 {
		// On the bits of the type, since numbers below the normal ones have other mantissas there.
		h := uint32(kernels.ToF16(largest))
		bits = math.Float32bits(kernels.FromF16(uint16((h + 1<<8) & 0xfc00)))
	} else {
		bits = (bits + 1<<21) & 0xff800000
	}

	power := math.Float32frombits(bits)
	if power == 0 {
		return 0x1p-127
	}
	exponent := math.Ilogb(float64(power)) - 2
	return float32(math.Ldexp(1, max(exponent, -127)))
}

// GlobalScale is what the scales of NVFP4 are multiplied by, by the largest magnitude of the matrix: it brings them
// into the range of E4M3.
func (n Numbers) GlobalScale(largest float32) float32 {
	tiny := float32(0x1p-126)
	if n.DType == safetensors.F16 {
		tiny = 0x1p-14
	}

	g := n.round(n.round(1/max(largest, tiny)) * (448 * 6))
	if g > math.MaxFloat32 {
		return 1
	}
	return g
}

// FitE4M3 is the scale of a group of NVFP4, a number of E4M3, by its largest magnitude.
func (n Numbers) FitE4M3(largest, global float32) float32 {
	s := e4m3[toE4M3(min(global*n.round(largest/6), 448))]
	if s == 0 {
		return 0.125
	}
	return s
}

// Code is the code of an element, by the quotient as it is: for elements that have been computed in float32. Whole
// numbers are in two's complement.
func (n Numbers) Code(w, scale float32, zero int) byte { return n.code(w/scale, zero) }

// CodeRounded is the code of an element that is a number of the type, where the quotient is rounded to it too.
func (n Numbers) CodeRounded(w, scale float32, zero int) byte {
	q := n.round(w / scale)
	if zero != 0 {
		return n.code(n.round(q+float32(zero)), 0)
	}
	return n.code(q, 0)
}

func (n Numbers) code(q float32, zero int) byte {
	if zero != 0 { // adding 0 would take the sign from a -0, which floats keep
		q += float32(zero)
	}
	first, last := n.limits()
	q = min(max(q, first), last)
	switch {
	case n.Float && n.Bits == 8:
		return toE4M3(q)
	case n.Float:
		return toE2M1(q)
	}
	return byte(int8(nearest(q)))
}

// Value is the element of a code.
func (n Numbers) Value(code byte, scale float32, zero int) float32 {
	switch {
	case n.Float && n.Bits == 8:
		return e4m3[code] * scale
	case n.Float:
		return e2m1[code&15] * scale
	}
	return float32(int(int8(code))-zero) * scale
}

// toE4M3 rounds to the nearest E4M3, of two the even one; |v| is at most 448.
func toE4M3(v float32) byte {
	sign := byte(math.Float32bits(v) >> 24 & 0x80)
	v = abs(v)
	if v < 0x1p-6 { // steps of 2⁻⁹
		return sign | byte(nearest(v*0x1p9))
	}

	// Rounds to three bits of mantissa; a carry goes on into the exponent, whose bias is 7 and not 127.
	b := math.Float32bits(v)
	b += 0x7ffff + b>>20&1
	return sign | byte(b>>20-120<<3)
}

// toE2M1 rounds to the nearest E2M1, of two the even one. A negative number that becomes 0 keeps its sign, as -0 does
// not.
func toE2M1(v float32) byte {
	sign := byte(0)
	if v < 0 {
		sign = 8
		v = -v
	}

	switch {
	case v <= 0.25:
		return sign
	case v < 0.75:
		return sign | 1
	case v <= 1.25:
		return sign | 2
	case v < 1.75:
		return sign | 3
	case v <= 2.5:
		return sign | 4
	case v < 3.5:
		return sign | 5
	case v <= 5:
		return sign | 6
	}
	return sign | 7
}

// PackBits writes whole numbers of n bits, in two's complement, as a string of bits that fills 32-bit words from the
// lowest bit up, with 2^(n-1) added, as compressed-tensors packs a row; dst has as many words as that takes.
func PackBits(dst, codes []byte, n int) {
	clear(dst)
	bias := byte(1) << (n - 1)
	if n == 4 {
		for i := 0; i+1 < len(codes); i += 2 {
			dst[i/2] = (codes[i]+bias)&15 | (codes[i+1]+bias)<<4
		}
		if i := len(codes) - 1; i%2 == 0 {
			dst[i/2] = (codes[i] + bias) & 15
		}
		return
	}

	mask := byte(1<<n - 1)
	for i, c := range codes {
		u := uint16((c+bias)&mask) << (i * n % 8)
		at := i * n / 8
		dst[at] |= byte(u)
		if u > 255 {
			dst[at+1] |= byte(u >> 8)
		}
	}
}

// PackedWords is how many 32-bit words PackBits fills with so many numbers.
func PackedWords(count, n int) int { return ceil(count*n, 32) }

// PackPairs writes codes of 4 bits two to a byte, the first in the low half. Their number is even.
func PackPairs(dst, codes []byte) {
	for i := range dst {
		dst[i] = codes[2*i]&15 | codes[2*i+1]<<4
	}
}

// PackZeros writes the zero points [rows, groups] of a matrix as compressed-tensors packs them: those of each group are
// a string of bits as [PackBits] writes it, down the columns of words [PackedWords(rows, n), groups].
func PackZeros(dst []byte, zeros []int8, groups, n int) {
	rows := len(zeros) / groups
	column := make([]byte, rows)
	words := make([]byte, 4*PackedWords(rows, n))
	for g := range groups {
		for r := range column {
			column[r] = byte(zeros[r*groups+g])
		}
		PackBits(words, column, n)
		for i := 0; i < len(words); i += 4 {
			copy(dst[i*groups+4*g:][:4], words[i:])
		}
	}
}
