package score

import (
	"math"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Place brings scores in host memory to a device, as they are.
func Place(dev kernels.Device, scores kernels.Mat) (kernels.Score, error) {
	if dev.Info().Host {
		return kernels.Score{X: scores, Raw: true}, nil
	}
	there, err := hostmat.There(dev, scores)
	return kernels.Score{X: there, Raw: true}, err
}

// Elsewhere lets f choose on a device by scores in host memory, and writes the mask to host memory too.
func Elsewhere(dev kernels.Device, mask, scores kernels.Mat, f func(mask kernels.Mat, s kernels.Score)) error {
	s, err := Place(dev, scores)
	if err != nil {
		return err
	}
	defer s.X.Buf.Free()

	buf, err := dev.Alloc(kernels.U8, mask.Len())
	if err != nil {
		return err
	}
	defer buf.Free()

	there := kernels.MatOf(buf, mask.Rows, mask.Cols)
	f(there, s)
	raw, err := hostmat.Bytes(dev, there)
	if err != nil {
		return err
	}

	for i := range mask.Rows {
		copy(mask.RowU8(i), raw[i*mask.Cols:])
	}

	return nil
}

// Relative overwrites weights in host memory by their relative importance, |W|/Σ_column|W| + |W|/Σ_row|W|,
// times a factor for every input; a weight of 0 scores 0.
func Relative(w kernels.Mat, factor []float32, threads int) {
	columns := make([]float64, w.Cols)
	for i := range w.Rows {
		for j, v := range w.RowF32(i) {
			columns[j] += math.Abs(float64(v))
		}
	}

	mmapsafe.Split(threads, w.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			relative(w.RowF32(i), columns, factor)
		}
	})
}

// relative does one row.
func relative(row []float32, columns []float64, factor []float32) {
	total := 0.0
	for _, v := range row {
		total += math.Abs(float64(v))
	}

	sum := float32(total)
	for j, v := range row {
		if v == 0 {
			row[j] = 0
			continue
		}
		a := float32(math.Abs(float64(v)))
		row[j] = (a/float32(columns[j]) + a/sum) * factor[j]
	}
}
