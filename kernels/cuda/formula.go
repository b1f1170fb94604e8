//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/kernels"
)

// Names of package kernels that this package's operations take.
type (
	FormulaOp     = kernels.FormulaOp
	FormulaInstr  = kernels.FormulaInstr
	Formula       = kernels.Formula
	FormulaInputs = kernels.FormulaInputs
	StatKind      = kernels.StatKind
)

// The operations of formulas.
const (
	LoadMatrix        = kernels.LoadMatrix
	LoadCol           = kernels.LoadCol
	LoadRow           = kernels.LoadRow
	Affine            = kernels.Affine
	Square            = kernels.Square
	Negate            = kernels.Negate
	Absolute          = kernels.Absolute
	Logarithm         = kernels.Logarithm
	Exponential       = kernels.Exponential
	Root              = kernels.Root
	HyperbolicTangent = kernels.HyperbolicTangent
	Plus              = kernels.Plus
	Minus             = kernels.Minus
	Times             = kernels.Times
	Quotient          = kernels.Quotient
	Least             = kernels.Least
	Most              = kernels.Most
)

// The statistics of formulas.
const (
	StatRange   = kernels.StatRange
	StatMoments = kernels.StatMoments
	StatNorm    = kernels.StatNorm
	StatTotal   = kernels.StatTotal
)

// ErrFormula is the error of a formula that cannot be compiled, or inputs that do not fit it.
var ErrFormula = kernels.ErrFormula

var _ kernels.Scorer = (*Device)(nil)

// Most of what a formula may have.
const (
	maxFormula  = kernels.MaxFormula
	maxMatrices = kernels.MaxFormulaMatrices
	maxVectors  = kernels.MaxFormulaVectors
)

// formulaArgs mirrors FormulaArgs of formula.h.
type formulaArgs struct {
	d, mask             mat
	m                   [maxMatrices]mat
	vectors             [maxVectors]uintptr
	scalars, code, part uintptr
	drop                int
	length, kind, slot  int32
	type0, type1, parts int32
}

// Where the parts of formulaArgs lie, in bytes.
const (
	matricesAt = 48
	vectorsAt  = matricesAt + 24*maxMatrices
	scalarsAt  = vectorsAt + 8*maxVectors
)

// checkFormula finds faults of a formula with its inputs.
func checkFormula(f Formula, in FormulaInputs) error {
	if len(f) == 0 || len(f) > maxFormula || len(in.Matrices) > maxMatrices || len(in.Vectors) > maxVectors {
		return fmt.Errorf("%w: %d instructions (at most %d), %d matrices (%d), %d vectors (%d)",
			ErrFormula, len(f), maxFormula, len(in.Matrices), maxMatrices, len(in.Vectors), maxVectors)
	}

	for n, i := range f {
		inputs := 0
		switch {
		case i.Op == LoadMatrix:
			inputs = len(in.Matrices)
		case i.Op == LoadCol || i.Op == LoadRow:
			inputs = len(in.Vectors)
		case i.Op == Affine:
			inputs = in.Stats.Cols / 2
		case i.Op < LoadMatrix || i.Op > Most:
			return fmt.Errorf("%w: instruction %d has the unknown operation %d", ErrFormula, n, i.Op)
		}

		if i.Op <= Affine && (i.Arg < 0 || i.Arg >= inputs) {
			return fmt.Errorf("%w: instruction %d reads input %d of %d", ErrFormula, n, i.Arg, inputs)
		}

		// Operands come before their uses: a formula has no loops, and one register each is enough.
		if i.Op >= Affine && (i.A < 0 || i.A >= n) || i.Op >= Plus && (i.B < 0 || i.B >= n) {
			return fmt.Errorf("%w: instruction %d has an operand that does not come before it", ErrFormula, n)
		}
	}

	return nil
}

// formulaWords is the formula as the host build reads it.
func formulaWords(f Formula) []uint32 {
	var list []uint32
	for _, i := range f {
		list = append(list, uint32(i.Op)|uint32(i.A&255)<<8|uint32(i.B&255)<<16|uint32(i.Arg&255)<<24)
	}
	return list
}

