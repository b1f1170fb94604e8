package gp

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// Formulas of whole parts. What goes out of a model as a whole (a neuron, a head, a layer) owns rows or columns of some
// matrices. A formula scores it in two steps: below a reduction it computes one value for every weight, matrix by
// matrix, as formulas of weights do; the reduction makes one number for every part of them, and above it operators work
// on the vector of these numbers, of all parts that are compared: the neurons of one MLP, the heads of one layer, or
// the layers. So mms, zsn and / above a reduction are relative to those parts.
//
// The vectors are short, and sums over a matrix long: everything above the weights is float64, one loop after another,
// which is the same for any number of threads.

// PartsProgram is a formula of whole parts, ready to run. It is not changed after it is made.
type PartsProgram struct {
	Expr       *Expr
	reductions []reduction
}

// reduction is one number for every part out of one value for every weight.
type reduction struct {
	expr *Expr
	of   *Program
}

// CompileParts translates a formula of whole parts. It returns [ErrParts] for an expression that is none, and what
// [Compile] returns for what is below a reduction.
func CompileParts(e *Expr) (*PartsProgram, error) {
	if err := e.valid(); err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	if shape := e.Shape(); shape != Group {
		return nil, fmt.Errorf("%s: %w: its shape is %s", e, ErrParts, shape)
	}

	p := &PartsProgram{Expr: e}
	var err error
	e.walk(func(n *Expr) {
		if n.Sym.facts().reduces != Group || err != nil || p.find(n) >= 0 {
			return
		}
		r := reduction{expr: n}
		r.of, err = Compile(n.Left)
		p.reductions = append(p.reductions, r)
	})
	if err != nil {
		return nil, err
	}

	return p, nil
}

// OfParts reports whether an expression is meant for whole parts: it reduces to them, or uses a terminal of theirs.
func (e *Expr) OfParts() (found bool) {
	e.walk(func(n *Expr) {
		f := n.Sym.facts()
		found = found || f.shape == Group || f.reduces == Group
	})
	return found
}

// find is the number of a reduction; -1: it is none of the program's.
func (p *PartsProgram) find(e *Expr) int {
	return slices.IndexFunc(p.reductions, func(r reduction) bool { return r.expr.Equal(e) })
}

// Member is a matrix whose rows or columns belong to parts.
type Member struct {
	Inputs
	Owner   []int // of every row, or of every column: the part that it belongs to; -1: none
	Columns bool  // Owner is of columns
	Out     bool  // what leaves the parts flows through it; otherwise it reads what enters them
	Blind   bool  // no statistics: its weights are scored by |W|
}

// Tally reduces matrices to one number for every part.
type Tally struct {
	p       *PartsProgram
	parts   int
	threads int
	values  [][]float64 // by reduction
	counts  [][]float64 // weights, for means
}

// Tally begins for so many parts. threads is as in [Exec].
func (p *PartsProgram) Tally(parts, threads int) *Tally {
	t := &Tally{p: p, parts: parts, threads: threads}
	for range p.reductions {
		t.values = append(t.values, make([]float64, parts))
		t.counts = append(t.counts, make([]float64, parts))
	}
	return t
}

// Add takes in a matrix; the inputs that the formula reads have to be there. Errors are [ErrInput] and [ErrNonFinite].
func (t *Tally) Add(m Member) error {
	if want := m.lines(); len(m.Owner) != want {
		return fmt.Errorf("%s: %w: %d owners for %d rows or columns", t.p.Expr, ErrInput, len(m.Owner), want)
	}

	for n, r := range t.p.reductions {
		reads, gives := r.expr.Sym.covers()
		if m.Out && !gives || !m.Out && !reads {
			continue
		}

		lines, err := t.lines(r, m)
		if err != nil {
			return err
		}
		each := float64(m.W.Len() / max(1, len(lines)))
		for i, part := range m.Owner {
			if part < 0 {
				continue
			}
			first := t.counts[n][part] == 0
			t.counts[n][part] += each
			if op := r.expr.Sym.folds(); op == foldMax && !first {
				t.values[n][part] = max(t.values[n][part], lines[i])
			} else {
				t.values[n][part] += lines[i]
			}
		}
	}

	return nil
}

// lines is how many rows or columns have owners.
func (m *Member) lines() int {
	if m.Columns {
		return m.W.Cols
	}
	return m.W.Rows
}

// fold is how a reduction takes values together.
type fold uint8

const (
	foldSum fold = iota
	foldMean
	foldMax
	foldSquares
)

func (s Symbol) folds() fold {
	switch s {
	case Gmean, Imean, Omean:
		return foldMean
	case Gmax, Imax, Omax:
		return foldMax
	case Gl2, Il2, Ol2:
		return foldSquares
	}
	return foldSum
}

// covers says over which matrices a reduction goes.
func (s Symbol) covers() (reads, gives bool) {
	return s < Osum, s < Isum || s >= Osum
}

