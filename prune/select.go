package prune

import (
	"fmt"

	"github.com/modelcompress/compress/internal/obs"
	"github.com/modelcompress/compress/kernels"
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
		for lo := 0; lo < keep.Cols; lo += obs.Width {
			hi := min(lo+obs.Width, keep.Cols)
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

// blockCount is how many weights go at least where columns are chosen in blocks.
func (s selection) blockCount(keep kernels.Mat) (n int) {
	for lo := 0; lo < keep.Cols; lo += obs.Width {
		n += layerRank(keep.Rows*min(obs.Width, keep.Cols-lo), s.sparsity) + 1
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