// formulaPTX writes the formula for the element (row, col) into the register result; kernel is the entry that
// it becomes a part of.
func formulaPTX(f Formula, kernel, result, row, col string, types []kernels.DType) string {
	var b strings.Builder
	param := func(at int) string { return fmt.Sprintf("[%s_param_0+%d]", kernel, at) }
	line := func(format string, args ...any) { fmt.Fprintf(&b, "\t"+format+";\n", args...) }

	b.WriteString("\t{\n")
	line(".reg .f32 %%v<%d>, %%t<4>", len(f))
	line(".reg .b64 %%a<4>")
	line(".reg .b16 %%h<2>")
	line(".reg .b32 %%w")
	line(".reg .pred %%p")

	for n, i := range f {
		switch i.Op {
		case LoadMatrix:
			loadElement(line, n, row, col, types[i.Arg], param(matricesAt+24*i.Arg), param(matricesAt+24*i.Arg+8))
		case LoadCol, LoadRow:
			index := col
			if i.Op == LoadRow {
				index = row
			}

			line("ld.param.u64 %%a0, %s", param(vectorsAt+8*i.Arg))
			line("cvta.to.global.u64 %%a0, %%a0")
			line("mul.wide.s32 %%a1, %s, 4", index)
			line("add.s64 %%a0, %%a0, %%a1")
			line("ld.global.f32 %%v%d, [%%a0]", n)
		case Affine:
			line("ld.param.u64 %%a0, %s", param(scalarsAt))
			line("cvta.to.global.u64 %%a0, %%a0")
			line("ld.global.f32 %%t0, [%%a0+%d]", 8*i.Arg)
			line("ld.global.f32 %%t1, [%%a0+%d]", 8*i.Arg+4)
			// Rounded to nearest, as the host does it; PTX would otherwise be free to approximate the quotient.
			line("sub.rn.f32 %%t0, %%v%d, %%t0", i.A)
			line("div.rn.f32 %%v%d, %%t0, %%t1", n)
		default:
			for _, s := range formulaCode[i.Op] {
				b.WriteString(
					"\t" + strings.NewReplacer("$d", "%v"+strconv.Itoa(n), "$a", "%v"+strconv.Itoa(i.A), "$b",
						"%v"+strconv.Itoa(i.B)).Replace(s) + ";\n")
			}
		}
	}

	line("mov.f32 %s, %%v%d", result, len(f)-1)
	b.WriteString("\t}\n")
	return b.String()
}

// loadElement writes the load of |element| of a matrix; p and stride are where its address and stride are.
func loadElement(line func(string, ...any), n int, row, col string, t kernels.DType, p, stride string) {
	line("ld.param.u64 %%a0, %s", p)
	line("ld.param.u64 %%a1, %s", stride)
	line("cvta.to.global.u64 %%a0, %%a0")
	// 64 bits: a matrix can have more elements than 32 bits count.
	line("cvt.s64.s32 %%a2, %s", row)
	line("cvt.s64.s32 %%a3, %s", col)
	line("mad.lo.s64 %%a2, %%a2, %%a1, %%a3")
	line("shl.b64 %%a2, %%a2, %d", t.Size()/2)
	line("add.s64 %%a0, %%a0, %%a2")

	switch t {
	case kernels.BF16:
		// A BF16 is the upper half of a float32.
		line("ld.global.u16 %%h0, [%%a0]")
		line("mov.b16 %%h1, 0")
		line("mov.b32 %%w, {%%h1, %%h0}")
		line("mov.b32 %%v%d, %%w", n)
	case kernels.F16:
		line("ld.global.u16 %%h0, [%%a0]")
		line("cvt.f32.f16 %%v%d, %%h0", n)
	default:
		line("ld.global.f32 %%v%d, [%%a0]", n)
	}

	line("abs.f32 %%v%d, %%v%d", n, n)
}

// number is a float32 constant as PTX writes it.
func number(v float64) string { return fmt.Sprintf("0f%08X", math.Float32bits(float32(v))) }

