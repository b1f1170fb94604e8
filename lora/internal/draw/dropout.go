package draw

// Dropout writes x with every element dropped with probability p, and the others divided by 1-p, to dst. Element i of x
// is at position base+i of the key; four neighbours share one draw of 64 bits, so p is rounded to a multiple of 2⁻¹⁶.
// base must be a multiple of 4. dst may be x.
func (k Key) Dropout(dst, x []float32, base uint64, p float64) {
	bar, keep := uint16(min(p*(1<<16)+0.5, 1<<16-1)), float32(1/(1-p))
	for i := 0; i < len(x); i += 4 {
		bits := k.At((base + uint64(i)) / 4)
		for j := i; j < min(i+4, len(x)); j++ {
			v := x[j] * keep
			if uint16(bits) < bar {
				v = 0
			}
			dst[j] = v
			bits >>= 16
		}
	}
}
