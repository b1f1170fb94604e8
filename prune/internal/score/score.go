// Package score computes scores on the host, element by element, as the selecting operations of devices do.
package score

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/prune/internal/allocation"
)

// ErrNegative: a score is below 0 where that has no meaning.
var ErrNegative = errors.New("negative score")

// Scores computes scores on the host, element by element.
type Scores struct {
	raw        []byte
	dtype      kernels.DType
	Rows, Cols int
	col        []float32 // nil: all 1
	signed     bool
	Threads    int
}

// New reads a description of scores from a device.
func New(dev kernels.Device, s kernels.Score) (Scores, error) {
	h := Scores{dtype: s.X.DType(), Rows: s.X.Rows, Cols: s.X.Cols, signed: s.Raw, Threads: dev.Info().Threads}
	var err error
	if h.raw, err = hostmat.Bytes(dev, s.X); err != nil || s.Col.IsZero() {
		return h, err
	}

	raw, err := hostmat.Bytes(dev, s.Col)
	h.col = make([]float32, h.Cols)
	for j := range h.col {
		h.col[j] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:]))
	}

	return h, err
}

// Sum adds all scores up, in an order that does not depend on the number of threads.
func (h Scores) Sum() (total float64) {
	rows := make([]float64, h.Rows)
	mmapsafe.Split(h.Threads, h.Rows, func(lo, hi int) {
		buf := make([]float32, h.Cols)
		for i := lo; i < hi; i++ {
			for _, v := range h.Row(buf, i) {
				rows[i] += float64(v)
			}
		}
	})

	for _, v := range rows {
		total += v
	}

	return total
}

// Above counts the scores greater than t.
func (h Scores) Above(t float32) (total int64) {
	rows := make([]int64, h.Rows)
	mmapsafe.Split(h.Threads, h.Rows, func(lo, hi int) {
		buf := make([]float32, h.Cols)
		for i := lo; i < hi; i++ {
			for _, v := range h.Row(buf, i) {
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

// Row computes the scores of row i as the selecting operations do.
func (h Scores) Row(buf []float32, i int) []float32 {
	for j := range buf {
		buf[j] = hostmat.Element(h.raw, h.dtype, i*h.Cols+j)
		if !h.signed {
			buf[j] = float32(math.Abs(float64(buf[j])))
		}
		if h.col != nil {
			buf[j] *= h.col[j]
		}
	}

	return buf
}

// All computes the scores of all rows.
func (h Scores) All() []float32 {
	out := make([]float32, h.Rows*h.Cols)
	mmapsafe.Split(h.Threads, h.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			h.Row(out[i*h.Cols:(i+1)*h.Cols], i)
		}
	})
	return out
}

// Of takes scores in host memory as they are.
func Of(m kernels.Mat, threads int) Scores {
	return Scores{raw: m.Buf.Bytes(), dtype: m.DType(), Rows: m.Rows, Cols: m.Cols, signed: true, Threads: threads}
}

// Count sorts all scores into levels.
func (h Scores) Count(levels *allocation.Levels) error {
	buf := make([]float32, h.Cols)
	for i := range h.Rows {
		for j, v := range h.Row(buf, i) {
			if !levels.Add(v) {
				return fmt.Errorf("output %d, input %d: %w: %g", i, j, ErrNegative, v)
			}
		}
	}
	return nil
}
