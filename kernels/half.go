package kernels

import "math"

// ToBF16 rounds to bfloat16, nearest with ties to even. NaN stays NaN (quiet, sign kept).
func ToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + (u>>16)&1) >> 16)
}

// FromBF16 widens a bfloat16; exact.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// ToF16 rounds to IEEE half precision, nearest with ties to even; overflow gives an infinity, NaN stays NaN.
func ToF16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00 | uint16(u>>13&0x3ff)
	case u >= 0x477ff000: // at or above the midpoint between the largest half and 2^16
		return sign | 0x7c00
	case u < 0x38800000: // subnormal half: adding 0.5 aligns the mantissa and lets the FPU round
		sum := math.Float32frombits(u) + 0.5
		return sign | uint16(math.Float32bits(sum)-0x3f000000)
	}

	return sign | uint16((u-0x38000000+0xfff+(u>>13)&1)>>13)
}

// FromF16 widens an IEEE half; exact.
func FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, man := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		f := float32(man) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(f))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}

	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}
