package layer

import (
	"encoding/binary"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// Predictions lists the rows that predict a token, in order, and what they should predict.
func Predictions(lens []int, labels [][]int32) (rows, want []int32) {
	start := int32(0)
	for i, n := range lens {
		for t := range max(n-1, 0) {
			rows, want = append(rows, start+int32(t)), append(want, labels[i][t+1])
		}
		start += int32(n)
	}
	return rows, want
}

// CountedRows keeps the rows whose label counts, with the labels and their numbers.
func CountedRows(rows, labels []int32) (counted, want []int32, at []int) {
	for i, y := range labels {
		if y >= 0 {
			counted, want, at = append(counted, rows[i]), append(want, y), append(at, i)
		}
	}
	return counted, want, at
}

// Float64s gives the first elements of a buffer on the host, valid until it changes.
func (s *Setup) Float64s(buf *kernels.Buffer, n int) ([]float64, error) {
	if s.host {
		return buf.F64()[:n], nil
	}

	raw := make([]byte, n*8)
	if err := s.Device.Download(raw, buf, 0); err != nil {
		return nil, err
	}

	losses := make([]float64, n)
	for i := range losses {
		losses[i] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
	}

	return losses, nil
}

// NotFinite finds the first of the losses of all predicted tokens of some sequences that is no finite number.
func NotFinite(lens []int, losses []float64) (seq, pos int, loss float64, found bool) {
	at := 0
	for i, n := range lens {
		for t := range max(n-1, 0) {
			if loss := losses[at]; math.IsNaN(loss) || math.IsInf(loss, 0) {
				return i, t, loss, true
			}
			at++
		}
	}

	return 0, 0, 0, false
}
