package gp

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// Inputs is what the terminals stand for. Only those that the program uses have to be there. All memory is on the host
// and read only.
type Inputs struct {
	W    kernels.Mat // [out, in], F32, BF16 or F16; programs take the absolute value, so either sign is right
	G    kernels.Mat // [out, in], F32, BF16 or F16
	X    []float32   // squared norm of every input
	Mean []float32   // Xm
	Var  []float32   // Xv
	Hess []float32   // H
	Inv  []float32   // Hi
}

// vector returns the values of a terminal of shape Row.
func (in *Inputs) vector(s Symbol) []float32 {
	switch s {
	case X:
		return in.X
	case Xm:
		return in.Mean
	case Xv:
		return in.Var
	case H:
		return in.Hess
	}

	return in.Inv
}

// check finds the shape of the matrices and whether everything that the program loads is there.
func (p *Program) check(in *Inputs) (rows, cols int, err error) {
	var first Symbol
	for _, i := range p.Code {
		if i.Op != OpLoad || i.Shape != Matrix {
			continue
		}

		m := in.matrix(i.Term)
		switch {
		case m.IsZero():
			return 0, 0, fmt.Errorf("%s: %w: %s is missing", p.Expr, ErrInput, i.Term)
		case m.DType() != kernels.F32 && m.DType() != kernels.BF16 && m.DType() != kernels.F16:
			return 0, 0, fmt.Errorf("%s: %w: %s is %s, not F32, BF16 or F16", p.Expr, ErrInput, i.Term, m.DType())
		case m.Buf.Bytes() == nil && m.Len() > 0:
			return 0, 0, fmt.Errorf("%s: %w: %s is not in host memory", p.Expr, ErrInput, i.Term)
		case first == 0:
			first = i.Term
			rows = m.Rows
			cols = m.Cols
		case m.Rows != rows || m.Cols != cols:
			return 0, 0, fmt.Errorf("%s: %w: %s is [%d, %d] but %s is [%d, %d]", p.Expr, ErrInput, i.Term, m.Rows,
				m.Cols, first, rows, cols)
		}
	}

	for _, i := range p.Code {
		if i.Op != OpLoad || i.Shape == Matrix {
			continue
		}

		n := len(in.vector(i.Term))
		switch {
		// A matrix without columns has vectors without values, which are not missing.
		case n == 0 && (cols > 0 || first == 0):
			return 0, 0, fmt.Errorf("%s: %w: %s is missing", p.Expr, ErrInput, i.Term)
		// A formula of vectors alone scores one row, which stands for all.
		case first == 0:
			first = i.Term
			rows = 1
			cols = n
		case n != cols:
			return 0, 0, fmt.Errorf("%s: %w: %s has %d values for %d inputs", p.Expr, ErrInput, i.Term, n, cols)
		}
	}

	return rows, cols, nil
}

// matrix returns a terminal of shape Matrix.
func (in *Inputs) matrix(s Symbol) kernels.Mat {
	if s == W {
		return in.W
	}
	return in.G
}
