package experts

import (
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// Multiply adds weight·(V - D)·x to y, for what an expert keeps of a matrix [rows, cols] whose dense values are
// the bytes dense: y[i] has rows elements, x[i] cols. Nothing is rounded but the sums in float32. ws is the
// buffers of one goroutine.
func (s *Stored) Multiply(ws *Workspace, y, x [][]float32, dense []byte, weight float32) error {
	switch {
	case s.Encoding == LowRank:
		s.multiplyFactors(y, x, weight)
		return nil
	case s.dense():
		return s.multiplyRuns(ws, y, x, weight)
	}
	return s.multiplyKept(ws, y, x, dense, weight)
}

// multiplyFactors goes through the right factor and then the left one.
func (s *Stored) multiplyFactors(y, x [][]float32, weight float32) {
	right, left := s.factors()
	rank := int64(s.Rank)
	low := make([]float32, rank)
	for i := range x {
		for r := range rank {
			low[r] = weight * float32(vec.Dot(right[r*s.cols:(r+1)*s.cols], x[i]))
		}

		for o := range s.rows {
			sum := float32(0)
			for r, v := range left[o*rank : (o+1)*rank] {
				sum += v * low[r]
			}
			y[i][o] += sum
		}
	}
}

// multiplyRuns decodes the differences chunk by chunk.
func (s *Stored) multiplyRuns(ws *Workspace, y, x [][]float32, weight float32) error {
	if cap(ws.own) < Chunk {
		ws.own = make([]float32, Chunk)
	}

	for lo := int64(0); lo < s.n; lo += Chunk {
		d := ws.own[:min(Chunk, s.n-lo)]
		s.differences(d, lo)

		for at := lo; len(d) > 0; {
			row, col := at/s.cols, at%s.cols
			n := min(s.cols-col, int64(len(d)))
			for i := range x {
				y[i][row] += weight * float32(vec.Dot(d[:n], x[i][col:col+n]))
			}
			d, at = d[n:], at+n
		}
	}

	return nil
}

// multiplyKept goes through the kept elements.
func (s *Stored) multiplyKept(ws *Workspace, y, x [][]float32, dense []byte, weight float32) error {
	if s.Encoding == Nothing {
		return nil
	}

	width := int64(s.DType.Bits() / 8)
	for lo := int64(0); lo < s.n; lo += Chunk {
		hi := min(lo+Chunk, s.n)
		src, err := stream.NewMapped(dense[lo*width:hi*width], s.DType, 0, nil)
		if err != nil {
			return err
		}

		if cap(ws.dense) < Chunk {
			ws.dense = make([]float32, Chunk)
		}

		d := ws.dense[:hi-lo]
		// The dense model's product is in y already: a kept value replaces the dense one, a difference is added as
		// it is.
		if s.Delta {
			clear(d)
		} else if err := src.Read(d, 0); err != nil {
			return err
		}

		row, end := lo/s.cols, (lo/s.cols+1)*s.cols
		s.each(lo, hi, func(i, k int64) {
			for i >= end { // rows in which nothing is kept are passed over
				row, end = row+1, end+s.cols
			}
			v, col := weight*(s.value(k)-d[i-lo]), i-end+s.cols
			for t := range x {
				y[t][row] += v * x[t][col]
			}
		})
	}

	return nil
}

// What work on an element costs, in products of a row with an element of a dense matrix; BenchmarkMixed of
// package merge measures the sums of them.
const (
	keptCost   = 350 // a product with a kept element, one by one
	factorCost = 130 // a product with an element of a factor
	runCost    = 55  // a product with a decoded element
	widenCost  = 200 // widening an element of the dense matrix, and putting kept ones into a set
	decodeCost = 800 // decoding an element, and putting it into a set
)

// Costs are, in products of a row with an element of a dense matrix, what Multiply takes for each row and once,
// and what it takes to put the whole tensor together.
func (s *Stored) Costs() (row, once, whole float64) {
	n, kept := float64(s.n), float64(s.Kept)
	switch s.Encoding {
	case Nothing:
		return 0, 0, 0
	case LowRank:
		return factorCost * float64(s.Rank) * float64(s.rows+s.cols), 0, decodeCost * n
	case Signs, Codes:
		return runCost * n, decodeCost * n, decodeCost * n
	}

	return keptCost * kept, widenCost * n, widenCost*n + keptCost*kept
}
