package kernels

import "errors"

// FormulaOp is an operation of a [Formula], in float32.
type FormulaOp uint8

// The operations, with the guards of package gp.
const (
	LoadMatrix        FormulaOp = iota + 1 // |element| of matrix Arg
	LoadCol                                // element of vector Arg, one for every column
	LoadRow                                // element of vector Arg, one for every row
	Affine                                 // (A - sub) / div with the two numbers of statistic Arg
	Square                                 // A²
	Negate                                 // -A
	Absolute                               // |A|
	Logarithm                              // ln(|A| + 0.001)
	Exponential                            // e^min(A, 100)
	Root                                   // √|A|
	HyperbolicTangent                      // tanh A
	Plus                                   // A + B
	Minus                                  // A - B
	Times                                  // A·B
	Quotient                               // A / (|B| + 1e-8)
	Least                                  // min(A, B), NaN if one is
	Most                                   // max(A, B), NaN if one is
)

// Exact reports whether every device gives the same bits for the operation: all but the transcendental functions, which
// devices approximate in their own ways.
func (o FormulaOp) Exact() bool {
	return o != Logarithm && o != Exponential && o != HyperbolicTangent
}

// FormulaInstr computes one value; A and B are numbers of earlier instructions.
type FormulaInstr struct {
	Op        FormulaOp
	A, B, Arg int
}

// Formula is a score as straight-line code over the elements of matrices of one shape. The last instruction is
// the result.
type Formula []FormulaInstr

// Limits of formulas.
const (
	MaxFormula         = 250 // instructions
	MaxFormulaMatrices = 2
	MaxFormulaVectors  = 12
)

// StatKind is a statistic of a formula's values over a whole matrix, as the two numbers that [Affine] takes.
type StatKind int32

// The statistics: sub and div are
const (
	StatRange   StatKind = iota + 1 // min, max - min; NaN if there is one
	StatMoments                     // mean, standard deviation over n-1
	StatNorm                        // 0, √Σx²
	StatTotal                       // 0, Σ|x| + 1e-8
)

// FormulaInputs is what a formula reads, on the device.
type FormulaInputs struct {
	Matrices []Mat // at most [MaxFormulaMatrices], F32, BF16 or F16, of one shape
	Vectors  []Mat // at most [MaxFormulaVectors], F32 [1, n]
	Stats    Mat   // F32 [1, 2·k]: statistic i has its two numbers at 2i and 2i+1
}

// ErrFormula is the error of a formula that cannot be compiled, or inputs that do not fit it.
var ErrFormula = errors.New("bad formula")

// Scorer is a device that computes formulas: it reads them, and makes kernels of those that come often, of
// which it keeps a bounded number, with the same bits. Errors that the methods return wrap [ErrFormula] or say
// why nothing was computed; failures of the device are reported by Sync.
type Scorer interface {
	// Score writes the values of a formula to dst, F32.
	Score(dst Mat, f Formula, in FormulaInputs) error
	// SelectFormula writes the keep mask (U8) that drops the drop lowest values of a formula in every row; of
	// equal ones the lower column goes first.
	SelectFormula(mask Mat, f Formula, in FormulaInputs, drop int) error
	// Gather writes statistic kind of a formula's values over a matrix of a shape to number slot of in.Stats.
	// The values are summed in float64, in an order that the shape gives.
	Gather(rows, cols int, f Formula, in FormulaInputs, kind StatKind, slot int) error
	// GatherRows writes Σ|x| (StatTotal, without the 1e-8) or √Σx² (StatNorm) of every row of a formula's
	// values to dst, F32 [1, rows].
	GatherRows(dst Mat, cols int, f Formula, in FormulaInputs, kind StatKind) error
	// GatherCols writes Σ|x| or √Σx² of every column to dst, F32 [1, cols].
	GatherCols(dst Mat, rows int, f Formula, in FormulaInputs, kind StatKind) error
}
