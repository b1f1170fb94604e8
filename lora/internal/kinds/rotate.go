package kinds

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Rotated are the factors of PRoLoRA (Wang et al., arXiv 2402.16902): all but u of the ranks repeat a narrow
// factor along the channels, each copy with its ranks rotated by one stride more; u ranks are as wide as
// LoRA's.
type Rotated struct {
	A, B       *adapter.Param // [r-u, ⌈in/m⌉], [r-u, ⌈out/n⌉]; B transposed
	OwnA, OwnB *adapter.Param // [u, in], [u, out]; nil where u is 0
	InParts    int            // m
	OutParts   int            // n
}

// Assemble implements [adapter.Factors].
func (r Rotated) Assemble(a, bt kernels.Mat) {
	repeat(a, r.A.Value, r.InParts, func(to, from []float32) { copy(to, from) })
	repeat(bt, r.B.Value, r.OutParts, func(to, from []float32) { copy(to, from) })
	if r.OwnA == nil {
		return
	}

	shared := r.A.Value.Rows
	for j := range r.OwnA.Value.Rows {
		copy(a.RowF32(shared+j), r.OwnA.Value.RowF32(j))
		copy(bt.RowF32(shared+j), r.OwnB.Value.RowF32(j))
	}
}

// Scatter implements [adapter.Factors].
func (r Rotated) Scatter(da, dbt kernels.Mat) {
	sum := func(from, to []float32) {
		for i, v := range from {
			to[i] += v
		}
	}

	repeat(da, r.A.Grad, r.InParts, sum)
	repeat(dbt, r.B.Grad, r.OutParts, sum)
	if r.OwnA == nil {
		return
	}

	shared := r.A.Value.Rows
	for j := range r.OwnA.Value.Rows {
		sum(da.RowF32(shared+j), r.OwnA.Grad.RowF32(j))
		sum(dbt.RowF32(shared+j), r.OwnB.Grad.RowF32(j))
	}
}

// repeat calls f with each piece of a row of the wide factor and the piece of the narrow one that belongs
// there: copy c of row j is row (j + c·stride) mod rows.
func repeat(wide, narrow kernels.Mat, parts int, f func(wide, narrow []float32)) {
	ranks := narrow.Rows
	stride := max(ranks/parts, 1)
	for j := range ranks {
		row := wide.RowF32(j)
		for c := 0; len(row) > 0; c++ {
			n := min(len(row), narrow.Cols)
			f(row[:n], narrow.RowF32((j + c*stride) % ranks)[:n])
			row = row[n:]
		}
	}
}

// Parameters implements [adapter.Factors].
func (r Rotated) Parameters() []*adapter.Param {
	if r.OwnA == nil {
		return []*adapter.Param{r.A, r.B}
	}
	return []*adapter.Param{r.A, r.B, r.OwnA, r.OwnB}
}

// rotations makes PRoLoRA's factors for modules.
func rotations(c *adapter.Config, modules []adapter.Module) ([]*adapter.Low, error) {
	u := c.PRoLoRA.Unshared
	m := c.PRoLoRA.InParts
	n := c.PRoLoRA.OutParts
	if u < 0 || u >= c.Rank || m < 1 || n < 1 {
		return nil, fmt.Errorf("%w: PRoLoRA of rank %d with %d unshared ranks, %d and %d parts; unshared ranks must "+
			"be below the rank, parts at least 1",
			adapter.ErrConfig, c.Rank, u, m, n)
	}

	var list []*adapter.Low
	var faults []error
	for _, mod := range modules {
		if m > mod.In || n > mod.Out {
			faults = append(faults, fmt.Errorf("%w: %s has %d inputs and %d outputs, fewer than %d and %d parts",
				adapter.ErrConfig, mod.Path, mod.In, mod.Out, m, n))
			continue
		}

		if err := bounded(c.Rank, mod.In, mod.Out); err != nil {
			return nil, err
		}

		r := Rotated{
			A:       adapter.NewParam(mod.Path+".prolora_A", c.Rank-u, (mod.In+m-1)/m),
			B:       adapter.NewParam(mod.Path+".prolora_B", c.Rank-u, (mod.Out+n-1)/n),
			InParts: m, OutParts: n,
		}

		if u > 0 {
			r.OwnA, r.OwnB = adapter.NewParam(mod.Path+".unshared_A", u, mod.In),
				adapter.NewParam(mod.Path+".unshared_B", u, mod.Out)
		}

		list = append(list,
			&adapter.Low{Module: mod, Rank: c.Rank, Alpha: c.Alpha, Scale: c.ScaleOf(c.Rank, c.Alpha), Factors: r})
	}

	return list, errors.Join(faults...)
}
