package layer

import "github.com/modelcompress/compress/kernels"

// SumSquares is the sum of the squares of a matrix.
func (s *Setup) SumSquares(x kernels.Mat) (float64, error) {
	buf, err := s.Device.Alloc(kernels.F64, x.Cols)
	if err != nil {
		return 0, err
	}
	defer buf.Free()

	s.ops.ColSumSq(kernels.MatOf(buf, 1, x.Cols), x)
	columns, err := s.Float64s(buf, x.Cols)
	sum := 0.0
	for _, v := range columns {
		sum += v
	}

	return sum, err
}
