package kinds

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Granular are the factors of GraLoRA (Jung et al., arXiv 2505.20355): the matrix is cut into k × k parts, each with a
// pair of factors of rank r/k. Part l of the inputs makes r sums, of which those j·r/k … go into part j of the outputs.
// As factors of the whole matrix they have k·r ranks, row (l, j, s) of A being zero outside of part l, and of B outside
// of part j. Ranks of a plain LoRA may follow.
type Granular struct {
	K          int
	A, B       *adapter.Param // [in, r], the parts below each other; [k·r, out/k], likewise
	OwnA, OwnB *adapter.Param // [h, in], [out, h] of the plain LoRA; nil where h is 0
}

// each calls f for every row of the wide factors with its parts of both sides and their places in the narrow ones:
// column c of the rows from row on of A, and row b of B.
func (g Granular) each(f func(q, l, j, c, b int)) {
	r := g.A.Value.Cols
	s := r / g.K
	for l := range g.K {
		for j := range g.K {
			for i := range s {
				f((l*g.K+j)*s+i, l, j, j*s+i, j*r+l*s+i)
			}
		}
	}
}

// Assemble implements [adapter.Factors].
func (g Granular) Assemble(a, bt kernels.Mat) {
	in, out := g.A.Value.Rows/g.K, g.B.Value.Cols
	g.each(func(q, l, j, c, b int) {
		row := a.RowF32(q)
		clear(row)
		for i := range in {
			row[l*in+i] = g.A.Value.RowF32(l*in + i)[c]
		}

		clear(bt.RowF32(q))
		copy(bt.RowF32(q)[j*out:], g.B.Value.RowF32(b))
	})

	if g.OwnA != nil {
		first := g.A.Value.Cols * g.K
		adapter.Plain{A: g.OwnA, B: g.OwnB}.Assemble(a.RowRange(first, a.Rows), bt.RowRange(first, bt.Rows))
	}
}

// Scatter implements [adapter.Factors].
func (g Granular) Scatter(da, dbt kernels.Mat) {
	in, out := g.A.Value.Rows/g.K, g.B.Value.Cols
	g.each(func(q, l, j, c, b int) {
		for i, v := range da.RowF32(q)[l*in : (l+1)*in] {
			g.A.Grad.RowF32(l*in + i)[c] += v
		}
		to := g.B.Grad.RowF32(b)
		for i, v := range dbt.RowF32(q)[j*out : (j+1)*out] {
			to[i] += v
		}
	})

	if g.OwnA != nil {
		first := g.A.Value.Cols * g.K
		adapter.Plain{A: g.OwnA, B: g.OwnB}.Scatter(da.RowRange(first, da.Rows), dbt.RowRange(first, dbt.Rows))
	}
}

// Parameters implements [adapter.Factors].
func (g Granular) Parameters() []*adapter.Param {
	if g.OwnA == nil {
		return []*adapter.Param{g.A, g.B}
	}
	return []*adapter.Param{g.A, g.B, g.OwnA, g.OwnB}
}

// grains makes GraLoRA's factors for modules.
func grains(c *adapter.Config, modules []adapter.Module) ([]*adapter.Low, error) {
	k, h := c.GraLoRA.Parts, c.GraLoRA.Hybrid
	if k < 1 || k > c.Rank || c.Rank%k != 0 || h < 0 || h > 1<<20 {
		return nil, fmt.Errorf("%w: GraLoRA of rank %d with %d parts and %d plain ranks; the parts divide the rank",
			adapter.ErrConfig, c.Rank, k, h)
	}

	var list []*adapter.Low
	var faults []error
	for _, m := range modules {
		if m.In%k != 0 || m.Out%k != 0 {
			faults = append(faults, fmt.Errorf("%w: %s has %d inputs and %d outputs, which %d parts do not divide",
				adapter.ErrConfig, m.Path, m.In, m.Out, k))
			continue
		}

		rank := k*c.Rank + h
		if err := bounded(rank, m.In, m.Out); err != nil {
			return nil, err
		}

		g := Granular{
			K: k, A: adapter.NewFactor(m.Path+".gralora_A", m.In, c.Rank),
			B: adapter.NewFactor(m.Path+".gralora_B", k*c.Rank, m.Out/k),
		}
		g.A.Shape = []int64{int64(k), int64(m.In / k), int64(c.Rank)}
		g.B.Shape = []int64{int64(k), int64(c.Rank), int64(m.Out / k)}
		if h > 0 {
			g.OwnA = adapter.NewFactor(m.Path+".gralora_A_general.weight", h, m.In)
			g.OwnB = adapter.NewFactor(m.Path+".gralora_B_general.weight", m.Out, h)
		}

		scale := c.ScaleOf(c.Rank, c.Alpha)
		list = append(list,
			&adapter.Low{Module: m, Rank: rank, Alpha: scale * float64(rank), Scale: scale, Factors: g})
	}

	return list, errors.Join(faults...)
}
