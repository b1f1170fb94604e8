package quantized

// The searches find the scale with which integers come closest to a group of elements. Each tries a list of scales
// around that which maps the largest element to the largest integer; for each of them it rounds, takes the scale that
// is best for these integers in the sense of weighted least squares, and keeps what leaves the least error. The order
// of operations is part of the result: sums run over the elements in order, in float32, and no product is fused with
// an addition.

// negligible is below which the largest element of a group counts as 0.
const negligible = 1e-15

// offsetSearch finds x ≈ scale·q - low with 0 ≤ q ≤ top and low ≥ 0.
type offsetSearch struct {
	top     int
	factors []float32 // the scales tried are range/factor
	// absolute makes it the sum of w·|error| that is least; otherwise it is that of w·error².
	absolute bool
}

// newOffsetSearch tries range/(top + first + step·k) for k from 0 to n.
func newOffsetSearch(top int, first, step float32, n int, absolute bool) *offsetSearch {
	s := &offsetSearch{top: top, absolute: absolute}
	for k := range n + 1 {
		s.factors = append(s.factors, first+float32(step*float32(k))+float32(top))
	}
	return s
}

// fit is a way to round the elements of a group: q = nearest(inverse·(x - from)). An inverse of 0 makes all of them 0.
type fit struct{ inverse, from float32 }

func (f fit) level(v float32, top int32) int32 {
	return max(0, min(top, nearest(f.inverse*(v-f.from))))
}

// round writes the integers of a group.
func (s *offsetSearch) round(q []byte, x []float32, f fit) {
	for i, v := range x {
		q[i] = byte(f.level(v, int32(s.top)))
	}
}

// run searches for groups of n elements, for w.scale, w.low, w.sum and w.fits.
func (s *offsetSearch) run(w *encoder, x []float32, n int, by weighing) {
	if fastest.lanes > 0 {
		s.runLanes(w, x, n, by)
		return
	}

	weights := by.weigh(w, x, n)
	for g := range len(x) / n {
		w.scale[g], w.low[g], w.sum[g], w.fits[g] = s.group(x[g*n:][:n], weights[g*n:][:n])
	}
}

// group searches for one group.
func (s *offsetSearch) group(x, weights []float32) (scale, low, sumW float32, best fit) {
	least, most := bounds(x)
	sumW = weights[0]
	sumX := sumW * x[0]
	for i, w := range weights[1:len(x)] {
		sumW += w
		sumX += float32(w * x[1+i])
	}

	least = min(least, 0)
	if most == least {
		return 0, -least, sumW, fit{}
	}

	top := int32(s.top)
	best = fit{float32(s.top) / (most - least), least}
	scale = 1 / best.inverse
	minimum := least
	bestError := s.error(x, weights, best, scale, minimum)

	for _, factor := range s.factors {
		// The minimum is that of the best scale so far, so that the range grows or shrinks with it.
		try := fit{factor / (most - minimum), minimum}
		var sumL, sumL2, sumXL float32
		for i, v := range x {
			l := float32(try.level(v, top))
			wl := float32(weights[i] * l)
			sumL += wl
			sumL2 += float32(wl * l)
			sumXL += float32(wl * v)
		}

		d := float32(sumW*sumL2) - float32(sumL*sumL)
		if !(d > 0) {
			continue
		}
		thisScale := (float32(sumW*sumXL) - float32(sumX*sumL)) / d
		thisMin := (float32(sumL2*sumX) - float32(sumL*sumXL)) / d
		if thisMin > 0 {
			thisMin = 0
			thisScale = sumXL / sumL2
		}

		if e := s.error(x, weights, try, thisScale, thisMin); e < bestError {
			bestError = e
			best = try
			scale = thisScale
			minimum = thisMin
		}
	}

	return scale, -minimum, sumW, best
}

