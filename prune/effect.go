package prune

import (
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/internal/host"
	"github.com/modelcompress/compress/prune/internal/inflow"
)

// effectRows is how many rows of a matrix a change is measured on.
const effectRows = 64

// measureChange compares what zeroing alone and what the update do to the outputs, on up to 64 rows spread over the matrix.
func (w *walk) measureChange(l lm.Linear, c *change, stats *inflow.Stats) error {
	if c.after.IsZero() {
		return nil
	}
	h, err := stats.HessianOf(stats.SumOf(l.Name), l)
	if err != nil {
		return err
	}
	before, err := host.F32(w.dev, c.in.W)
	if err != nil {
		return err
	}
	keep, err := host.Bytes(w.dev, c.keep)
	if err != nil {
		return err
	}
	n := min(effectRows, before.Rows)
	dense, masked, updated := linalg.New(n, before.Cols), linalg.New(n, before.Cols), linalg.New(n, before.Cols)
	for k := range n {
		i := k * before.Rows / n
		old, now := before.RowF32(i), c.after.RowF32(i)
		for j, v := range old {
			dense.Set(k, j, float64(v))
			updated.Set(k, j, float64(now[j])-float64(v))
			if keep[i*before.Cols+j] == 0 {
				masked.Set(k, j, -float64(v))
			}
		}
	}
	for _, j := range stats.SumOf(l.Name).Dead {
		for k := range n {
			dense.Set(k, j, 0)
			masked.Set(k, j, 0)
			updated.Set(k, j, 0)
		}
	}
	s := linalg.Solver{Threads: w.dev.Info().Threads}
	if total := energy(s, dense, h); total > 0 {
		c.t.Change = &Change{Masked: energy(s, masked, h) / total, Updated: energy(s, updated, h) / total}
	}
	return nil
}

// energy is Σ_i d_i·H·d_iᵀ over the rows of d.
func energy(s linalg.Solver, d, h linalg.Matrix) (sum float64) {
	p := linalg.New(d.Rows, d.Cols)
	s.Mul(p, d, h, linalg.Product{})
	for i, v := range d.Data {
		sum += v * p.Data[i]
	}
	return sum
}