// lines reduces every row, or every column, of a matrix.
func (t *Tally) lines(r reduction, m Member) ([]float64, error) {
	program := r.of
	if m.Blind {
		program = magnitudes
	}
	s, err := program.Scorer(m.Inputs, Exec{Threads: t.threads, Finite: true})
	if err != nil {
		return nil, err
	}

	out := make([]float64, m.lines())
	op := r.expr.Sym.folds()
	err = s.Each(0, func(first int, scores kernels.Mat) error {
		for i := range scores.Rows {
			row := scores.RowF32(i)
			if m.Columns {
				foldInto(out, row, op, first+i == 0)
			} else {
				out[first+i] = folded(row, op)
			}
		}
		return nil
	})

	return out, err
}

// magnitudes is |W|.
var magnitudes = func() *Program {
	p, err := Compile(Leaf(W))
	if err != nil {
		panic("gp: W is no formula")
	}
	return p
}()

// folded takes the values of a row together.
func folded(row []float32, op fold) (sum float64) {
	switch op {
	case foldMax:
		sum = math.Inf(-1)
		for _, v := range row {
			sum = max(sum, float64(v))
		}
	case foldSquares:
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
	default:
		for _, v := range row {
			sum += float64(v)
		}
	}

	return sum
}

// foldInto takes the values of a row to those of its columns.
func foldInto(out []float64, row []float32, op fold, first bool) {
	switch {
	case op == foldMax && !first:
		for j, v := range row {
			out[j] = max(out[j], float64(v))
		}
	case op == foldSquares:
		for j, v := range row {
			out[j] += float64(v) * float64(v)
		}
	default:
		for j, v := range row {
			out[j] += float64(v)
		}
	}
}

// Scores gives the score of every part, once all matrices are in; terminal gives the values of a terminal of parts.
// Errors are [ErrInput] and [ErrNonFinite]. A reduction over no matrix is 0.
func (t *Tally) Scores(terminal func(s Symbol) []float64) ([]float64, error) {
	v, err := t.value(t.p.Expr, terminal)
	if err != nil {
		return nil, err
	}
	for i, x := range v {
		if x-x != 0 {
			return nil, fmt.Errorf("%s: %w: %g of part %d", t.p.Expr, ErrNonFinite, x, i)
		}
	}

	return v, nil
}

// value computes an expression on the vector of the parts. The result belongs to the caller.
func (t *Tally) value(e *Expr, terminal func(s Symbol) []float64) ([]float64, error) {
	switch {
	case e.Sym.Arity() == 0:
		v := terminal(e.Sym)
		if len(v) != t.parts {
			return nil, fmt.Errorf("%s: %w: %s has %d values for %d parts", t.p.Expr, ErrInput, e.Sym, len(v), t.parts)
		}
		return slices.Clone(v), nil
	case e.Sym.facts().reduces == Group:
		return t.reduced(t.p.find(e)), nil
	}

	a, err := t.value(e.Left, terminal)
	if err != nil {
		return nil, err
	}
	var b []float64
	if e.Right != nil {
		if b, err = t.value(e.Right, terminal); err != nil {
			return nil, err
		}
	}
	applyParts(e.Sym, a, b)

	return a, nil
}

// reduced finishes a reduction.
func (t *Tally) reduced(n int) []float64 {
	v := slices.Clone(t.values[n])
	for i := range v {
		switch t.p.reductions[n].expr.Sym.folds() {
		case foldMean:
			v[i] /= max(1, t.counts[n][i])
		case foldSquares:
			v[i] = math.Sqrt(v[i])
		}
	}
	return v
}

// applyParts computes an operator on vectors, into the first; the guards are those of the package documentation.
func applyParts(s Symbol, a, b []float64) {
	sub, div := overParts(s, a, b)
	for i, x := range a {
		switch s {
		case Sqr, Pow:
			a[i] = x * x
		case Neg:
			a[i] = -x
		case Abs:
			a[i] = math.Abs(x)
		case Log:
			a[i] = math.Log(math.Abs(x) + 0.001)
		case Exp:
			a[i] = math.Exp(min(x, 100))
		case Sqrt:
			a[i] = math.Sqrt(math.Abs(x))
		case Tanh:
			a[i] = math.Tanh(x)
		case Mms, Zsn, Div, Rnorm, Cnorm:
			a[i] = (x - sub) / div
		case Add:
			a[i] = x + b[i]
		case Sub:
			a[i] = x - b[i]
		case Mul:
			a[i] = x * b[i]
		case Pdiv:
			a[i] = x / (math.Abs(b[i]) + 1e-8)
		case Min:
			a[i] = min(x, b[i])
		case Max:
			a[i] = max(x, b[i])
		}
	}
}

// overParts gives what an operator subtracts and divides by, of those that look at all parts.
func overParts(s Symbol, a, b []float64) (sub, div float64) {
	n := float64(len(a))
	switch s {
	case Mms:
		sub = slices.Min(a)
		return sub, slices.Max(a) - sub
	case Zsn:
		for _, x := range a {
			sub += x / n
		}
		for _, x := range a {
			div += (x - sub) * (x - sub)
		}
		return sub, math.Sqrt(div / (n - 1))
	case Div:
		for _, x := range b {
			div += x * x
		}
		return 0, math.Sqrt(div)
	case Rnorm, Cnorm:
		for _, x := range a {
			div += math.Abs(x)
		}
		return 0, div + 1e-8
	}

	return 0, 1
}
