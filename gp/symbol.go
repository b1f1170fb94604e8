package gp

import (
	"fmt"
	"strings"
)

// Symbol is a terminal or an operator.
type Symbol uint8

// The terminals. Shapes are those of [Shape].
const (
	W   Symbol = iota + 1 // |weight|, [out, in]
	G                     // gradient magnitude, [out, in]
	X                     // squared norm of every input over the calibration data, [1, in]
	Wr1                   // sum of |W| over every row, [out, 1]
	Wr2                   // Euclidean norm of every row of W, [out, 1]
	Wc1                   // sum of |W| over every column, [1, in]
	Wc2                   // Euclidean norm of every column of W, [1, in]
	Xm                    // mean of every input, [1, in]; may be negative
	Xv                    // variance of every input, [1, in]
	H                     // diagonal of the Hessian, [1, in]
	Hi                    // diagonal of the inverse Hessian, [1, in]
)

// The terminals of formulas of whole parts: one value for each of them, of shape [Group]. The first four are of what
// leaves a neuron or a head, the others of the stream before and behind a layer.
const (
	A  Symbol = iota + 16 // squared norm over the calibration data, as X is; of a head, the sum over its channels
	Am                    // sum over the channels of the squared mean
	Av                    // sum over the channels of the variance
	Ma                    // √Σ (mean of |x| over a sequence's tokens)², over sequences and channels: Minitron's score
	Bi                    // 1 - mean cosine of the stream before and behind: block influence
	Sx                    // mean squared norm of the stream before
	Sy                    // mean squared norm of the stream behind
	Sd                    // mean squared norm of what the layer adds
)

// The operators; see the package documentation for what they compute.
const (
	Sqr Symbol = iota + 32
	Neg
	Abs
	Log
	Exp
	Sqrt
	Tanh
	Pow
	Skp
	Mms
	Zsn
	Add
	Sub
	Mul
	Div
	Rnorm
	Cnorm
	Pdiv
	Min
	Max
)

// The reductions. Those of the first row turn one value for every weight into one for every row or column of the
// matrix; the others into one for every part: over all its weights (g), those that read what enters it (i; gate, up, q,
// k and v) or those that what leaves it flows through (o; down and o).
const (
	Rsum  Symbol = iota + 64 // Σ|x| over every row
	Rl2                      // √Σx² over every row
	Csum                     // Σ|x| over every column
	Cl2                      // √Σx² over every column
	Gsum                     // Σx
	Gmean                    // mean of x
	Gmax                     // largest x
	Gl2                      // √Σx²
	Isum
	Imean
	Imax
	Il2
	Osum
	Omean
	Omax
	Ol2
)

// Shape is the form of a value for a weight matrix [out, in].
type Shape uint8

// The shapes. Row and Col operands are repeated to the full matrix where they meet another shape.
const (
	Row    Shape = 1             // [1, in]: one value for every input
	Col    Shape = 2             // [out, 1]: one value for every output
	Matrix Shape = Row | Col | 4 // [out, in]

	Group  Shape = 8  // [parts]: one value for every neuron, head or layer
	NoMeet Shape = 16 // parts and weights that meet without a reduction: nothing
)

// String writes the shape with its dimensions.
func (s Shape) String() string {
	switch s {
	case Row:
		return "[1, in]"
	case Col:
		return "[out, 1]"
	case Group:
		return "[parts]"
	case NoMeet:
		return "both [parts] and [out, in]"
	}
	return "[out, in]"
}

// join is the shape of a combination with broadcasting.
func (s Shape) join(t Shape) Shape {
	switch {
	case s == t:
		return s
	case s&(Group|NoMeet) != 0 || t&(Group|NoMeet) != 0:
		return NoMeet
	}
	return Matrix
}

// sign says when an operator's value is provably not negative.
type sign uint8

const (
	anySign sign = iota
	always       // whatever the operands
	ifAll        // if all operands are
	ifFirst      // if the first operand is
	ifAny        // if one operand is
)

