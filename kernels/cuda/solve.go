//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// ErrNotPositive is the error of a matrix that has no Cholesky factor.
var ErrNotPositive = kernels.ErrNotPositive

var _ kernels.Solver = (*Device)(nil)

// solveArgs mirrors SolveArgs of solve.cu.
type solveArgs struct {
	a, b, failed     uintptr
	strideA, strideB int
	n, m, at, back   int32
}

// solveBlock is the width of the blocks.
const solveBlock = 32

// mostOrder is the largest order: a launch has at most 65,535 tiles downwards.
const mostOrder = solveBlock * maxY

// tilesOf is how many blocks n indices are.
func tilesOf(n int) int { return (n + solveBlock - 1) / solveBlock }

// Cholesky replaces the lower triangle of the symmetric matrix a, F64 [n, n], by its factor L with L·Lᵀ = a.
// What lies above the diagonal is not read; it may be written. It waits for the result: [ErrNotPositive] names
// the first pivot that is not positive.
func (d *Device) Cholesky(a kernels.Mat) error {
	need(a.Rows == a.Cols && a.DType() == kernels.F64 && a.Rows <= mostOrder,
		"cuda: Cholesky: a is not a square F64 matrix")
	if a.Rows == 0 {
		return nil
	}

	// The largest number stands for none: kernels keep the smallest pivot that failed.
	failed := []uint64{math.MaxUint64}
	d.operation("Cholesky", func() {
		args := solveArgs{a: d.of(a).p, failed: sent(d, failed), strideA: a.Stride, n: int32(a.Rows)}
		for at := 0; at < a.Rows; at += solveBlock {
			args.at = int32(at)
			launch(d, "solve.cholesky_block", grid{x: 1, y: 1, threads: 256}, &args)
			rest := a.Rows - at - solveBlock
			if rest <= 0 {
				break
			}

			launch(d, "solve.cholesky_panel", grid{x: (rest + 63) / 64, y: 1, threads: 64}, &args)
			launch(d, "solve.cholesky_rest", grid{x: tilesOf(rest), y: tilesOf(rest), threads: 256}, &args)
		}

		if d.err == nil && d.lost == nil {
			d.fail(d.small.receive(d, bytesOf(failed), args.failed))
		}

		d.drop(args.failed)
	}, a)

	changed(a)
	// A faulty matrix is the caller's, not the device's: it doesn't fail what comes after.
	if failed[0] != math.MaxUint64 {
		return fmt.Errorf("cuda:%d: Cholesky: %w", d.index, &kernels.PivotError{Pivot: int(failed[0])})
	}

	return d.failed()
}

// SolveLower replaces b, F64 [n, m], by the solution y of L·y = b, or if transposed of Lᵀ·y = b, with the lower
// triangle L of l, F64 [n, n]. Failures are reported by Sync.
func (d *Device) SolveLower(l, b kernels.Mat, transposed bool) {
	need(l.Rows == l.Cols && l.Rows == b.Rows && l.Rows <= mostOrder, "cuda: SolveLower: shapes do not agree")
	need(l.DType() == kernels.F64 && b.DType() == kernels.F64, "cuda: SolveLower: not F64")
	if b.Len() == 0 {
		return
	}

	d.operation("SolveLower", func() {
		args := solveArgs{
			a: d.of(l).p, b: d.of(b).p, strideA: l.Stride, strideB: b.Stride, n: int32(l.Rows),
			m: int32(b.Cols), back: flag(transposed),
		}
		blocks := tilesOf(l.Rows)
		for i := range blocks {
			at, rest := i*solveBlock, blocks-1-i
			if transposed {
				at, rest = (blocks-1-i)*solveBlock, blocks-1-i
			}

			args.at = int32(at)
			launch(d, "solve.solve_block", grid{x: (b.Cols + 63) / 64, y: 1, threads: 64}, &args)
			if rest > 0 {
				launch(d, "solve.solve_rest", grid{x: tilesOf(b.Cols), y: rest, threads: 256}, &args)
			}
		}
	}, l, b)

	changed(b)
}
