//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/kernels"
)

// evaluation is a formula about to run.
type evaluation struct {
	d    *Device
	f    Formula
	args formulaArgs
	t    []kernels.DType
}

// evaluate runs f with a formula prepared, after the transfers to what it reads and writes.
func (d *Device) evaluate(op string, f Formula, in FormulaInputs, out kernels.Mat, run func(e *evaluation)) error {
	if err := checkFormula(f, in); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}

	e := &evaluation{d: d, f: f}
	for _, m := range in.Matrices {
		if len(in.Matrices) > 0 && !same(in.Matrices[0], m) {
			return fmt.Errorf("%s: %w: matrices of different shapes", op, ErrFormula)
		}
		e.t = append(e.t, m.DType())
	}

	for i, t := range e.t {
		*[]*int32{&e.args.type0, &e.args.type1}[i] = int32(t)
	}

	d.operation(op, func() {
		for i, m := range in.Matrices {
			e.args.m[i] = d.of(m).mat()
		}
		for i, m := range in.Vectors {
			e.args.vectors[i] = d.of(m).p
		}
		e.args.scalars = d.of(in.Stats).p
		run(e)
	}, append(append([]kernels.Mat{out, in.Stats}, in.Matrices...), in.Vectors...)...)

	changed(out)
	return nil
}

// launch runs a kernel of formula.cu with the formula in it if that was compiled, otherwise its twin of
// interpret.cu. A formula with more values at a time than the interpreter has places for is compiled now.
func (e *evaluation) launch(kernel string, g grid) {
	d := e.d
	if d.err != nil || d.lost != nil {
		return
	}

	code, ok := interpretable(e.f)
	fn, err := d.programs.get(d, kernel, e.f, e.t, !ok)
	if err != nil {
		d.fail(err)
		return
	}

	e.args.length = int32(len(code) - 1)
	if fn != 0 {
		code, e.args.length = formulaWords(e.f), int32(len(e.f)) // for the host build
	}

	e.args.code = sent(d, code)

	if fn != 0 {
		start(d, fn, g, &e.args)
	} else {
		launch(d, "interpret."+strings.Replace(kernel, "formula", "interpret", 1), g, &e.args)
	}

	d.drop(e.args.code)
}

// Score writes the values of a formula to dst, F32. Failures of the device are reported by Sync.
func (d *Device) Score(dst kernels.Mat, f Formula, in FormulaInputs) error {
	return d.evaluate("Score", f, in, dst, func(e *evaluation) {
		if dst.Len() > 0 {
			e.args.d = d.of(dst).mat()
			e.launch("formula_score", plane(dst.Rows, dst.Cols, 512))
		}
	})
}

// widestSelect is the most columns of a matrix whose rows are selected without writing scores.
const widestSelect = 24 * 512

// SelectFormula writes the keep mask (U8) that drops the drop lowest values of a formula in every row; of equal
// ones the lower column goes first. Values and selection are one kernel; rows of more than 12,288 columns have
// their values written in between.
func (d *Device) SelectFormula(mask kernels.Mat, f Formula, in FormulaInputs, drop int) error {
	if mask.Len() == 0 {
		return nil
	}
	if mask.Cols > widestSelect {
		return d.selectScores(mask, f, in, drop)
	}

	return d.evaluate("SelectFormula", f, in, mask, func(e *evaluation) {
		e.args.mask, e.args.drop = d.of(mask).mat(), drop
		e.launch("formula_select", grid{x: min(mask.Rows, 1<<20), y: 1, threads: 512})
	})
}

// selectScores is SelectFormula with the values in memory.
func (d *Device) selectScores(mask kernels.Mat, f Formula, in FormulaInputs, drop int) error {
	b, err := d.Alloc(kernels.F32, mask.Len())
	if err != nil {
		return err
	}
	defer b.Free()

	scores := kernels.MatOf(b, mask.Rows, mask.Cols)
	if err := d.Score(scores, f, in); err != nil {
		return err
	}

	d.selectRows(mask, kernels.Score{X: scores, Raw: true}, drop)
	return nil
}

// Gather writes statistic kind of a formula's values over a matrix of a shape to number slot of in.Stats. The
// values are summed in float64, in an order that the shape gives.
func (d *Device) Gather(rows, cols int, f Formula, in FormulaInputs, kind StatKind, slot int) error {
	if kind < StatRange || kind > StatTotal || slot < 0 || 2*slot+1 >= in.Stats.Cols || rows*cols == 0 {
		return fmt.Errorf("Gather: %w: statistic %d to number %d of %d, of %d values", ErrFormula, kind, slot,
			in.Stats.Cols/2, rows*cols)
	}

	return d.evaluate("Gather", f, in, in.Stats, func(e *evaluation) {
		g := grid{x: min((cols+1023)/1024, 64), y: min(rows, 256), threads: 256}
		e.args.d = mat{rows: int32(rows), cols: int32(cols)}
		e.args.kind, e.args.slot, e.args.parts = int32(kind), int32(slot), int32(g.x*g.y)
		e.args.part = d.scratch(32 * g.x * g.y)
		e.launch("formula_stat", g)
		launch(d, "formula.formula_fold", grid{x: 1, y: 1, threads: 256}, &e.args)
		d.drop(e.args.part)
	})
}

// GatherRows writes Σ|x| (StatTotal, without the 1e-8) or √Σx² (StatNorm) of every row of a formula's values to
// dst, F32 [1, rows].
func (d *Device) GatherRows(dst kernels.Mat, cols int, f Formula, in FormulaInputs, kind StatKind) error {
	return d.gatherVector("GatherRows", dst, dst.Cols, cols, 0, f, in, kind)
}

// GatherCols writes Σ|x| or √Σx² of every column to dst, F32 [1, cols].
func (d *Device) GatherCols(dst kernels.Mat, rows int, f Formula, in FormulaInputs, kind StatKind) error {
	return d.gatherVector("GatherCols", dst, rows, dst.Cols, 1, f, in, kind)
}

func (d *Device) gatherVector(op string, dst kernels.Mat, rows, cols int, along int32, f Formula, in FormulaInputs,
	kind StatKind,
) error {
	if kind != StatNorm && kind != StatTotal {
		return fmt.Errorf("%s: %w: statistic %d is none of a vector", op, ErrFormula, kind)
	}

	return d.evaluate(op, f, in, dst, func(e *evaluation) {
		if dst.Len() == 0 {
			return
		}
		e.args.d = mat{p: d.of(dst).p, rows: int32(rows), cols: int32(cols)}
		e.args.kind, e.args.slot = int32(kind), along
		e.launch("formula_vector", lines(dst.Cols))
	})
}