// formulaCode is the PTX of the operations: $d the result, $a and $b the operands. The logarithm and the
// exponential are the processor's, good to about 2^-22; tanh is x - x³/3 near 0, where the quotient of
// exponentials loses digits.
var formulaCode = map[FormulaOp][]string{
	Square:   {"mul.rn.f32 $d, $a, $a"},
	Negate:   {"neg.f32 $d, $a"},
	Absolute: {"abs.f32 $d, $a"},
	Logarithm: {
		"abs.f32 %t0, $a", "add.rn.f32 %t0, %t0, " + number(0.001), "lg2.approx.f32 %t0, %t0",
		"mul.rn.f32 $d, %t0, " + number(math.Ln2),
	},
	Exponential: {
		"min.NaN.f32 %t0, $a, " + number(100), "mul.rn.f32 %t0, %t0, " + number(math.Log2E),
		"ex2.approx.f32 $d, %t0",
	},
	Root: {"abs.f32 %t0, $a", "sqrt.rn.f32 $d, %t0"},
	HyperbolicTangent: {
		"abs.f32 %t0, $a", "mul.rn.f32 %t1, %t0, " + number(-2*math.Log2E), "ex2.approx.f32 %t1, %t1",
		"sub.rn.f32 %t2, " + number(1) + ", %t1", "add.rn.f32 %t1, %t1, " + number(1), "div.rn.f32 %t1, %t2, %t1",
		"copysign.f32 %t1, $a, %t1",
		"mul.rn.f32 %t2, $a, $a", "mul.rn.f32 %t2, %t2, $a", "fma.rn.f32 %t2, %t2, " + number(-1.0/3) + ", $a",
		"setp.lt.f32 %p, %t0, " + number(0.03), "selp.f32 $d, %t2, %t1, %p",
	},
	Plus:     {"add.rn.f32 $d, $a, $b"},
	Minus:    {"sub.rn.f32 $d, $a, $b"},
	Times:    {"mul.rn.f32 $d, $a, $b"},
	Quotient: {"abs.f32 %t0, $b", "add.rn.f32 %t0, %t0, " + number(1e-8), "div.rn.f32 $d, $a, %t0"},
	Least:    {"min.NaN.f32 $d, $a, $b"},
	Most:     {"max.NaN.f32 $d, $a, $b"},
}

// formulaModule is the PTX of one kernel of formula.cu with a formula in the place of its marks.
func formulaModule(kernel string, f Formula, types []kernels.DType) (string, error) {
	text, err := kernelModule("formula", kernel)
	if err != nil {
		return "", err
	}

	var out strings.Builder
	for l := range strings.Lines(text) {
		mark := strings.Fields(l)
		if len(mark) == 5 && mark[0] == "//" && mark[1] == "SCORE" {
			l = formulaPTX(f, kernel, mark[2], mark[3], mark[4], types)
		}
		out.WriteString(l)
	}

	return out.String(), nil
}

// kernelModule is the PTX of one kernel of a module.
func kernelModule(unit, kernel string) (string, error) {
	text, err := moduleText(unit)
	if err != nil {
		return "", err
	}

	head, _, _ := strings.Cut(string(text), ".visible .entry")
	head, _, _ = strings.Cut(head, "\n\t// .globl") // what follows names the first kernel
	_, body, found := strings.Cut(string(text), ".visible .entry "+kernel+"(")
	if !found {
		return "", fmt.Errorf("%w: no kernel %s", ErrFormula, kernel)
	}

	body, _, _ = strings.Cut(body, "\n}\n")
	return head + "\n" + sharedOf(string(text)) + ".visible .entry " + kernel + "(" + body + "\n}\n", nil
}

// sharedOf lists the module's variables, which stand before kernels.
func sharedOf(text string) string {
	var out strings.Builder
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, ".shared") || strings.HasPrefix(l, ".global") || strings.HasPrefix(l, ".const") {
			out.WriteString(l)
		}
	}
	return out.String()
}
