package adapter

import (
	"github.com/modelcompress/compress/kernels"
)

// Sparse is a change of single elements of a matrix: those of SHiRA (Bhardwaj et al., arXiv 2406.13175). As factors, it
// is the matrix itself and the identity on its narrower side, which is exact, and as large as the matrix. What meets
// many matrices adds the elements instead.
type Sparse struct {
	Rows, Cols []int32 // output and input of each element, in the order of the rows
	Value      *Param  // [1, elements]
	In, Out    int
}

// Rank is that of the factors.
func (s Sparse) Rank() int { return min(s.In, s.Out) }

// Assemble implements [Factors].
func (s Sparse) Assemble(a, bt kernels.Mat) {
	zero(a)
	zero(bt)
	narrow := a // the identity
	if s.Out < s.In {
		narrow = bt
	}
	for i := range s.Rank() {
		narrow.RowF32(i)[i] = 1
	}

	for i, v := range s.Value.Data() {
		o, in := s.Rows[i], s.Cols[i]
		if s.Out < s.In {
			a.RowF32(int(o))[in] = v
		} else {
			bt.RowF32(int(in))[o] = v
		}
	}
}

// Scatter implements [Factors].
func (s Sparse) Scatter(da, dbt kernels.Mat) {
	g := s.Value.Grad.RowF32(0)
	for i := range g {
		o, in := s.Rows[i], s.Cols[i]
		if s.Out < s.In {
			g[i] += da.RowF32(int(o))[in]
		} else {
			g[i] += dbt.RowF32(int(in))[o]
		}
	}
}

// Parameters implements [Factors].
func (s Sparse) Parameters() []*Param { return []*Param{s.Value} }

// AddTo adds the elements times by to x, which is [out, in], or turned around [in, out].
func (s Sparse) AddTo(x kernels.Mat, by float32, turned bool) {
	for i, v := range s.Value.Data() {
		r, c := s.place(i, turned)
		x.RowF32(r)[c] += by * v
	}
}

// Learn adds to the gradient that of the matrix, which is [out, in], or turned around [in, out].
func (s Sparse) Learn(x kernels.Mat, by float32, turned bool) {
	g := s.Value.Grad.RowF32(0)
	for i := range g {
		r, c := s.place(i, turned)
		g[i] += by * x.RowF32(r)[c]
	}
}

func (s Sparse) place(i int, turned bool) (row, col int) {
	if turned {
		return int(s.Cols[i]), int(s.Rows[i])
	}
	return int(s.Rows[i]), int(s.Cols[i])
}

func zero(m kernels.Mat) {
	for i := range m.Rows {
		clear(m.RowF32(i))
	}
}
