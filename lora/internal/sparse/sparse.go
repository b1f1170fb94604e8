// Package sparse works on the zeros of a pruned model's matrices in host memory.
package sparse

import (
	"fmt"
	"sync/atomic"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Pruned is the fraction of zeros from which on a matrix counts as a pruned one: more than any matrix has by
// chance, less than any pruning leaves behind that is worth its name.
const Pruned = 0.3

// workers is how many goroutines share a matrix; results do not depend on it.
const workers = 8

// Clear sets elements of x, F32, to zero where those of like are, -0 included.
func Clear(x, like kernels.Mat) error {
	if x.Rows != like.Rows || x.Cols != like.Cols {
		return fmt.Errorf("%w: a matrix of %d × %d elements with zeros of one of %d × %d", adapter.ErrBase, x.Rows,
			x.Cols, like.Rows, like.Cols)
	}

	err := rows(like, func(i int, zero func(j int) bool) {
		to := x.RowF32(i)
		for j := range to {
			if zero(j) {
				to[j] = 0
			}
		}
	})

	x.Buf.Changed()
	return err
}

// Count is the number of zeros in a matrix.
func Count(x kernels.Mat) (int64, error) {
	var n atomic.Int64
	err := rows(x, func(_ int, zero func(j int) bool) {
		own := int64(0)
		for j := range x.Cols {
			if zero(j) {
				own++
			}
		}
		n.Add(own)
	})

	return n.Load(), err
}

// rows calls f with every row of a matrix, several at once, and with a function that reports which of its elements are
// zero.
func rows(x kernels.Mat, f func(i int, zero func(j int) bool)) error {
	switch x.DType() {
	case kernels.F32, kernels.BF16, kernels.F16:
	default:
		return failure.Hinted(fmt.Errorf("%w: the zeros of a matrix of %s are not those of the base",
			adapter.ErrUnsupported, x.DType()), "no --base-bits")
	}

	var wg mmapsafe.Group
	for k := range workers {
		wg.Go(func() {
			for i := k * x.Rows / workers; i < (k+1)*x.Rows/workers; i++ {
				if x.DType() == kernels.F32 {
					row := x.RowF32(i)
					f(i, func(j int) bool { return row[j] == 0 })
					continue
				}
				row := x.RowU16(i)
				f(i, func(j int) bool { return row[j]&0x7fff == 0 })
			}
		})
	}

	wg.Wait()
	return nil
}
