package hostmat

import (
	"encoding/binary"
	"sync"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// BadGroups counts the groups of m inputs, consecutive or so in the given order, of a matrix [out, in] that
// have fewer than n zeros; a short last group needs min(n, its size). It looks at the weights as they are, not
// at a mask.
func BadGroups(dev kernels.Device, w kernels.Mat, n, m int, order []int32) (bad int64, err error) {
	raw, err := Bytes(dev, w)
	if err != nil {
		return 0, err
	}

	size := w.DType().Size()
	var sum sync.Mutex
	mmapsafe.Split(dev.Info().Threads, w.Rows, func(lo, hi int) {
		var found int64
		moved := make([]byte, len(order)*size)
		for i := lo; i < hi; i++ {
			row := raw[i*w.Cols*size : (i+1)*w.Cols*size]
			for p, j := range order {
				copy(moved[p*size:(p+1)*size], row[int(j)*size:])
			}
			if order != nil {
				row = moved
			}

			found += badIn(row, size, n, m)
		}

		sum.Lock()
		bad += found
		sum.Unlock()
	})

	return bad, nil
}

// badIn counts the groups of one row with too few zeros.
func badIn(row []byte, size, n, m int) (bad int64) {
	for len(row) > 0 {
		end := min(m*size, len(row))
		if zeros(row[:end], size) < min(n, end/size) {
			bad++
		}
		row = row[end:]
	}
	return bad
}

// zeros counts the elements that are zero, of either sign.
func zeros(p []byte, size int) (n int) {
	if size == 2 {
		for ; len(p) > 0; p = p[2:] {
			if binary.LittleEndian.Uint16(p)&0x7fff == 0 {
				n++
			}
		}
		return n
	}

	for ; len(p) > 0; p = p[4:] {
		if binary.LittleEndian.Uint32(p)&0x7fffffff == 0 {
			n++
		}
	}

	return n
}
