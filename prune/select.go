package prune

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/prune/internal/host"
	"github.com/modelcompress/compress/prune/internal/sweep"
)

// selection says which weights of one matrix go.
type selection struct {
	dense    bool // none, whatever the rest says
	pattern  Pattern
	group    Group // not Share, which shareMask serves
	sparsity float64
}

// mask writes the keep mask of a matrix [out, in].
func (s selection) mask(ops *kernels.Ops, keep kernels.Mat, score kernels.Score) {
	switch {
	case s.pattern.Structured():
		ops.SelectNM(keep, score, s.pattern.N, s.pattern.M)
	case s.group == Layer:
		ops.SelectAll(keep, score, layerRank(keep.Len(), s.sparsity))
	case s.group == Strip:
		for lo := 0; lo < keep.Cols; lo += sweep.Width {
			hi := min(lo+sweep.Width, keep.Cols)
			part := kernels.Score{X: score.X.ColRange(lo, hi), Raw: score.Raw}
			if !score.Col.IsZero() {
				part.Col = score.Col.ColRange(lo, hi)
			}
			ops.SelectAll(keep.ColRange(lo, hi), part, layerRank(keep.Rows*(hi-lo), s.sparsity))
		}
	default:
		ops.SelectRows(keep, score, rowCount(keep.Cols, s.sparsity))
	}
}

// rowCount is how many weights of a row go: the share in float64, truncated, as the published code computes it.
func rowCount(in int, sparsity float64) int {
	return min(int(float64(in)*sparsity), in)
}

// layerRank is the rank, from 0, of the highest score that goes, or -1 if none goes.
func layerRank(numel int, sparsity float64) int {
	if sparsity == 0 {
		return -1
	}
	return min(int(float64(numel)*sparsity), numel-1)
}

// checkGroups counts the groups of m inputs, consecutive or so in the given order, of a matrix [out, in] that have fewer than n
// zeros; a short last group needs min(n, its size). It looks at the weights as they are, not at a mask.
func checkGroups(dev kernels.Device, w kernels.Mat, p Pattern, order []int32) (bad int64, err error) {
	raw, err := host.Bytes(dev, w)
	if err != nil {
		return 0, err
	}
	size := w.DType().Size()
	var sum sync.Mutex
	host.Parallel(dev.Info().Threads, w.Rows, func(lo, hi int) {
		var n int64
		moved := make([]byte, len(order)*size)
		for i := lo; i < hi; i++ {
			row := raw[i*w.Cols*size : (i+1)*w.Cols*size]
			for p, j := range order {
				copy(moved[p*size:(p+1)*size], row[int(j)*size:])
			}
			if order != nil {
				row = moved
			}
			n += badGroups(row, size, p)
		}
		sum.Lock()
		bad += n
		sum.Unlock()
	})
	return bad, nil
}

// badGroups counts the groups of one row with too few zeros.
func badGroups(row []byte, size int, p Pattern) (bad int64) {
	for len(row) > 0 {
		n := min(p.M*size, len(row))
		if zeros(row[:n], size) < min(p.N, n/size) {
			bad++
		}
		row = row[n:]
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

// blockCount is how many weights go at least where columns are chosen in blocks.
func (s selection) blockCount(keep kernels.Mat) (n int) {
	for lo := 0; lo < keep.Cols; lo += sweep.Width {
		n += layerRank(keep.Rows*min(sweep.Width, keep.Cols-lo), s.sparsity) + 1
	}
	return n
}

// check says that a mask dropped another number of weights than it was asked to.
func (s selection) check(ops *kernels.Ops, keep kernels.Mat) error {
	dropped := ops.CountZero(keep)
	want, exact := 0, true
	switch in := keep.Cols; {
	case s.pattern.Structured():
		want = keep.Rows * (in/s.pattern.M*s.pattern.N + min(in%s.pattern.M, s.pattern.N))
	case s.group == Layer:
		want, exact = layerRank(keep.Len(), s.sparsity)+1, false
	case s.group == Strip:
		want, exact = s.blockCount(keep), false
	case s.group == Share:
		want, exact = 0, false
	default:
		want = keep.Rows * rowCount(in, s.sparsity)
	}
	if dropped < want || (exact && dropped != want) {
		return fmt.Errorf("%w: %d weights dropped, want %d", ErrMask, dropped, want)
	}
	return nil
}
