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

		fastest.codes(w.q[:len(x)], x, w.sub[:len(x)/32], iq4Book)
		for i := range len(x) / 32 {
			putNibbles(dst[18*i+2:][:16], w.q[32*i:])
		}
	},
}

// codebook is the table for the loops, which know the places of the fields.
type codebook struct {
	// middles are the numbers from which on each next code is the nearest: the middle between two values has the higher
	// one.
	middles [16]float32
	values  [16]float32

	seventh, third, eleventh [8]float32 // of middles, in every lane
	eight, four, two, one    [8]uint32
}

var iq4Book = func() *codebook {
	b := new(codebook)
	for i, v := range iq4Values {
		b.values[i] = float32(v)
		if i < 15 {
			b.middles[i] = float32(int(v)+int(iq4Values[i+1])) / 2
		}
	}
	for i := range 8 {
		b.seventh[i] = b.middles[7]
		b.third[i] = b.middles[3]
		b.eleventh[i] = b.middles[11]
		b.eight[i] = 8
		b.four[i] = 4
		b.two[i] = 2
		b.one[i] = 1
	}
	return b
}()

// code is the code of the nearest value; the last one's of a NaN.
func (b *codebook) code(v float32) byte {
	code := 0
	for step := 8; step > 0; step /= 2 {
		if !(v < b.middles[code+step-1]) {
			code += step
		}
	}
	return byte(code)
}

// codesPortable computes the codes of x·inverse in groups of 32.
func codesPortable(q []byte, x, inverse []float32, book *codebook) {
	for i, v := range x {
		q[i] = book.code(inverse[i/32] * v)
	}
}

// searchTable finds w.scale of groups of 32 elements. Without an importance the weights are x²; with one,
// importance·√(2·mean square + x²), the mean being over blocks of so many elements.
func searchTable(x, importance []float32, size int, w *encoder) {
	by := square
	if importance != nil {
		by = given
		for i := 0; i < len(x); i += size {
			mean := sumOfSquares(x[i:][:size]) * (2 / float32(size))
			fastest.weigh(w.weights[i:], x[i:][:size], importance[i:], mean)
		}
	}
	if fastest.lanes > 0 {
		searchTableLanes(w, x, by)
		return
	}

	weights := by.weigh(w, x, 32)
	for i := range len(x) / 32 {
		w.scale[i] = tableSearch(x[32*i:][:32], weights[32*i:][:32])
	}
}

// searchTableLanes searches several groups at once.
func searchTableLanes(w *encoder, x []float32, by weighing) {
	for first := 0; first*32 < len(x); first += fastest.lanes {
		groups := w.fill(x[first*32:], 32, by)
		if by == given {
			columns(w.batch.w[:], w.weights[first*32:][:groups*32], 32, fastest.lanes)
		}
		fastest.tableLanes(&w.batch, tableFactors, iq4Book)
		copy(w.scale[first:], w.batch.scale[:groups])
	}
}

// tableFactors are what the extreme element becomes in the tries after the first.
var tableFactors = func() (factors []float32) {
	for k := -7; k <= 7; k++ {
		factors = append(factors, float32(k)+float32(iq4Values[0]))
	}
	return factors
}()

// tableSearch finds the scale with which x ≈ scale·table[code]: around that which maps the largest element to the
// lowest value, in steps of 1.
func tableSearch(x, weights []float32) (scale float32) {
	extremum, magnitude := extreme(x)
	if magnitude < negligible {
		return 0
	}

	sumXV, sumV2 := tableSums(x, weights, 1/(-extremum/float32(iq4Values[0])))
	if sumV2 > 0 {
		scale = sumXV / sumV2
	}
	gain := scale * sumXV

	for _, factor := range tableFactors {
		sumXV, sumV2 = tableSums(x, weights, factor/extremum)
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
		v := iq4Book.values[iq4Book.code(inverse*e)]
		wv := float32(weights[i] * v)
		sumXV += float32(wv * e)
		sumV2 += float32(wv * v)
	}
	return sumXV, sumV2
}
