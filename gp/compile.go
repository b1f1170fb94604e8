package gp

import "fmt"

// Programs: an expression as straight-line code over one row at a time.
//
// Most operators are computed element by element, so a whole expression can be computed in registers of one stretch of
// a row, without a matrix for every node. What stands against it are statistics of a whole matrix (the minimum for mms,
// the mean for zsn, the norm for /): they need all elements of their operand before the first element of their result.
// So the compiler numbers passes over the matrix: a value that uses a statistic of a matrix value of pass k is of pass
// k+1, and each pass computes again, from the terminals, what its statistics need, which is cheaper than storing
// matrices. Values of one row or column (norms of the inputs) are computed once, between passes.
//
// A part that occurs twice is one value (seen), and so is a statistic.

// Op is an operation of a program.
type Op uint8

// The operations. Operands are values of the program.
const (
	OpLoad   Op = iota + 1 // terminal Term: an element of a matrix or a vector of the inputs
	OpStat                 // vector statistic Stat, as a Row or Col value
	OpAffine               // (A - sub) / div with the two numbers of statistic Stat
	OpSqr
	OpNeg
	OpAbs
	OpLog
	OpExp
	OpSqrt
	OpTanh
	OpAdd
	OpSub
	OpMul
	OpPdiv
	OpMin
	OpMax
)

var opNames = [...]string{
	OpLoad: "load", OpStat: "stat", OpAffine: "affine", OpSqr: "sqr", OpNeg: "neg", OpAbs: "abs", OpLog: "log",
	OpExp: "exp", OpSqrt: "sqrt", OpTanh: "tanh", OpAdd: "add", OpSub: "sub", OpMul: "mul", OpPdiv: "pdiv",
	OpMin: "min", OpMax: "max",
}

// String is the name of the operation.
func (o Op) String() string { return opNames[o] }

// Instr computes one value. A value of shape Matrix is computed element by element in a pass over the matrix; a
// Row or Col value once, before that pass.
type Instr struct {
	Op    Op
	Term  Symbol // of OpLoad: W (its absolute value), G, X, Xm, Xv, H or Hi
	A, B  int    // operands, numbers of earlier instructions; -1: none
	Stat  int    // of OpStat and OpAffine; -1: none
	Shape Shape
	Pass  int // passes over the matrix that must be complete before
}

// StatKind names a statistic.
type StatKind uint8

// The statistics. Scalars serve OpAffine, vectors OpStat.
const (
	StatRange   StatKind = iota + 1 // sub = min, div = max - min; NaN if there is one
	StatMoments                     // sub = mean, div = standard deviation over n-1
	StatNorm                        // sub = 0, div = √Σx² over the value repeated to shape Over
	StatTotal                       // sub = 0, div = Σ|x| + 1e-8
	StatRowAbs                      // vector: Σ|x| over every row
	StatRowNorm                     // vector: √Σx² over every row
	StatColAbs                      // vector: Σ|x| over every column
	StatColNorm                     // vector: √Σx² over every column
)

var statNames = [...]string{
	StatRange: "range", StatMoments: "moments", StatNorm: "norm", StatTotal: "total",
	StatRowAbs: "rowabs", StatRowNorm: "rownorm", StatColAbs: "colabs", StatColNorm: "colnorm",
}

// String is the name of the statistic.
func (k StatKind) String() string { return statNames[k] }

// Stat is a statistic of one value.
type Stat struct {
	Kind StatKind
	Of   int
	Over Shape // of StatNorm
	Pass int   // the pass over the matrix that gathers it; for a Row or Col value it is taken before that pass
}

// Program is an expression as straight-line code: instructions in an order in which operands come first, without
// repetitions, and the statistics that they use. It is not changed after it is made.
type Program struct {
	Expr   *Expr
	Code   []Instr
	Stats  []Stat
	Result int // the value that is the score
	Passes int // passes over the matrix, the one that gives the scores included
}

// Compile translates an expression. It returns [ErrShape] if the value is not a matrix, and [ErrSyntax],
// [ErrUnknown] or [ErrTooLarge] for a tree that could not have been parsed.
func Compile(e *Expr) (*Program, error) {
	p, err := compile(e)
	if err == nil && p.Code[p.Result].Shape != Matrix {
		return nil, fmt.Errorf("%s: %w: its shape is %s", e, ErrShape, p.Code[p.Result].Shape)
	}
	return p, err
}

// compile allows any shape of the result.
func compile(e *Expr) (*Program, error) {
	if err := e.valid(); err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	if shape := e.Shape(); shape&(Group|NoMeet) != 0 {
		return nil, fmt.Errorf("%s: %w: its shape is %s", e, ErrShape, shape)
	}
	c := compiler{p: &Program{Expr: e}, seen: map[Instr]int{}, stats: map[Stat]int{}}
	c.p.Result = c.value(e)
	c.p.Passes = c.p.Code[c.p.Result].Pass + 1
	return c.p, nil
}

