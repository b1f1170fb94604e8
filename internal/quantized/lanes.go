package quantized

// A search takes its time over sums that have to be added up in order. So many groups are searched at once, one in
// every lane of the registers: the sums of each run in order.

// maxLanes is how many groups a batch has at most.
const maxLanes = 16

// batch is groups of up to 32 elements, which lie in columns; fewer than maxLanes of them with narrower registers. The
// loops know the places of the fields.
type batch struct {
	x, w [32 * maxLanes]float32 // elements and weights
	_    [32 * maxLanes]float32 // what the loops compute of both

	_, sumW, _    [maxLanes]float32
	scale, low, _ [maxLanes]float32
	inverse, from [maxLanes]float32
	_             [maxLanes]float32
}

// weighing is where weights come from.
type weighing int

const (
	given     weighing = iota // they are in encoder.weights
	spread32                  // √(mean square of the group) + |x|
	magnitude                 // |x|
	square                    // x²
)

// weigh makes the weights of groups of n elements, in encoder.weights.
func (by weighing) weigh(w *encoder, x []float32, n int) []float32 {
	weights := w.weights[:len(x)]
	switch by {
	case spread32:
		for i := 0; i < len(x); i += n {
			group := x[i:][:n]
			level := sqrt(sumOfSquares(group) / float32(n))
			for j, v := range group {
				weights[i+j] = level + abs(v)
			}
		}
	case magnitude:
		for i, v := range x {
			weights[i] = abs(v)
		}
	case square:
		for i, v := range x {
			weights[i] = v * v
		}
	}
	return weights
}

// fill puts groups into the columns of the batch, with their weights.
func (w *encoder) fill(x []float32, n int, by weighing) (groups int) {
	lanes := fastest.lanes
	groups = min(len(x)/n, lanes)
	b := &w.batch
	columns(b.x[:], x[:groups*n], n, lanes)
	switch by {
	case spread32:
		fastest.spreadLanes(b, n)
	case magnitude:
		fastest.magnitudeLanes(b, n)
	case square:
		fastest.squareLanes(b, n)
	}
	return groups
}

// columns transposes groups of n elements.
func columns(dst, src []float32, n, lanes int) {
	for g := 0; len(src) > 0; g++ {
		at := g
		for _, v := range src[:n] {
			dst[at] = v
			at += lanes
		}
		src = src[n:]
	}
}

// runLanes is run with several groups at once.
func (s *offsetSearch) runLanes(w *encoder, x []float32, n int, by weighing) {
	absolute := 0
	if s.absolute {
		absolute = 1
	}
	b := &w.batch
	for first := 0; first*n < len(x); first += fastest.lanes {
		groups := w.fill(x[first*n:], n, by)
		if by == given {
			columns(b.w[:], w.weights[first*n:][:groups*n], n, fastest.lanes)
		}
		fastest.offsetLanes(b, n, s.factors, s.top, absolute)
		for g := range groups {
			w.scale[first+g] = b.scale[g]
			w.low[first+g] = -b.low[g]
			w.sum[first+g] = b.sumW[g]
			w.fits[first+g] = fit{b.inverse[g], b.from[g]}
		}
	}
}

// runLanes is run with several groups at once.
func (s *symmetricSearch) runLanes(w *encoder, x []float32, n int, by weighing) {
	b := &w.batch
	for first := 0; first*n < len(x); first += fastest.lanes {
		groups := w.fill(x[first*n:], n, by)
		if by == given {
			columns(b.w[:], w.weights[first*n:][:groups*n], n, fastest.lanes)
		}
		fastest.symmetricLanes(b, n, s.factors, s.half)
		for g := range groups {
			w.scale[first+g] = b.scale[g]
			w.sum[first+g] = b.sumW[g]
			w.fits[first+g] = fit{b.inverse[g], 0}
		}
	}
}
