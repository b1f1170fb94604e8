package layer

import (
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Judge looks at rows of logits: the losses of the wanted tokens, given that of token 0, and the column of the
// largest element, of equal ones the first; -1 where that is not a finite number.
func (s *Setup) Judge(x kernels.Mat, first []float64, want [][]int32, losses [][]float64, best []int32) error {
	rows, err := s.onHostRows(x)
	if err != nil {
		return err
	}

	const piece = 1 << 16 // elements of a piece of work, about
	per := max(1, piece/max(x.Cols, 1))

	mmapsafe.Each(0, (x.Rows+per-1)/per, func(at int) {
		for i := at * per; i < min((at+1)*per, x.Rows); i++ {
			row := rows(i)
			best[i], losses[i] = largest(row), make([]float64, len(want[i]))
			total := first[i] + float64(row[0])
			if math.IsInf(float64(row[0]), 0) {
				total = logSumExp(row)
			}
			for k, t := range want[i] {
				losses[i][k] = total - float64(row[t])
			}
		}
	})

	return nil
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

// logSumExp is log Σ exp(x).
func logSumExp(row []float32) float64 {
	top, sum := float64(slices.Max(row)), 0.0
	for _, v := range row {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum)
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