// scale says what multiplying the first operand by a positive constant does to the value.
type scale uint8

const (
	noScale   scale = iota
	homogenic       // multiplies the value by a positive constant
	affine          // nothing, and adding a constant to the operand neither
)

// growth says where a unary operator never decreases, so that it keeps the order of scores.
type growth uint8

const (
	unordered growth = iota
	rising           // everywhere
	evenly           // in |x|
)

// facts is what the parser, the simplifier and the compiler know about a symbol.
type facts struct {
	sym      Symbol
	name     string
	arity    int
	extended bool
	parts    bool  // drawn for formulas of whole parts alone
	reduces  Shape // of reductions: what they make of a matrix
	shape    Shape // of terminals
	sign     sign
	scale    scale
	growth   growth
	even     bool // f(-x) = f(x)
	commutes bool
}

// symbols is the closed table. Terminals come first.
var symbols = []facts{
	{sym: W, name: "W", shape: Matrix, sign: always},
	{sym: G, name: "G", shape: Matrix, sign: always},
	{sym: X, name: "X", shape: Row, sign: always},
	{sym: Wr1, name: "Wr1", shape: Col, sign: always, extended: true},
	{sym: Wr2, name: "Wr2", shape: Col, sign: always, extended: true},
	{sym: Wc1, name: "Wc1", shape: Row, sign: always, extended: true},
	{sym: Wc2, name: "Wc2", shape: Row, sign: always, extended: true},
	{sym: Xm, name: "Xm", shape: Row, extended: true},
	{sym: Xv, name: "Xv", shape: Row, sign: always, extended: true},
	{sym: H, name: "H", shape: Row, sign: always, extended: true},
	{sym: Hi, name: "Hi", shape: Row, sign: always, extended: true},

	{sym: Sqr, name: "sqr", arity: 1, sign: always, scale: homogenic, growth: evenly, even: true},
	{sym: Neg, name: "neg", arity: 1, scale: homogenic},
	{sym: Abs, name: "abs", arity: 1, sign: always, scale: homogenic, growth: evenly, even: true},
	{sym: Log, name: "log", arity: 1, growth: evenly, even: true},
	{sym: Exp, name: "exp", arity: 1, sign: always, growth: rising},
	{sym: Sqrt, name: "sqrt", arity: 1, sign: always, scale: homogenic, growth: evenly, even: true},
	{sym: Tanh, name: "tanh", arity: 1, sign: ifAll, growth: rising},
	{sym: Pow, name: "pow", arity: 1, sign: always, scale: homogenic, growth: evenly, even: true},
	{sym: Skp, name: "skp", arity: 1, sign: ifAll, scale: homogenic, growth: rising},
	{sym: Mms, name: "mms", arity: 1, sign: always, scale: affine, growth: rising},
	{sym: Zsn, name: "zsn", arity: 1, scale: affine, growth: rising},
	{sym: Add, name: "add", arity: 2, sign: ifAll, commutes: true},
	{sym: Sub, name: "sub", arity: 2},
	{sym: Mul, name: "mul", arity: 2, sign: ifAll, scale: homogenic, commutes: true},
	{sym: Div, name: "div", arity: 2, sign: ifFirst, scale: homogenic},
	{sym: Rnorm, name: "rnorm", arity: 1, sign: ifAll, extended: true},
	{sym: Cnorm, name: "cnorm", arity: 1, sign: ifAll, extended: true},
	{sym: Pdiv, name: "pdiv", arity: 2, sign: ifFirst, extended: true},
	{sym: Min, name: "min", arity: 2, sign: ifAll, commutes: true, extended: true},
	{sym: Max, name: "max", arity: 2, sign: ifAny, commutes: true, extended: true},

	{sym: A, name: "A", shape: Group, sign: always, extended: true, parts: true},
	{sym: Am, name: "Am", shape: Group, sign: always, extended: true, parts: true},
	{sym: Av, name: "Av", shape: Group, sign: always, extended: true, parts: true},
	{sym: Ma, name: "Ma", shape: Group, sign: always, extended: true, parts: true},
	{sym: Bi, name: "Bi", shape: Group, sign: always, extended: true, parts: true},
	{sym: Sx, name: "Sx", shape: Group, sign: always, extended: true, parts: true},
	{sym: Sy, name: "Sy", shape: Group, sign: always, extended: true, parts: true},
	{sym: Sd, name: "Sd", shape: Group, sign: always, extended: true, parts: true},

	{sym: Rsum, name: "rsum", arity: 1, sign: always, reduces: Col, extended: true, parts: true, even: true},
	{sym: Rl2, name: "rl2", arity: 1, sign: always, reduces: Col, extended: true, parts: true, even: true},
	{sym: Csum, name: "csum", arity: 1, sign: always, reduces: Row, extended: true, parts: true, even: true},
	{sym: Cl2, name: "cl2", arity: 1, sign: always, reduces: Row, extended: true, parts: true, even: true},
	{sym: Gsum, name: "gsum", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Gmean, name: "gmean", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Gmax, name: "gmax", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Gl2, name: "gl2", arity: 1, sign: always, reduces: Group, extended: true, parts: true, even: true},
	{sym: Isum, name: "isum", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Imean, name: "imean", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Imax, name: "imax", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Il2, name: "il2", arity: 1, sign: always, reduces: Group, extended: true, parts: true, even: true},
	{sym: Osum, name: "osum", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Omean, name: "omean", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Omax, name: "omax", arity: 1, sign: ifAll, reduces: Group, extended: true, parts: true},
	{sym: Ol2, name: "ol2", arity: 1, sign: always, reduces: Group, extended: true, parts: true, even: true},
}

