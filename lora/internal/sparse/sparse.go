// Package sparse works on the zeros of a pruned model's matrices in host memory.
package sparse

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Pruned is the fraction of zeros from which on a matrix counts as a pruned one: more than any matrix has by
// chance, less than any pruning leaves behind that is worth its name.
const Pruned = 0.3

// Clear sets elements of x, F32, to zero where those of like are, -0 included. threads share the rows; 0 means
// GOMAXPROCS.
func Clear(x, like kernels.Mat, threads int) error {
	if x.Rows != like.Rows || x.Cols != like.Cols {
		return fmt.Errorf("%w: a matrix of %d × %d elements with zeros of one of %d × %d", adapter.ErrBase, x.Rows,
			x.Cols, like.Rows, like.Cols)
	}
	if err := readable(like); err != nil {
		return err
	}

	mmapsafe.Split(threads, x.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			to := x.RowF32(i)
			if like.DType() == kernels.F32 {
				for j, v := range like.RowF32(i)[:len(to)] {
					to[j] = masked(to[j], single(v))
				}
				continue
			}
			for j, v := range like.RowU16(i)[:len(to)] {
				to[j] = masked(to[j], half(v))
			}
		}
	})

	x.Buf.Changed()
	return nil
}

// Count is the number of zeros in a matrix, counted by threads; 0 means GOMAXPROCS.
func Count(x kernels.Mat, threads int) (int64, error) {
	if err := readable(x); err != nil {
		return 0, err
	}

	var others atomic.Int64
	mmapsafe.Split(threads, x.Rows, func(lo, hi int) {
		own := int64(0)
		for i := lo; i < hi; i++ {
			if x.DType() == kernels.F32 {
				for _, v := range x.RowF32(i) {
					own += int64(single(v) & 1)
				}
				continue
			}
			for _, v := range x.RowU16(i) {
				own += int64(half(v) & 1)
			}
		}
		others.Add(own)
	})

	return int64(x.Rows)*int64(x.Cols) - others.Load(), nil
}

// Half of a pruned matrix is zeros in no order, which a branch would guess wrong every other time. So the loops have
// none: single and half are all ones for an element that is not zero, and 0 for one that is.

func single(v float32) uint32 { return spread(math.Float32bits(v) & 0x7fffffff) }

func half(v uint16) uint32 { return spread(uint32(v & 0x7fff)) }

// spread is all ones unless v, below 2³¹, is 0.
func spread(v uint32) uint32 { return uint32(int32(-v) >> 31) }

func masked(v float32, mask uint32) float32 { return math.Float32frombits(math.Float32bits(v) & mask) }

// readable refuses matrices in an element type whose zeros are not the base's.
func readable(x kernels.Mat) error {
	switch x.DType() {
	case kernels.F32, kernels.BF16, kernels.F16:
		return nil
	}
	return failure.Hinted(fmt.Errorf("%w: the zeros of a matrix of %s are not those of the base",
		adapter.ErrUnsupported, x.DType()), "no --base-bits")
}