// error is what rounding by f and then taking scale·q + minimum leaves.
func (s *offsetSearch) error(x, weights []float32, f fit, scale, minimum float32) (sum float32) {
	top := int32(s.top)
	for i, v := range x {
		diff := float32(scale*float32(f.level(v, top))) + minimum - v
		if s.absolute {
			diff = abs(diff)
		} else {
			diff *= diff
		}
		sum += float32(weights[i] * diff)
	}
	return sum
}

// symmetricSearch finds x ≈ scale·(q - half) with 0 ≤ q < 2·half. The sign of the scale is such that the largest
// element has q = 0, which is one step further from the middle than the largest q.
type symmetricSearch struct {
	half    int
	factors []float32 // the scales tried are the largest element / factor
}

// newSymmetricSearch tries -half first and then -(half + k/10) for k from -9 to 9.
func newSymmetricSearch(half int) *symmetricSearch {
	s := &symmetricSearch{half: half, factors: []float32{-float32(half)}}
	for k := -9; k <= 9; k++ {
		if k != 0 {
			s.factors = append(s.factors, -(float32(half) + float32(.1*float32(k))))
		}
	}
	return s
}

// round writes the integers of a group: nearest(inverse·x) + half, or 0 if there is nothing but negligible elements.
func (s *symmetricSearch) round(q []byte, x []float32, f fit) {
	if f.inverse == 0 {
		clear(q[:len(x)])
		return
	}
	half := int32(s.half)
	for i, v := range x {
		q[i] = byte(half + symmetricLevel(f.inverse*v, half))
	}
}

// roundRest rounds as the search did where w.mul, the scale that is stored, is 0.
func (s *symmetricSearch) roundRest(w *encoder, x []float32, n int) {
	for g := range len(x) / n {
		if w.mul[g] == 0 {
			s.round(w.q[g*n:][:n], x[g*n:][:n], w.fits[g])
		}
	}
}

// run searches for groups of n elements, for w.scale, w.sum and w.fits.
func (s *symmetricSearch) run(w *encoder, x []float32, n int, by weighing) {
	if fastest.lanes > 0 {
		s.runLanes(w, x, n, by)
		return
	}

	weights := by.weigh(w, x, n)
	for g := range len(x) / n {
		part := weights[g*n:][:n]
		w.scale[g], w.fits[g] = s.group(x[g*n:][:n], part)
		w.sum[g] = sumOf(part)
	}
}

// group searches for one group.
func (s *symmetricSearch) group(x, weights []float32) (scale float32, best fit) {
	extremum, magnitude := extreme(x)
	if magnitude < negligible {
		return 0, fit{}
	}

	var gain float32 // how much of the sum of w·x² is accounted for
	for i, factor := range s.factors {
		inverse := factor / extremum
		sumXL, sumL2 := symmetricSums(int32(s.half), x, weights, inverse)
		if i == 0 {
			best.inverse = inverse
			if sumL2 != 0 {
				scale = sumXL / sumL2
			}
			gain = scale * sumXL
		} else if sumL2 > 0 && float32(sumXL*sumXL) > float32(gain*sumL2) {
			best.inverse = inverse
			scale = sumXL / sumL2
			gain = scale * sumXL
		}
	}
	return scale, best
}

// symmetricLevel rounds to -half … half-1.
func symmetricLevel(v float32, half int32) int32 { return max(-half, min(half-1, nearest(v))) }

// symmetricSums are Σw·x·l and Σw·l² for l = x·inverse, rounded.
func symmetricSums(half int32, x, weights []float32, inverse float32) (sumXL, sumL2 float32) {
	for i, v := range x {
		l := float32(symmetricLevel(inverse*v, half))
		w := weights[i]
		sumXL += float32(float32(w*v) * l)
		sumL2 += float32(float32(w*l) * l)
	}
	return sumXL, sumL2
}

// sumOf adds in order.
func sumOf(x []float32) (sum float32) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// descentRounds is how often a descent runs over its elements at most.
const descentRounds = 5

