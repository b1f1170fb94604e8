package prune

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/prune/internal/gpuscore"
	"github.com/modelcompress/compress/prune/internal/score"
	"github.com/modelcompress/compress/prune/internal/terminals"
)

// prunerZero is the formula published with Pruner-Zero (arXiv:2406.02924).
const prunerZero = "abs(W*W) * mms(G)"

// PrunerZero ranks by |W·W| times the gradients scaled to 0…1 over the matrix, by default within every output
// neuron: the published tree.
func PrunerZero() Metric { return named("pruner-zero", prunerZero) }

// GBLM ranks by |W|·√s + |W|·G, by default within every output neuron (arXiv:2311.04902).
func GBLM() Metric { return named("gblm", "W * sqrt(X) + W * G") }

// named is a formula of this package's own under a name.
func named(name, formula string) Metric {
	e, err := gp.Parse(formula)
	if err != nil {
		panic("prune: a formula of the table does not parse")
	}

	m, err := Formula(e)
	if err != nil {
		panic("prune: a formula of the table is not a metric")
	}

	m.Name = name
	return m
}

// Formula makes a metric of an expression, compared by default within every output neuron. Its name is "expr:"
// and the formula. Terminals: W is |weight|; X is s_j, not its root; G the gradients; Xm and Xv the mean and
// the variance of an input over all tokens; H and Hi the diagonals of the Hessian (2/N)·Σ x xᵀ and of its
// damped inverse; and the norms of rows and columns of W. The error wraps gp.ErrNoWeight, gp.ErrShape or what
// else gp.Compile finds.
//
// While pruning, scores that are not finite or that are all the same are errors (ErrNonFinite, ErrConstant).
func Formula(e *gp.Expr) (Metric, error) {
	program, err := gp.Compile(e)
	if err == nil && !usesWeight(e) {
		err = gp.ErrNoWeight
	}
	if err != nil {
		return Metric{}, fmt.Errorf("metric %s%s: %w", FormulaPrefix, e, err)
	}

	m := Metric{Name: FormulaPrefix + e.String(), Needs: needsOf(e.Uses), Group: Row, program: program}
	m.Score = func(in Inputs) (kernels.Score, error) { return evaluate(program, in) }
	// The same program on the device, where the weights are already.
	m.there = func(in Inputs) (*gpuscore.Scores, error) {
		t, err := terminalsOf(in, program.Expr.Uses)
		if err != nil {
			return nil, err
		}
		return gpuscore.New(in.Device, program, t)
	}

	return m, nil
}

// needsOf is the statistics behind the terminals that a formula uses.
func needsOf(uses func(gp.Symbol) bool) (needs Stats) {
	for _, t := range []struct {
		s     gp.Symbol
		needs Stats
	}{
		{gp.X, SumSquares},
		{gp.H, SumSquares},
		{gp.Xm, Sums},
		// A variance needs the mean, and the mean square.
		{gp.Xv, Sums | SumSquares},
		{gp.Hi, Hessian},
		{gp.G, Gradients},
	} {
		if uses(t.s) {
			needs |= t.needs
		}
	}

	return needs
}

func usesWeight(e *gp.Expr) bool {
	for _, s := range []gp.Symbol{gp.W, gp.Wr1, gp.Wr2, gp.Wc1, gp.Wc2} {
		if e.Uses(s) {
			return true
		}
	}
	return false
}

// maxTree is the size of the largest file of a tree, which is far more than the largest tree takes.
const maxTree = 1 << 20

func treeFile(path string) (*gp.Expr, error) {
	text, err := safefile.ReadFile(path, maxTree)
	if errors.Is(err, safefile.ErrTooLarge) {
		err = gp.ErrTooLarge
	} else if err != nil {
		return nil, fmt.Errorf("metric: %w", err)
	}

	var e *gp.Expr
	if err == nil {
		e, err = gp.ParseJSON(text)
	}
	if err != nil {
		return nil, fmt.Errorf("metric %s: %w", path, err)
	}

	return e, nil
}

// terminalsOf gives a formula what it stands on.
func terminalsOf(in Inputs, uses func(gp.Symbol) bool) (gp.Inputs, error) {
	x := actstats.Inputs{
		SumSquares: in.SumSquares, Sums: in.Sums, Variances: in.Variances, Tokens: in.Tokens, Sequences: in.Sequences,
		Factor: in.Factor,
	}
	t, err := terminals.Of(x, uses)
	t.W, t.G = in.W, in.G
	return t, err
}

// operandsOf is the same with the weights in host memory.
func operandsOf(in Inputs, uses func(gp.Symbol) bool) (gp.Inputs, error) {
	t, err := terminalsOf(in, uses)
	if err == nil && !in.Device.Info().Host {
		kernels.Missed(in.Device, "Score")
		t.W, err = hostmat.F32(in.Device, in.W)
	}
	return t, err
}

// evaluate computes all scores of a formula.
func evaluate(p *gp.Program, in Inputs) (kernels.Score, error) {
	t, err := operandsOf(in, p.Expr.Uses)
	if err != nil {
		return kernels.Score{}, err
	}

	scores := kernels.MatOf(kernels.NewHost(kernels.F32, in.W.Len()), in.W.Rows, in.W.Cols)
	if err := p.Eval(scores, t, execution(in)); err != nil {
		return kernels.Score{}, asPruning(err)
	}

	return score.Place(in.Device, scores)
}

func execution(in Inputs) gp.Exec { return gp.Exec{Threads: in.Device.Info().Threads, Finite: true} }

// asPruning gives an error of the evaluation the kind that this package promises.
func asPruning(err error) error {
	if errors.Is(err, gp.ErrNonFinite) {
		return fmt.Errorf("%w: %w", ErrNonFinite, err)
	}
	return err
}
