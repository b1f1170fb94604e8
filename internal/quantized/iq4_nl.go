package quantized

// iq4Values are the values that the codes of [IQ4_NL] and [IQ4_XS] stand for.
var iq4Values = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// IQ4_NL is f16 d, 16 bytes of codes as in [Q4_0]. The value is d·table[code].
var IQ4_NL = Block{
	Name: "IQ4_NL", Elements: 32, Bytes: 18, group: 32, halves: []int{0}, translate: &iq4Values,
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		nibbles(q, b[2:])
	},

	weighted: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		searchTable(x, importance, 32, w)
		for i := range len(x) / 32 {
			b := dst[18*i:][:18]
			putHalf(b, w.scale[i])
			w.sub[i] = reciprocal(w.scale[i])
		}

		fastest.codes(w.q[:len(x)], x, w.sub[:len(x)/32])
		for i := range len(x) / 32 {
			putNibbles(dst[18*i+2:][:16], w.q[32*i:])
		}
	},
}

// iq4Middles are the numbers from which on each next code is the nearest: the middle between two values has the higher
// one.
var iq4Middles = func() (m [15]float32) {
	for i := range m {
		m[i] = float32(int(iq4Values[i])+int(iq4Values[i+1])) / 2
	}
	return m
}()

// iq4Code is the code of the nearest value; the last one's of a NaN.
func iq4Code(v float32) byte {
	code := 0
	for step := 8; step > 0; step /= 2 {
		if !(v < iq4Middles[code+step-1]) {
			code += step
		}
	}
	return byte(code)
}

// codesPortable computes the codes of x·inverse in groups of 32.
func codesPortable(q []byte, x, inverse []float32) {
	for i, v := range x {
		q[i] = iq4Code(inverse[i/32] * v)
	}
}

// searchTable finds w.scale of groups of 32 elements. Without an importance the weights are x²; with one,
// importance·√(2·mean square + x²), the mean being over blocks of so many elements.
func searchTable(x, importance []float32, size int, w *encoder) {
	if importance == nil {
		square.weigh(w, x, 32)
	} else {
		for i := 0; i < len(x); i += size {
			mean := sumOfSquares(x[i:][:size]) * (2 / float32(size))
			fastest.weigh(w.weights[i:], x[i:][:size], importance[i:], mean)
		}
	}
	fastest.tables(x, w.weights[:len(x)], w.scale[:len(x)/32])
}

// tablesPortable searches for groups of 32 elements.
func tablesPortable(x, weights, scale []float32) {
	for i := range len(x) / 32 {
		scale[i] = tableSearch(x[32*i:][:32], weights[32*i:][:32])
	}
}

// tableSearch finds the scale with which x ≈ scale·table[code]: around that which maps the largest element to the
// lowest value, in steps of 1.
func tableSearch(x, weights []float32) (scale float32) {
	extremum, magnitude := extreme(x)
	if magnitude < negligible {
		return 0
	}

	lowest := float32(iq4Values[0])
	sumXV, sumV2 := tableSums(x, weights, 1/(-extremum/lowest))
	if sumV2 > 0 {
		scale = sumXV / sumV2
	}
	gain := scale * sumXV

	const steps = 7
	for k := -steps; k <= steps; k++ {
		sumXV, sumV2 = tableSums(x, weights, (float32(k)+lowest)/extremum)
		if sumV2 > 0 && float32(sumXV*sumXV) > float32(gain*sumV2) {
			scale = sumXV / sumV2
			gain = scale * sumXV
		}
	}
	return scale
}

// tableSums are Σw·v·x and Σw·v² for the values v that are nearest to x·inverse.
func tableSums(x, weights []float32, inverse float32) (sumXV, sumV2 float32) {
	for i, e := range x {
		v := float32(iq4Values[iq4Code(inverse*e)])
		wv := float32(weights[i] * v)
		sumXV += float32(wv * e)
		sumV2 += float32(wv * v)
	}
	return sumXV, sumV2
}
