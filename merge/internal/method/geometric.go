package method

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/merge/internal/vec"
)

// The methods of this file write Σ a_j·u_j (+ b), where the u_j are inputs or differences and the a_j follow
// from their Gram matrix G_ij = u_i·u_j alone: a pass for G in float64, and a pass that adds.

// addProducts adds the products of a run of elements to a Gram matrix.
func addProducts(g gram, x [][]float32, first, end int) {
	for i := range x {
		for j := range i + 1 {
			g[i][j] += vec.Dot(x[i][first:end], x[j][first:end])
		}
	}
}

// angular is a program of this family. extent says over which elements a vector runs.
type angular struct {
	extent extent
	deltas bool                            // vectors are differences, and the base is added
	front  bool                            // the base is the first vector
	coefs  func(g gram) ([]float64, error) // a_j
}

type extent uint8

const (
	whole   extent = iota // one vector for the tensor
	rows                  // one for each index of all dimensions but the last
	columns               // one for each index of all dimensions but the first
)

func (a angular) program(t *Tensor) *Program {
	if a.extent == columns && len(t.Shape) < 2 {
		a.extent = whole
	}

	switch a.extent {
	case rows:
		return a.byRows(t)
	case columns:
		return a.byColumns(t)
	}

	n := a.count(t)
	var weights []float64
	var single []float32
	p := &Program{
		Passes: []Pass{{
			New:  func() any { return newGram(n) },
			Each: func(stat any, b *Block) { addProducts(stat.(gram), a.vectors(b), 0, b.Len()) },
			End: func(stats []any) ([]Pass, error) {
				g := newGram(n)
				for _, s := range stats {
					for i, row := range s.(gram) {
						for j, v := range row {
							g[i][j] += v
						}
					}
				}

				g.Mirror()
				var err error
				weights, err = a.coefs(g)
				single = singles(weights)

				return nil, named(t, err)
			},
		}},
		Apply: func(b *Block) { a.write(b, a.vectors(b), weights, 0, b.Len()) },
		Words: func(b *Words) uint32 { return a.writeWords(b, single) },
	}

	if n == 2 {
		p.Passes[0].Words = func(stat any, b *Words) bool { return a.pairs(stat.(gram), b) }
	}

	return p
}

func named(t *Tensor, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tensor %q: %w", t.Name, err)
}

// count is the number of vectors.
func (a angular) count(t *Tensor) int {
	if a.front {
		return len(t.Inputs) + 1
	}
	return len(t.Inputs)
}

// vectors are the u_j of a block.
func (a angular) vectors(b *Block) [][]float32 {
	if a.deltas {
		b.Deltas()
	}
	if a.front {
		return append([][]float32{b.Base}, b.X...)
	}
	return b.X
}

// write adds up a run of elements.
func (a angular) write(b *Block, u [][]float32, weights []float64, first, end int) {
	out := b.Out[first:end]
	if !a.deltas || b.Base == nil {
		vec.Scale(out, u[0][first:end], float32(weights[0]))
		for j, x := range u[1:] {
			vec.Add(out, out, x[first:end], float32(weights[j+1]))
		}
		return
	}

	clear(out)
	for j, x := range u {
		vec.Add(out, out, x[first:end], float32(weights[j]))
	}

	vec.Add(out, b.Base[first:end], out, 1)
}

// byRows needs no pass: a row is at hand when it is written.
func (a angular) byRows(t *Tensor) *Program {
	cols := int(t.Cols())
	return &Program{Rows: true, Apply: func(b *Block) {
		u := a.vectors(b)
		for first := 0; first+cols <= b.Len(); first += cols {
			g := newGram(len(u))
			addProducts(g, u, first, first+cols)
			g.Mirror()
			weights, err := a.coefs(g)
			if err != nil { // only whole tensors have coefficients that fail
				panic("method: coefficients of a row failed")
			}
			a.write(b, u, weights, first, first+cols)
		}
	}}
}

// byColumns collects the products of every column; a tensor of more dimensions than two counts as [first, all others].
func (a angular) byColumns(t *Tensor) *Program {
	width := int(t.N / max(1, t.Shape[0]))
	n := a.count(t)
	pairs := n * (n + 1) / 2
	var weights [][]float64 // of every vector, by column

	return &Program{
		Memory: int64(width) * 8 * int64(pairs) * (2 + t.N/SegmentSize),
		Passes: []Pass{{
			New: func() any { return make([]float64, pairs*width) },
			Each: func(stat any, b *Block) {
				u := a.vectors(b)
				sums := stat.([]float64)
				at := 0
				for i := range u {
					for j := range i + 1 {
						col := int(b.Off % int64(width))
						for e := range u[i] {
							sums[at+col] += float64(u[i][e]) * float64(u[j][e])
							col++
							if col == width {
								col = 0
							}
						}

						at += width
					}
				}
			},
			End: func(stats []any) ([]Pass, error) {
				var err error
				weights, err = a.columnWeights(stats, n, width)
				return nil, named(t, err)
			},
		}},
		Apply: func(b *Block) { a.writeColumns(b, weights, width) },
	}
}

