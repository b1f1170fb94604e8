package experts

import (
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// Multiply adds weight·(V - D)·x to y, for what an expert keeps of a matrix [rows, cols] whose dense values are the bytes dense: y[i]
// has rows elements, x[i] cols. Nothing is rounded but the sums in float32. ws is the buffers of one goroutine.
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
	right, rank := s.rightFactor(), int64(s.Rank)
	low := make([]float32, rank)
	for i := range x {
		for r := range rank {
			low[r] = weight * float32(vec.Dot(right[r*s.cols:(r+1)*s.cols], x[i]))
		}
		for o := range s.rows {
			sum := float32(0)
			for r := range rank {
				sum += s.widen(s.left, o*rank+r) * low[r]
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
		if s.Delta {
			clear(d)
		} else if err := src.Read(d, 0); err != nil {
			return err
		}
		row, end := lo/s.cols, (lo/s.cols+1)*s.cols
		s.each(lo, hi, func(i, k int64) {
			for i >= end {
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

// Elements is how many products with a row of x Multiply takes, and how many elements it decodes first.
func (s *Stored) Elements() (products, decoded int64) {
	switch s.Encoding {
	case LowRank:
		return int64(s.Rank) * (s.rows + s.cols), 0
	case Nothing:
		return 0, 0
	case Signs, Codes:
		return s.n, s.n
	}
	return s.Kept, s.Kept
}
