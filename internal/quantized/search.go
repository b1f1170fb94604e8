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
	top    int
	factor []float32 // the scales tried are range/factor
	// absolute makes it the sum of w·|error| that is least; otherwise it is that of w·error².
	absolute bool
}

// newOffsetSearch tries range/(top + first + step·k) for k from 0 to n.
func newOffsetSearch(top int, first, step float32, n int, absolute bool) *offsetSearch {
	s := &offsetSearch{top: top, absolute: absolute}
	for k := range n + 1 {
		s.factor = append(s.factor, first+float32(step*float32(k))+float32(top))
	}
	return s
}

// fit is a way to round the elements of a group: q = nearest(inverse·(x - low)).
type fit struct{ inverse, low float32 }

func (f fit) level(v float32, top int32) int32 {
	return max(0, min(top, nearest(f.inverse*(v-f.low))))
}

// groupPortable searches for one group. q becomes its integers.
func (s *offsetSearch) groupPortable(x, weights []float32, q []byte) (scale, low float32) {
	least, most := bounds(x)
	sumW := weights[0]
	sumX := sumW * x[0]
	for i, w := range weights[1:len(x)] {
		sumW += w
		sumX += float32(w * x[1+i])
	}

	least = min(least, 0)
	if most == least {
		clear(q)
		return 0, -least
	}

	top := int32(s.top)
	best := fit{float32(s.top) / (most - least), least}
	scale = 1 / best.inverse
	minimum := least
	bestError := s.error(x, weights, best, scale, minimum)

	for _, factor := range s.factor {
		// The minimum is that of the best scale so far, so that the range grows or shrinks with it.
		try := fit{factor / (most - minimum), minimum}
		var sumL, sumL2, sumXL float32
		for i, v := range x {
			l := float32(try.level(v, top))
			wl := weights[i] * l
			sumL += float32(wl)
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

	for i, v := range x {
		q[i] = byte(best.level(v, top))
	}
	return scale, -minimum
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

// offsetsPortable searches for groups of n elements.
func offsetsPortable(s *offsetSearch, x, weights []float32, n int, q []byte, scale, low []float32) {
	for g := range len(x) / n {
		scale[g], low[g] = s.groupPortable(x[g*n:][:n], weights[g*n:][:n], q[g*n:][:n])
	}
}

// symmetricSearch finds x ≈ scale·(q - half) with 0 ≤ q < 2·half, for one group. The sign of the scale is such that the
// largest element has q = 0, which is one step further from the middle than the largest q.
func symmetricSearch(half int32, x, weights []float32, q []byte) (scale float32) {
	extremum, magnitude := extreme(x)
	if magnitude < negligible {
		clear(q)
		return 0
	}

	best := -float32(half) / extremum
	sumXL, sumL2 := symmetricSums(half, x, weights, best)
	if sumL2 != 0 {
		scale = sumXL / sumL2
	}
	gain := scale * sumXL // how much of the sum of w·x² is accounted for

	for k := -9; k <= 9; k++ {
		if k == 0 {
			continue
		}
		inverse := -(float32(half) + float32(.1*float32(k))) / extremum
		sumXL, sumL2 = symmetricSums(half, x, weights, inverse)
		if sumL2 > 0 && float32(sumXL*sumXL) > float32(gain*sumL2) {
			best = inverse
			scale = sumXL / sumL2
			gain = scale * sumXL
		}
	}

	for i, v := range x {
		q[i] = byte(half + symmetricLevel(best*v, half))
	}
	return scale
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

// symmetricPortable searches for groups of n elements.
func symmetricPortable(half int, x, weights []float32, n int, q []byte, scale []float32) {
	for g := range len(x) / n {
		scale[g] = symmetricSearch(int32(half), x[g*n:][:n], weights[g*n:][:n], q[g*n:][:n])
	}
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

// descentsPortable searches for groups of n elements.
func descentsPortable(half int, x []float32, n int, q []byte, scale []float32) {
	for g := range len(x) / n {
		scale[g] = descent(int32(half), x[g*n:][:n], q[g*n:][:n])
	}
}
