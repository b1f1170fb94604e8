package quantized

// Super-blocks are 256 elements in groups of 16 or 32, whose scales and minima are rounded to integers, with a float16
// for all of them. Encoding has four steps: weights, a search for each group, the integers of the scales, and rounding
// the elements again, with the scales that are stored.

// superblock is how many elements one has.
const superblock = 256

// The searches of the formats: without an importance those of each, with one the same for all.
var (
	q2Search = newOffsetSearch(3, -.5, .1, 15, true)
	q4Search = newOffsetSearch(15, -1, .1, 20, false)
	q5Search = newOffsetSearch(31, -.5, .1, 15, false)

	q2Weighted = newOffsetSearch(3, -.9, .05, 36, false)
	q4Weighted = smallOffset4
	q5Weighted = smallOffset5

	q3Weighted = newSymmetricSearch(4)
	q6Search   = newSymmetricSearch(32)
)

// weighSuperblocks makes weights importance·√(factor·mean square of the super-block + x²).
func weighSuperblocks(x, importance []float32, factor float32, w *encoder) {
	for i := 0; i < len(x); i += superblock {
		square := factor * sumOfSquares(x[i:][:superblock]) / superblock
		fastest.weigh(w.weights[i:], x[i:][:superblock], importance[i:], square)
	}
}

// quantizeScales rounds scales that are not negative to integers up to top, and returns what a step is worth. Without
// weights the largest becomes top; with them the step is searched for.
func quantizeScales(levels []byte, scales, weights []float32, top int32) float32 {
	if weights != nil {
		return positiveSearch(top, scales, weights, levels)
	}

	var most float32
	for _, s := range scales {
		if s > most {
			most = s
		}
	}
	var inverse float32
	if most > 0 {
		inverse = float32(top) / most
	}
	for i, s := range scales {
		levels[i] = byte(min(int32(byte(nearest(inverse*s))), top))
	}
	return most / float32(top)
}

// extremeScale returns the first scale of the largest magnitude.
func extremeScale(scales []float32) float32 {
	v, _ := extreme(scales)
	return v
}

// offsetSuperblocks encodes formats whose groups have a scale and a minimum. put writes the header of a block: d, dmin
// and the integers in w.levels and w.lows; scales reads what they stand for.
func offsetSuperblocks(f *superOffset, dst []byte, x, importance []float32, w *encoder) {
	groups := len(x) / f.group
	search := f.plain
	by := f.weights
	if importance != nil {
		search = f.weighted
		weighSuperblocks(x, importance, f.factor, w)
		by = given
	}
	search.run(w, x, f.group, by)

	per := superblock / f.group
	for i := range len(x) / superblock {
		b := dst[i*f.bytes:][:f.bytes]
		at := i * per
		var weights []float32
		if importance != nil {
			weights = w.sum[at:][:per]
		}
		d := quantizeScales(w.levels[:per], w.scale[at:][:per], weights, f.top)
		dmin := quantizeScales(w.lows[:per], w.low[at:][:per], weights, f.top)
		f.put(b, d, dmin, w)
		f.scales(b, w.mul[at:], w.sub[at:])
	}

	fastest.round(w.q[:len(x)], x, w.mul[:groups], w.sub[:groups], f.group, 0, f.plain.top)
	for g := range groups {
		if w.mul[g] == 0 { // as the search rounded them
			search.round(w.q[g*f.group:], x[g*f.group:][:f.group], w.fits[g])
		}
	}
	for i := range len(x) / superblock {
		f.codes(dst[i*f.bytes:][:f.bytes], w.q[i*superblock:][:superblock])
	}
}

// superOffset is a format whose groups have a scale and a minimum.
type superOffset struct {
	bytes, group    int
	top             int32   // the largest integer of a scale
	factor          float32 // see weighSuperblocks
	plain, weighted *offsetSearch
	weights         weighing
	put             func(b []byte, d, dmin float32, w *encoder)
	scales          func(b []byte, mul, sub []float32)
	codes           func(b, q []byte)
}

// putPairs writes the 256 elements of two bits of [Q2_K] and [Q3_K].
func putPairs(b, q []byte) {
	for half := range 2 {
		for i := 0; i < 32; i += 8 {
			var v uint64
			for part := range 4 {
				v |= load(q[128*half+32*part+i:]) & low2 << (2 * part)
			}
			store(b[32*half+i:], v)
		}
	}
}
