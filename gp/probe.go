package gp

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"math"

	"github.com/modelcompress/compress/gp/internal/ranking"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
)

// Probe is a set of small fixed matrices on which candidates are tried before any model is touched.
type Probe struct {
	parts []Inputs
	exec  Exec
}

// Fingerprint identifies what a metric does: a hash of the masks that it makes on a probe, 50 % of every row
// and 2 of every 4 columns. Metrics with equal fingerprints may share their fitness.
type Fingerprint uint64

// minDistinct is the share of different scores that every row of a probe must have.
const minDistinct = 0.5

// NewProbe makes a probe of matrices of real layers, small ones: some tens of rows are enough.
func NewProbe(parts ...Inputs) *Probe { return &Probe{parts, Exec{Threads: 1, Finite: true}} }

// SyntheticProbe makes a probe of 3 matrices of 16×512, 16×512 and 24×172 elements whose weights, gradients and
// inputs are distributed as in language models: weights bell-shaped, gradients log-normal with exact zeros, and
// a few inputs a hundred times as strong as the others.
func SyntheticProbe(seed uint64) *Probe {
	var parts []Inputs
	for n, shape := range [][2]int{{16, 512}, {16, 512}, {24, 172}} {
		parts = append(parts, synthetic(rng.NewStream(seed, n), shape[0], shape[1]))
	}
	return NewProbe(parts...)
}

func synthetic(r *rng.Stream, rows, cols int) Inputs {
	vector := func(f func() float64) []float32 {
		v := make([]float32, cols)
		for j := range v {
			v[j] = float32(f())
		}
		return v
	}

	// Outlier inputs are what tells activation-aware metrics from magnitude; without them most would agree.
	in := Inputs{
		X: vector(func() float64 {
			x := math.Exp(1.5*r.Normal() + 3)
			if r.Chance(0.02) {
				x *= 1e4
			}
			return x
		}),
		Mean: vector(func() float64 { return 0.1 * r.Normal() }),
		Var:  vector(func() float64 { return math.Exp(r.Normal() - 1) }),
		Hess: vector(func() float64 { return math.Exp(1.5*r.Normal() + 2) }),
		Inv:  vector(func() float64 { return math.Exp(r.Normal() - 2) }),
	}

	w, g := make([]float32, rows*cols), make([]float32, rows*cols)
	for i := range w {
		w[i] = float32(0.02 * r.Normal() * math.Exp(0.3*r.Normal()))
		g[i] = float32(math.Exp(1.2*r.Normal()-3) * math.Sqrt(float64(in.X[i%cols])) / 10)
		if r.Chance(0.001) {
			g[i] = 0
		}
	}

	in.W, in.G = kernels.MatOf(kernels.WrapF32(w), rows, cols), kernels.MatOf(kernels.WrapF32(g), rows, cols)
	return in
}

// Fingerprint evaluates an expression on the probe. It returns [ErrNonFinite] or [ErrConstant] where the scores
// can't rank weights, [ErrNoWeight] if all rows get the same masks, and the errors of [Compile] and
// [Program.Eval].
//
// A formula of whole parts is tried on synthetic MLPs instead, and ranks as the halves and quarters of neurons that it
// would let go.
func (p *Probe) Fingerprint(e *Expr) (Fingerprint, error) {
	if e.OfParts() {
		return partsPrint(e)
	}

	prog, err := Compile(e)
	if err != nil {
		return 0, err
	}

	h := fnv.New64a()
	for _, in := range p.parts {
		s, err := prog.Scorer(in, p.exec)
		if err != nil {
			return 0, err
		}

		// A metric whose masks are those of one row again and again looks at the inputs only, and not at the weights.
		alike := newRowsAlike()
		if err := s.Each(0, func(first int, scores kernels.Mat) error {
			return alike.hash(h, e, first, scores)
		}); err != nil {
			return 0, err
		}
		if alike.same && s.m.rows > 1 {
			return 0, fmt.Errorf("%s: %w: it ranks all rows alike", e, ErrNoWeight)
		}
	}

	return Fingerprint(h.Sum64()), nil
}

// rowsAlike hashes the masks of rows and watches whether they differ.
type rowsAlike struct {
	first, mask   []byte
	keys, scratch []uint32
	same          bool
}

func newRowsAlike() *rowsAlike { return &rowsAlike{same: true} }

// hash takes a block of scores. Every fourth row is checked for equal scores.
func (a *rowsAlike) hash(h io.Writer, e *Expr, first int, scores kernels.Mat) error {
	if a.keys == nil {
		a.keys, a.scratch = make([]uint32, scores.Cols), make([]uint32, scores.Cols)
	}

	for i := range scores.Rows {
		row := scores.RowF32(i)
		ranking.Keys(a.keys, row)

		// Constant scores are a property of the formula, which a sample of rows shows too.
		if (first+i)%4 == 0 {
			if n := ranking.Distinct(a.scratch, a.keys); float64(n) < minDistinct*float64(len(row)) {
				return fmt.Errorf("%s: %w: %d values among %d weights of a row", e, ErrConstant, n, len(row))
			}
		}

		// Only which weights a 50 % and a 2:4 mask would keep counts: formulas of the same order are one metric.
		a.mask = ranking.Quads(ranking.Half(a.mask[:0], a.scratch, a.keys), a.keys)
		if a.first == nil {
			a.first = bytes.Clone(a.mask)
		}

		// Rows that all keep the same columns ignore the weight's own row.
		a.same = a.same && bytes.Equal(a.first, a.mask)
		if _, err := h.Write(a.mask); err != nil {
			return err
		}
	}

	return nil
}