// columnWeights turns the sums of all segments into the weights of every column.
func (a angular) columnWeights(stats []any, n, width int) ([][]float64, error) {
	weights := make([][]float64, n)
	for i := range weights {
		weights[i] = make([]float64, width)
	}

	g := newGram(n)
	for col := range width {
		at := col
		for i := range g {
			for j := range i + 1 {
				g[i][j] = 0
				for _, s := range stats {
					g[i][j] += s.([]float64)[at]
				}
				at += width
			}
		}

		g.Mirror()
		w, err := a.coefs(g)
		if err != nil {
			return nil, err
		}

		for i := range w {
			weights[i][col] = w[i]
		}
	}

	return weights, nil
}

func (a angular) writeColumns(b *Block, weights [][]float64, width int) {
	u := a.vectors(b)
	col := int(b.Off % int64(width))
	for e := range b.Out {
		var v float64
		if a.deltas && b.Base != nil {
			v = float64(b.Base[e])
		}
		for j, x := range u {
			v += weights[j][col] * float64(x[e])
		}

		b.Out[e] = float32(v)
		col++
		if col == width {
			col = 0
		}
	}
}

// slerp interpolates from the base at t = 0 to the other model, on the sphere unless |cos θ| > 0.9995
// (Shoemake, SIGGRAPH 1985; norms are those of the inputs, not normalised).
func slerp(t *Tensor) (*Program, error) {
	if p, err := lone(t); p != nil || err != nil {
		return p, err
	}

	at := t.Params.Number("t")
	return angular{front: true, coefs: func(g gram) ([]float64, error) {
		unit := func(i int) float64 {
			if n := g.Norm(i); n > 1e-8 {
				return n
			}
			return 1
		}

		c := g[0][1] / (unit(0) * unit(1))
		if math.Abs(c) > 0.9995 {
			return []float64{1 - at, at}, nil
		}

		a, b := sphereWeights(c, at)
		return []float64{a, b}, nil
	}}.program(t), nil
}

// nuslerp interpolates between two models, or their differences to a base, at t = w_2/(w_1+w_2): for the whole
// tensor, for every row, or for every column. Vectors in opposite directions have no sphere between them and
// are interpolated linearly.
func nuslerp(t *Tensor) (*Program, error) {
	if len(t.Inputs) < 2 {
		return lone(t)
	}

	w := numbers(t, "weight")
	at := 0.5
	if s := w[0] + w[1]; math.Abs(s) >= 1e-6 {
		at = w[1] / s
	}

	a := angular{deltas: t.Base, coefs: func(g gram) ([]float64, error) {
		c := min(max(g.Cos(0, 1, 1e-7), -1), 1)
		if 1+c < 1e-6 || 1-c*c <= 1e-16 {
			return []float64{1 - at, at}, nil
		}
		x, y := sphereWeights(c, at)
		return []float64{x, y}, nil
	}}

	if !t.Params.Bool("nuslerp_flatten") {
		a.extent = rows
		if t.Params.Bool("nuslerp_row_wise") {
			a.extent = columns
		}
	}

	return a.program(t), nil
}

// multislerp is one step from the weighted mean of directions along the mean of the tangents there, at the
// weighted mean of the lengths.
func multislerp(t *Tensor) (*Program, error) {
	if len(t.Inputs) < 2 {
		if t.Base && len(t.Inputs) == 1 {
			return &Program{Apply: func(b *Block) { copy(b.Out, b.X[0]) }}, nil
		}
		return lone(t)
	}

	w := numbers(t, "weight")
	if t.Params.Bool("normalize_weights") {
		s := sum(w)
		if s == 0 {
			return nil, fmt.Errorf("tensor %q: weights %v with normalize_weights: %w", t.Name, w, ErrZeroWeight)
		}
		for i := range w {
			w[i] /= s
		}
	}

	eps := t.Params.Number("eps")
	return angular{deltas: t.Base, coefs: func(g gram) ([]float64, error) {
		return tangentMean(g, w,
			eps)
	}}.program(t), nil
}

// karcher is the Riemannian mean of the directions, found by iteration on the coefficients, at the mean of the
// lengths. Points of no length do not count as directions.
func karcher(t *Tensor) (*Program, error) {
	if len(t.Inputs) == 0 {
		return lone(t)
	}

	steps, tol := int(t.Params.Number("max_iter")), t.Params.Number("tol")
	if steps < 0 {
		return nil, outOfRange(t, "max_iter", float64(steps), "0 or more")
	}

	return angular{coefs: func(g gram) ([]float64, error) {
		return karcherMean(g, steps, tol),
			nil
	}}.program(t), nil
}

// modelStock moves from the base towards the mean of the models by t = N·c/(1+(N-1)c), where c is the mean
// cosine of pairs of differences (Jang, Yun and Han, ECCV 2024); for the whole tensor, or for every row.
func modelStock(t *Tensor) (*Program, error) {
	if p, err := based(t); p != nil || err != nil {
		return p, err
	}
	if len(t.Inputs) < 2 {
		return &Program{Apply: func(b *Block) { copy(b.Out, b.Base) }}, nil
	}

	a := angular{deltas: true, coefs: stockWeights}
	if t.Params.Bool("filter_wise") {
		a.extent = rows
	}

	return a.program(t), nil
}