// index finds the row of a symbol in the table.
var index = func() (at [256]uint8) {
	for i, f := range symbols {
		at[f.sym] = uint8(i + 1)
	}
	return at
}()

func (s Symbol) facts() facts {
	if i := index[s]; i > 0 {
		return symbols[i-1]
	}
	return facts{sym: s, name: fmt.Sprintf("symbol(%d)", s)}
}

// Valid reports whether the symbol is in the table.
func (s Symbol) Valid() bool { return index[s] > 0 }

// String is the name that formulas and JSON use.
func (s Symbol) String() string { return s.facts().name }

// Arity is the number of operands: 0 for terminals, 1 or 2.
func (s Symbol) Arity() int { return s.facts().arity }

// Extended reports whether the symbol is an addition to the published search space.
func (s Symbol) Extended() bool { return s.facts().extended }

// TerminalShape is the shape of a terminal.
func (s Symbol) TerminalShape() Shape { return s.facts().shape }

// Symbols lists the terminals and operators of formulas that score weights.
func Symbols() []Symbol { return symbolsWhere(func(f facts) bool { return !f.parts }) }

// Reductions lists what formulas of whole parts have besides [Symbols], but for the terminals of parts.
func Reductions() []Symbol { return symbolsWhere(func(f facts) bool { return f.reduces != 0 }) }

func symbolsWhere(is func(f facts) bool) (list []Symbol) {
	for _, f := range symbols {
		if is(f) {
			list = append(list, f.sym)
		}
	}
	return list
}

// PaperSymbols lists the 3 terminals and 15 operators of the published search space.
func PaperSymbols() []Symbol { return symbolsWhere(func(f facts) bool { return !f.extended }) }

// SymbolByName finds a terminal or operator. The error wraps [ErrUnknown] and lists the known names.
func SymbolByName(name string) (Symbol, error) {
	for _, f := range symbols {
		if f.name == name {
			return f.sym, nil
		}
	}

	var known []string
	for _, f := range symbols {
		known = append(known, f.name)
	}

	return 0, fmt.Errorf("%.40q: %w; known: %s", name, ErrUnknown, strings.Join(known, ", "))
}
