package layer

import (
	"math"
	"sync"

	"github.com/modelcompress/compress/kernels"
)

// Best appends the column of the largest element of every row, of equal ones the first; -1 where that is not a finite number.
func (s *Setup) Best(dst []int32, x kernels.Mat) ([]int32, error) {
	rows, err := s.onHostRows(x)
	if err != nil {
		return dst, err
	}
	at := len(dst)
	dst = append(dst, make([]int32, x.Rows)...)
	const piece = 1 << 16 // elements of a piece of work, about
	per := max(1, piece/max(x.Cols, 1))
	var wg sync.WaitGroup
	for lo := 0; lo < x.Rows; lo += per {
		wg.Go(func() {
			for i := lo; i < min(lo+per, x.Rows); i++ {
				dst[at+i] = largest(rows(i))
			}
		})
	}
	wg.Wait()
	return dst, nil
}

// onHostRows gives the rows of a matrix in host memory.
func (s *Setup) onHostRows(x kernels.Mat) (func(i int) []float32, error) {
	if s.host {
		return x.RowF32, nil
	}
	all := make([]float32, x.Rows*x.Cols)
	for i := range x.Rows {
		row := kernels.WrapF32(all[i*x.Cols : (i+1)*x.Cols])
		if err := s.Device.Download(row.Bytes(), x.Buf, x.Off+i*x.Stride); err != nil {
			return nil, err
		}
	}
	return func(i int) []float32 { return all[i*x.Cols : (i+1)*x.Cols] }, nil
}

func largest(row []float32) int32 {
	best, top := int32(-1), float32(math.Inf(-1))
	for i, v := range row {
		if v > top {
			best, top = int32(i), v
		}
		if math.IsNaN(float64(v)) {
			return -1
		}
	}
	if math.IsInf(float64(top), 0) {
		return -1
	}
	return best
}
