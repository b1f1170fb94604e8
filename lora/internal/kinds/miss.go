package kinds

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Sums are the factors of MiSS (Kang and Yin, arXiv 2409.15371): A adds the inputs i, i+r, i+2r, … up to row i, and D,
// which alone is trained, is B transposed. In the variant "mini" the columns of a narrow D repeat along the outputs.
type Sums struct {
	D *adapter.Param // [r, out], or [r, m]
}

// Assemble implements [adapter.Factors].
func (s Sums) Assemble(a, bt kernels.Mat) {
	for j := range a.Rows {
		row := a.RowF32(j)
		clear(row)
		for i := j; i < len(row); i += a.Rows {
			row[i] = 1
		}

		from := s.D.Value.RowF32(j)
		for to := bt.RowF32(j); len(to) > 0; to = to[len(from):] {
			copy(to, from)
		}
	}
}

// Scatter implements [adapter.Factors].
func (s Sums) Scatter(_, dbt kernels.Mat) {
	for j := range dbt.Rows {
		g := s.D.Grad.RowF32(j)
		for o, v := range dbt.RowF32(j) {
			g[o%len(g)] += v
		}
	}
}

// Parameters implements [adapter.Factors].
func (s Sums) Parameters() []*adapter.Param { return []*adapter.Param{s.D} }

// FixedA implements [adapter.Fixed].
func (s Sums) FixedA() {}

// sums makes MiSS' factors for modules.
func sums(c *adapter.Config, modules []adapter.Module) ([]*adapter.Low, error) {
	if c.MiSS.Mini < 0 {
		return nil, fmt.Errorf("%w: MiSS with %d columns (mini_r)", adapter.ErrConfig, c.MiSS.Mini)
	}

	var list []*adapter.Low
	var faults []error
	for _, m := range modules {
		cols := m.Out
		if c.MiSS.Mini > 0 {
			cols = c.MiSS.Mini
		}
		if c.Rank > m.In || m.Out%cols != 0 {
			faults = append(faults, fmt.Errorf("%w: %s has %d inputs and %d outputs: the rank, %d, is at most the "+
				"former, and mini_r, %d, divides the latter", adapter.ErrConfig, m.Path, m.In, m.Out, c.Rank, cols))
			continue
		}

		list = append(list, &adapter.Low{
			Module: m, Rank: c.Rank, Alpha: float64(c.Rank), Scale: 1,
			Factors: Sums{D: adapter.NewFactor(m.Path+".miss_block", c.Rank, cols)},
		})
	}

	return list, errors.Join(faults...)
}
