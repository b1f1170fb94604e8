package prune

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/prune/internal/spectrum"
)

// hostScore computes scores on the host, element by element.
type hostScore struct {
	raw        []byte
	dtype      kernels.DType
	rows, cols int
	col        []float32 // nil: all 1
	signed     bool
	threads    int
}

func newHostScore(dev kernels.Device, s kernels.Score) (hostScore, error) {
	h := hostScore{dtype: s.X.DType(), rows: s.X.Rows, cols: s.X.Cols, signed: s.Raw, threads: dev.Info().Threads}
	var err error
	if h.raw, err = hostBytes(dev, s.X); err != nil || s.Col.IsZero() {
		return h, err
	}
	raw, err := hostBytes(dev, s.Col)
	h.col = make([]float32, h.cols)
	for j := range h.col {
		h.col[j] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:]))
	}
	return h, err
}

// sum adds all scores up, in an order that does not depend on the number of threads.
func (h hostScore) sum() (total float64) {
	rows := make([]float64, h.rows)
	inParallel(h.threads, h.rows, func(lo, hi int) {
		buf := make([]float32, h.cols)
		for i := lo; i < hi; i++ {
			for _, v := range h.row(buf, i) {
				rows[i] += float64(v)
			}
		}
	})
	for _, v := range rows {
		total += v
	}
	return total
}

// above counts the scores greater than t.
func (h hostScore) above(t float32) (total int64) {
	rows := make([]int64, h.rows)
	inParallel(h.threads, h.rows, func(lo, hi int) {
		buf := make([]float32, h.cols)
		for i := lo; i < hi; i++ {
			for _, v := range h.row(buf, i) {
				if v > t {
					rows[i]++
				}
			}
		}
	})
	for _, n := range rows {
		total += n
	}
	return total
}

// row computes the scores of row i as the selecting operations do.
func (h hostScore) row(buf []float32, i int) []float32 {
	for j := range buf {
		buf[j] = element(h.raw, h.dtype, i*h.cols+j)
		if !h.signed {
			buf[j] = float32(math.Abs(float64(buf[j])))
		}
		if h.col != nil {
			buf[j] *= h.col[j]
		}
	}
	return buf
}

// all computes the scores of all rows.
func (h hostScore) all() []float32 {
	out := make([]float32, h.rows*h.cols)
	inParallel(h.threads, h.rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			h.row(out[i*h.cols:(i+1)*h.cols], i)
		}
	})
	return out
}

// hostScoreOf takes scores in host memory as they are.
func hostScoreOf(m kernels.Mat, threads int) hostScore {
	return hostScore{raw: m.Buf.Bytes(), dtype: m.DType(), rows: m.Rows, cols: m.Cols, signed: true, threads: threads}
}

// count sorts all scores into levels.
func (h hostScore) count(levels *spectrum.Levels) error {
	buf := make([]float32, h.cols)
	for i := range h.rows {
		for j, v := range h.row(buf, i) {
			if !levels.Add(v) {
				return fmt.Errorf("%w: allocation %s with a score of %g at output %d, input %d; it needs scores of 0 or more", ErrOptions, Global, v, i, j)
			}
		}
	}
	return nil
}
