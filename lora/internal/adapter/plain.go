package adapter

import "github.com/modelcompress/compress/kernels"

// Plain are factors that are parameters themselves: those of LoRA.
type Plain struct {
	A *Param // [rank, in]
	B *Param // [out, rank]
}

// Assemble implements [Factors].
func (p Plain) Assemble(a, bt kernels.Mat) {
	for i := range a.Rows {
		copy(a.RowF32(i), p.A.Value.RowF32(i))
	}
	transpose(bt, p.B.Value)
}

// Scatter implements [Factors].
func (p Plain) Scatter(da, dbt kernels.Mat) {
	addTo(p.A.Grad, da)
	for i := range dbt.Rows {
		for j, v := range dbt.RowF32(i) {
			p.B.Grad.RowF32(j)[i] += v
		}
	}
}

// Parameters implements [Factors].
func (p Plain) Parameters() []*Param { return []*Param{p.A, p.B} }

// Twin are the factors of a head that follows its token table: those of the table, turned around, so that both
// stay the same matrix.
type Twin struct{ Plain }

// Assemble implements [Factors].
func (t Twin) Assemble(a, bt kernels.Mat) { t.Plain.Assemble(bt, a) }

// Scatter implements [Factors].
func (t Twin) Scatter(da, dbt kernels.Mat) { t.Plain.Scatter(dbt, da) }

// addTo adds x to dst.
func addTo(dst, x kernels.Mat) {
	for i := range x.Rows {
		to := dst.RowF32(i)
		for j, v := range x.RowF32(i) {
			to[j] += v
		}
	}
}