// positiveSearch finds x ≈ scale·q with 0 ≤ q ≤ top for elements that are not negative: the scales of a block. It
// improves the integers one by one at the end.
func positiveSearch(top int32, x, weights []float32, q []byte) (scale float32) {
	var most float32
	for _, v := range x {
		if v > most {
			most = v
		}
	}
	if most < negligible {
		clear(q)
		return 0
	}

	best := float32(top) / most
	bestError := positiveError(x, weights, best, top, true)
	for k := -4; k <= 4; k++ {
		if k == 0 {
			continue
		}
		inverse := (float32(.1*float32(k)) + float32(top)) / most
		if e := positiveError(x, weights, inverse, top, false); e < bestError {
			bestError = e
			best = inverse
		}
	}

	var sumXL, sumL2 float32
	for i, v := range x {
		l := min(top, nearest(best*v))
		q[i] = byte(l)
		w := weights[i]
		sumXL += float32(float32(w*v) * float32(l))
		sumL2 += float32(float32(w*float32(l)) * float32(l))
	}

	for range descentRounds {
		changed := false
		for i, v := range x {
			w := weights[i]
			old := float32(q[i])
			restXL := sumXL - float32(float32(w*v)*old)
			restL2 := sumL2 - float32(float32(w*old)*old)
			if !(restXL > 0 && restL2 > 0) {
				continue
			}

			l := min(top, nearest(float32(v*restL2)/restXL))
			if l == int32(q[i]) {
				continue
			}
			restXL += float32(float32(w*v) * float32(l))
			restL2 += float32(float32(w*float32(l)) * float32(l))
			if float32(float32(restXL*restXL)*sumL2) > float32(float32(sumXL*sumXL)*restL2) {
				q[i] = byte(l)
				sumXL = restXL
				sumL2 = restL2
				changed = true
			}
		}
		if !changed {
			break
		}
	}

	if sumL2 > 0 {
		return sumXL / sumL2
	}
	return 0
}

// positiveError is what rounding x·inverse to at most top leaves. In the first try of a search, integers are bytes: one
// below 0, which comes of rounding errors alone, is taken for a large one.
func positiveError(x, weights []float32, inverse float32, top int32, first bool) (sum float32) {
	scale := 1 / inverse
	for i, v := range x {
		l := min(top, nearest(inverse*v))
		if first {
			l = int32(byte(l))
		}
		diff := v - float32(scale*float32(l))
		sum += float32(float32(weights[i]*diff) * diff)
	}
	return sum
}

// descent finds x ≈ scale·(q - half) with 0 ≤ q < 2·half, for one group with the weights x²: from the scale that maps
// the largest element to -half it improves the integers one by one, each given the others.
func descent(half int32, x []float32, q []byte) (scale float32) {
	extremum, magnitude := extreme(x)
	if magnitude < negligible {
		clear(q)
		return 0
	}

	var levels [2 * minGroup]int32
	inverse := -float32(half) / extremum
	var sumXL, sumL2 float32
	for i, v := range x {
		l := symmetricLevel(inverse*v, half)
		levels[i] = l
		w := v * v
		sumXL += float32(float32(w*v) * float32(l))
		sumL2 += float32(float32(w*float32(l)) * float32(l))
	}

	for range descentRounds {
		changed := false
		for i, v := range x {
			w := v * v
			old := float32(levels[i])
			restXL := sumXL - float32(float32(w*v)*old)
			if !(restXL > 0) {
				continue
			}

			restL2 := sumL2 - float32(float32(w*old)*old)
			l := symmetricLevel(float32(v*restL2)/restXL, half)
			if l == levels[i] {
				continue
			}
			restXL += float32(float32(w*v) * float32(l))
			restL2 += float32(float32(w*float32(l)) * float32(l))
			if restL2 > 0 && float32(float32(restXL*restXL)*sumL2) > float32(float32(sumXL*sumXL)*restL2) {
				levels[i] = l
				sumXL = restXL
				sumL2 = restL2
				changed = true
			}
		}
		if !changed {
			break
		}
	}

	for i := range x {
		q[i] = byte(levels[i] + half)
	}
	if sumL2 > 0 {
		return sumXL / sumL2
	}
	return 0
}
