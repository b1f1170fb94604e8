package prune

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// allocate sets the sparsity of every block. OWL runs the whole dense model once for it.
func (w *walk) allocate(ctx context.Context) error {
	switch {
	case w.o.Allocation.Name == Uniform:
		return nil
	case w.o.Pattern.Structured():
		w.report.note("allocation %s has no effect with pattern %s, which fixes every block's share", w.o.Allocation.Name, w.o.Pattern)
		return nil
	case w.o.Sparsity == 0:
		return nil
	}
	defer since(&w.report.Times.Allocate, time.Now())
	if err := w.embed(ctx); err != nil {
		return err
	}
	defer func() { w.states.free(); w.states = nil }()
	outliers := make([]float64, w.m.Blocks())
	for l := range outliers {
		var err error
		if outliers[l], err = w.outliers(ctx, l); err != nil {
			return err
		}
		w.report.Blocks[l].Outliers = outliers[l]
	}
	targets, err := owlSparsity(outliers, w.o.Sparsity, w.o.Allocation.Lambda)
	for l := range targets {
		w.report.Blocks[l].Target = targets[l]
	}
	return err
}

// outliers measures a dense block, leaves the states behind it, and gives the percentage of the scores of all its matrices
// together that are above M times their mean.
func (w *walk) outliers(ctx context.Context, l int) (float64, error) {
	linears := w.m.Linears(l)
	w.step(Step{Stage: Allocate, Block: l, Of: len(linears)})
	var stats *inputStats
	if w.measure {
		var err error
		if stats, err = newInputStats(w.dev, linears, len(w.calib.IDs)); err != nil {
			return 0, err
		}
		defer stats.free()
		if err := w.states.advance(ctx, l, stats.hooks(), func(int, int) {}); err != nil {
			return 0, err
		}
	}
	defer w.m.ReleaseBlock(l, false)
	var sum, total float64
	err := w.eachScore(ctx, linears, stats, func(s hostScore) {
		sum += s.sum()
		total += float64(s.rows * s.cols)
	})
	if err != nil || total == 0 {
		return 0, err
	}
	threshold := float32(w.o.Allocation.M) * float32(sum/total)
	var above int64
	err = w.eachScore(ctx, linears, stats, func(s hostScore) { above += s.above(threshold) })
	return 100 * float64(above) / total, err
}

// eachScore scores the matrices of a block one after the other.
func (w *walk) eachScore(ctx context.Context, linears []lm.Linear, stats *inputStats, visit func(hostScore)) error {
	for _, l := range linears {
		if err := ctx.Err(); err != nil {
			return err
		}
		stored, err := w.m.Param(l.Name)
		if err != nil {
			return err
		}
		in, release, err := w.inputs(l, stored, stats)
		if err != nil {
			return err
		}
		err = w.visitScore(in, visit)
		release()
		if err != nil {
			return w.fail(l.Name, err)
		}
	}
	return nil
}

func (w *walk) visitScore(in Inputs, visit func(hostScore)) error {
	score, err := w.o.Metric.Score(in)
	defer freeScore(score, in.W)
	if err != nil {
		return err
	}
	s, err := newHostScore(w.dev, score)
	if err == nil {
		visit(s)
	}
	return err
}

// hostScore computes scores on the host, element by element.
type hostScore struct {
	raw        []byte
	dtype      kernels.DType
	rows, cols int
	col        []float32 // nil: all 1
	signed     bool
	threads    int
}

func newHostScore(dev kernels.Device, s kernels.Score) (hostScore, error) {
	h := hostScore{dtype: s.X.DType(), rows: s.X.Rows, cols: s.X.Cols, signed: s.Raw, threads: dev.Info().Threads}
	var err error
	if h.raw, err = hostBytes(dev, s.X); err != nil || s.Col.IsZero() {
		return h, err
	}
	raw, err := hostBytes(dev, s.Col)
	h.col = make([]float32, h.cols)
	for j := range h.col {
		h.col[j] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:]))
	}
	return h, err
}

// sum adds all scores up, in an order that does not depend on the number of threads.
func (h hostScore) sum() (total float64) {
	rows := make([]float64, h.rows)
	inParallel(h.threads, h.rows, func(lo, hi int) {
		buf := make([]float32, h.cols)
		for i := lo; i < hi; i++ {
			for _, v := range h.row(buf, i) {
				rows[i] += float64(v)
			}
		}
	})
	for _, v := range rows {
		total += v
	}
	return total
}

// above counts the scores greater than t.
func (h hostScore) above(t float32) (total int64) {
	rows := make([]int64, h.rows)
	inParallel(h.threads, h.rows, func(lo, hi int) {
		buf := make([]float32, h.cols)
		for i := lo; i < hi; i++ {
			for _, v := range h.row(buf, i) {
				if v > t {
					rows[i]++
				}
			}
		}
	})
	for _, n := range rows {
		total += n
	}
	return total
}

// row computes the scores of row i as the selecting operations do.
func (h hostScore) row(buf []float32, i int) []float32 {
	size := h.dtype.Size()
	p := h.raw[i*h.cols*size : (i+1)*h.cols*size]
	for j := range buf {
		switch h.dtype {
		case kernels.BF16:
			buf[j] = kernels.FromBF16(binary.LittleEndian.Uint16(p[2*j:]))
		case kernels.F16:
			buf[j] = kernels.FromF16(binary.LittleEndian.Uint16(p[2*j:]))
		default:
			buf[j] = math.Float32frombits(binary.LittleEndian.Uint32(p[4*j:]))
		}
		if !h.signed {
			buf[j] = float32(math.Abs(float64(buf[j])))
		}
		if h.col != nil {
			buf[j] *= h.col[j]
		}
	}
	return buf
}
