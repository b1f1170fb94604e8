package quantized

import "math"

// fp4Doubled is twice the value of each code of a 4-bit float E2M1. Code 8 is a zero without a sign, as ggml has it.
var fp4Doubled = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// MXFP4 is a byte e, 16 bytes of codes as in [Q4_0]. The value is 2^(e-128)·doubled[code]; 255 stands for no number.
var MXFP4 = Block{
	Name: "MXFP4", Elements: 32, Bytes: 17, group: 32, translate: &fp4Doubled,
	bad: func(b []byte) bool { return b[0] == 255 },
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = halfPower(b[0])
		nibbles(q, b[1:])
	},

	encode: func(dst []byte, x, _ []float32, w *encoder) {
		groups := len(x) / 32
		fastest.extremes(x, w.scale[:groups])
		for i, v := range w.scale[:groups] {
			e := sharedExponent(abs(v))
			dst[17*i] = e
			w.mul[i] = halfPower(e)
		}

		fastest.e2m1(w.q[:len(x)], x, w.mul[:groups])
		for i := range groups {
			putNibbles(dst[17*i+1:][:16], w.q[32*i:])
		}
	},
}

// sharedExponent is ⌊log2 magnitude⌋ - 2 + 127, at least 0: the largest number of a block is 4 to 8
// times the power of two. The logarithm is rounded to float32 first, as in the reference, so that numbers just below a
// power of two count as that.
func sharedExponent(magnitude float32) byte {
	bits := math.Float32bits(magnitude)
	e := int(bits>>23) - 127
	// Only what is within 2^-16 of the next power of two can be rounded up to it; below are the subnormal numbers.
	if bits&0x7fffff > 0x7fff80 || e < -100 {
		if magnitude == 0 {
			return 0
		}
		e = int(math.Floor(float64(float32(math.Log2(float64(magnitude))))))
	}
	return byte(max(0, e-2+127))
}

// halfPower is 2^(e-128), also where that is below the normal numbers.
func halfPower(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// NVFP4 is four bytes of scales, floats E4M3 whose sign is not looked at, for 16 elements each, and for each of them 8
// bytes of codes: the low nibbles are the first 8 elements. The value is (scale/2)·doubled[code]. Files may have a
// factor for the whole tensor in a tensor of its own, which is not part of this format.
var NVFP4 = Block{
	Name: "NVFP4", Elements: 64, Bytes: 36, group: 16, translate: &fp4Doubled,
	unpack: func(b, q []byte, mul, _ []float32) {
		for i, s := range b[:4] {
			mul[i] = halfScales[s]
			x := load(b[4+8*i:])
			store(q[16*i:], x&low4)
			store(q[16*i+8:], x>>4&low4)
		}
	},
}

// halfScales is half of each unsigned float E4M3. The code of its NaN, 0x7f, is 0 in ggml.
var halfScales = func() (t [256]float32) {
	for i := range t {
		man := float64(i & 7)
		exp := i >> 3 & 15
		switch {
		case i == 0x7f:
		case exp == 0:
			t[i] = float32(man / (1 << 10))
		default:
			t[i] = float32(math.Ldexp(1+man/8, exp-8))
		}
	}
	return t
}()
