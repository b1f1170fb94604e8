package kinds

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Vector are the factors of VeRA (Kopiczko et al., arXiv 2310.11454): A = diag(d)·A₀ and B = diag(b)·B₀ with
// random frozen A₀ and B₀ that all modules share, cut to each module's channels.
type Vector struct {
	Down *adapter.Param // A₀ [r, widest in], frozen
	Up   *adapter.Param // B₀ transposed [r, widest out], frozen
	D    *adapter.Param // [1, r]
	B    *adapter.Param // [1, out]
}

// Assemble implements [adapter.Factors].
func (v Vector) Assemble(a, bt kernels.Mat) {
	d, b := v.D.Data(), v.B.Data()
	for j := range a.Rows {
		down := v.Down.Value.RowF32(j)
		for i := range a.RowF32(j) {
			a.RowF32(j)[i] = d[j] * down[i]
		}

		up := v.Up.Value.RowF32(j)
		for o, s := range b {
			bt.RowF32(j)[o] = s * up[o]
		}
	}
}

// Scatter implements [adapter.Factors].
func (v Vector) Scatter(da, dbt kernels.Mat) {
	dd, db := v.D.Grad.RowF32(0), v.B.Grad.RowF32(0)
	for j := range da.Rows {
		down, sum := v.Down.Value.RowF32(j), 0.0
		for i, g := range da.RowF32(j) {
			sum += float64(g) * float64(down[i])
		}

		dd[j] += float32(sum)
		up := v.Up.Value.RowF32(j)
		for o, g := range dbt.RowF32(j) {
			db[o] += g * up[o]
		}
	}
}

// Parameters implements [adapter.Factors].
func (v Vector) Parameters() []*adapter.Param { return []*adapter.Param{v.Down, v.Up, v.D, v.B} }

// vectors makes VeRA's factors for modules.
func vectors(c *adapter.Config, modules []adapter.Module) ([]*adapter.Low, error) {
	in, out := 0, 0
	for _, m := range modules {
		in, out = max(in, m.In), max(out, m.Out)
	}
	if err := bounded(c.Rank, in, out); err != nil {
		return nil, err
	}

	down, up := adapter.NewParam("vera_A", c.Rank, in), adapter.NewParam("vera_B", c.Rank, out)
	down.Frozen, up.Frozen = true, true

	var list []*adapter.Low
	for _, m := range modules {
		v := Vector{
			Down: down, Up: up, D: adapter.NewParam(m.Path+".vera_lambda_d", 1, c.Rank),
			B: adapter.NewParam(m.Path+".vera_lambda_b", 1, m.Out),
		}
		list = append(list, &adapter.Low{Module: m, Rank: c.Rank, Alpha: float64(c.Rank), Scale: 1, Factors: v})
	}

	return list, nil
}

// startVectors fills VeRA's factors: Kaiming-uniform with gain √2 for the frozen ones, d constant, b zero.
func startVectors(c *adapter.Config, list []*adapter.Low) {
	v := list[0].Factors.(Vector)
	rng.New(c.VeRA.Seed, v.Down.Name).FillUniform(v.Down.Data(), math.Sqrt(6/float64(v.Down.Value.Cols)))
	rng.New(c.VeRA.Seed, v.Up.Name).FillUniform(v.Up.Data(), math.Sqrt(6/float64(c.Rank)))
	for _, l := range list {
		d := l.Factors.(Vector).D.Data()
		for i := range d {
			d[i] = float32(c.VeRA.DInitial)
		}
	}
}

// maxFactor bounds the elements of one matrix, whose size comes from files.
const maxFactor = 1 << 31

func bounded(rank, in, out int) error {
	if rank < 1 || rank > maxFactor/max(in, out, 1) {
		return fmt.Errorf("%w: rank %d of a matrix with %d inputs and %d outputs", adapter.ErrConfig, rank, in, out)
	}
	return nil
}