// compiler numbers values, so that a part that occurs twice is computed once.
type compiler struct {
	p     *Program
	seen  map[Instr]int
	stats map[Stat]int
}

// emit adds an instruction and returns its number.
func (c *compiler) emit(i Instr) int {
	if n, ok := c.seen[i]; ok {
		return n
	}
	c.p.Code = append(c.p.Code, i)
	c.seen[i] = len(c.p.Code) - 1
	return len(c.p.Code) - 1
}

// stat adds a statistic and returns its number, and the first pass that can use it.
func (c *compiler) stat(kind StatKind, of int, over Shape) (n, pass int) {
	v := c.p.Code[of]
	s := Stat{Kind: kind, Of: of, Over: over, Pass: v.Pass}
	pass = v.Pass
	if v.Shape == Matrix {
		pass++
	}

	n, ok := c.stats[s]
	if !ok {
		n = len(c.p.Stats)
		c.p.Stats = append(c.p.Stats, s)
		c.stats[s] = n
	}

	return n, pass
}

var simpleOps = map[Symbol]Op{
	Sqr: OpSqr, Pow: OpSqr, Neg: OpNeg, Abs: OpAbs, Log: OpLog, Exp: OpExp, Sqrt: OpSqrt, Tanh: OpTanh,
	Add: OpAdd, Sub: OpSub, Mul: OpMul, Pdiv: OpPdiv, Min: OpMin, Max: OpMax,
}

func (c *compiler) value(e *Expr) int {
	if e.Sym.Arity() == 0 {
		return c.terminal(e.Sym)
	}

	// What is special about an operator is done away with here; the machine knows simple ones and affine.
	a := c.value(e.Left)
	switch e.Sym {
	case Skp:
		return a
	case Abs:
		if e.Left.NonNegative() {
			return a
		}
	case Mms:
		return c.affine(StatRange, a, a, c.p.Code[a].Shape)
	case Zsn:
		return c.affine(StatMoments, a, a, c.p.Code[a].Shape)
	case Div:
		b := c.value(e.Right)
		return c.affine(StatNorm, a, b, c.p.Code[a].Shape.join(c.p.Code[b].Shape))
	case Rnorm:
		return c.share(a, Col, StatRowAbs)
	case Cnorm:
		return c.share(a, Row, StatColAbs)
	case Rsum:
		return c.vector(StatRowAbs, a, Col)
	case Rl2:
		return c.vector(StatRowNorm, a, Col)
	case Csum:
		return c.vector(StatColAbs, a, Row)
	case Cl2:
		return c.vector(StatColNorm, a, Row)
	case Mul:
		if e.Left.Equal(e.Right) {
			return c.combine(OpSqr, a, -1)
		}
	}

	b := -1
	if e.Right != nil {
		b = c.value(e.Right)
	}

	return c.combine(simpleOps[e.Sym], a, b)
}

func (c *compiler) terminal(s Symbol) int {
	switch s {
	case Wr1:
		return c.vector(StatRowAbs, c.terminal(W), Col)
	case Wr2:
		return c.vector(StatRowNorm, c.terminal(W), Col)
	case Wc1:
		return c.vector(StatColAbs, c.terminal(W), Row)
	case Wc2:
		return c.vector(StatColNorm, c.terminal(W), Row)
	}

	return c.emit(Instr{Op: OpLoad, Term: s, A: -1, B: -1, Stat: -1, Shape: s.TerminalShape()})
}

func (c *compiler) combine(op Op, a, b int) int {
	i := Instr{Op: op, A: a, B: b, Stat: -1, Shape: c.p.Code[a].Shape, Pass: c.p.Code[a].Pass}
	if b >= 0 {
		i.Shape, i.Pass = i.Shape.join(c.p.Code[b].Shape), max(i.Pass, c.p.Code[b].Pass)
	}
	return c.emit(i)
}

// affine emits (a - sub) / div with a statistic of value b, repeated to shape; the result has that shape.
func (c *compiler) affine(kind StatKind, a, b int, shape Shape) int {
	over := Shape(0)
	if kind == StatNorm {
		over = shape
	}
	n, pass := c.stat(kind, b, over)
	return c.emit(Instr{Op: OpAffine, A: a, B: -1, Stat: n, Shape: shape, Pass: max(pass, c.p.Code[a].Pass)})
}

// vector emits a vector statistic of a matrix value.
func (c *compiler) vector(kind StatKind, of int, shape Shape) int {
	n, pass := c.stat(kind, of, 0)
	return c.emit(Instr{Op: OpStat, A: -1, B: -1, Stat: n, Shape: shape, Pass: pass})
}

// share divides value a by its sums along one direction: norms are of shape along.
func (c *compiler) share(a int, along Shape, kind StatKind) int {
	switch c.p.Code[a].Shape {
	case Matrix:
		return c.combine(OpPdiv, a, c.vector(kind, a, along))
	case along: // a single element along the direction
		return c.combine(OpPdiv, a, a)
	}
	return c.affine(StatTotal, a, a, c.p.Code[a].Shape)
}
