package site

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// PassTokens is how many tokens one pass takes at most: what bounds the memory of activations. Four times as
// many took twice as long a token.
const PassTokens = 1024

// Linear finds the one matrix of a role in a decoder layer.
func Linear(m *lm.Model, block int, role arch.Role) (lm.Linear, error) {
	var found []lm.Linear
	if block < 0 || block >= m.Blocks() {
		return lm.Linear{}, fmt.Errorf("%w: layer %d of a model with %d, from 0", ErrOptions, block, m.Blocks())
	}

	for _, l := range m.Linears(block) {
		if l.Role == role {
			found = append(found, l)
		}
	}
	if len(found) != 1 {
		return lm.Linear{}, fmt.Errorf("%w: %s: layer %d has %d matrices of role %q: a token of a mixture passes "+
			"several experts, and no rule says which of them a fact is written to", ErrModel, m.Path(), block,
			len(found), role)
	}

	return found[0], nil
}

// Tap is a delta that looks at what linears read and write at some rows of a pass, and may add to what they write.
type Tap struct {
	Rows Rows
	At   []int // Rows of the pass, ascending
	See  func(l lm.Linear, i int, x, y []float64) (add []float64)
	Grad func(l lm.Linear, i int, dy []float64) // nil: no gradients wanted
	None kernels.Mat
}

// Forward implements [lm.Delta].
func (t *Tap) Forward(l lm.Linear, x, y kernels.Mat) error {
	for i, row := range t.At {
		in, err := t.Rows.Get(x, row)
		if err != nil {
			return err
		}

		out, err := t.Rows.Get(y, row)
		if err != nil {
			return err
		}

		add := t.See(l, i, in, out)
		if add == nil {
			continue
		}
		if err := t.Rows.Put(y, row, Plus(out, 1, add)); err != nil {
			return err
		}
	}

	return nil
}

// Backward implements [lm.Delta]: what is added has the gradient of the output, and nothing reaches the input.
func (t *Tap) Backward(l lm.Linear, _, dy, _ kernels.Mat) error {
	if t.Grad == nil {
		return nil
	}

	for i, row := range t.At {
		g, err := t.Rows.Get(dy, row)
		if err != nil {
			return err
		}
		t.Grad(l, i, g)
	}

	return nil
}

// Parameters implements [lm.Delta].
func (t *Tap) Parameters() []lm.Parameter {
	if t.Grad == nil {
		return nil
	}
	return []lm.Parameter{{Name: "edit", Value: t.None, Grad: t.None}}
}

// Place is one position of one sequence.
type Place struct {
	IDs []int32
	At  int
}

// seen is what a model computes at some places, one row a place, by layer.
type seen struct {
	Keys, Values, Stream map[int]linalg.Matrix
}

// Row is a copy of a row of a matrix.
func Row(m linalg.Matrix, i int) []float64 { return append([]float64(nil), m.Row(i)...) }

// Vectors are the rows lo … hi-1.
func Vectors(m linalg.Matrix, lo, hi int) [][]float64 {
	out := make([][]float64, 0, hi-lo)
	for i := lo; i < hi; i++ {
		out = append(out, Row(m, i))
	}
	return out
}

// Chunks cuts places into runs of at most passTokens tokens, never empty ones.
func Chunks[T any](list []T, tokens func(T) int) [][2]int {
	var out [][2]int
	lo, sum := 0, 0
	for i, x := range list {
		n := tokens(x)
		if i > lo && sum+n > PassTokens {
			out, lo, sum = append(out, [2]int{lo, i}), i, 0
		}
		sum += n
	}

	if lo < len(list) {
		out = append(out, [2]int{lo, len(list)})
	}

	return out
}

// Look runs the model up to the last of the layers and returns what their down-projections read and write, and
// what the layers give, at the places.
func Look(ctx context.Context, m *lm.Model, places []Place, blocks []int) (*seen, error) {
	s := &seen{map[int]linalg.Matrix{}, map[int]linalg.Matrix{}, map[int]linalg.Matrix{}}
	var names []string
	last := 0
	for _, b := range blocks {
		l, err := Linear(m, b, arch.Down)
		if err != nil {
			return nil, err
		}

		names, last = append(names, l.Name), max(last, b)
		s.Keys[b], s.Values[b] = linalg.New(len(places), l.In), linalg.New(len(places), l.Out)
		s.Stream[b] = linalg.New(len(places), m.Config().Hidden)
	}

	for _, c := range Chunks(places, func(p Place) int { return len(p.IDs) }) {
		if err := s.look(ctx, m, places[c[0]:c[1]], c[0], last, names); err != nil {
			return nil, err
		}
	}

	return s, nil
}

// Look fills the rows from first on.
func (s *seen) look(ctx context.Context, m *lm.Model, places []Place, first, last int, names []string) error {
	t := &Tap{Rows: Rows{m.Device()}}
	t.See = func(l lm.Linear, i int, x, y []float64) []float64 {
		copy(s.Keys[l.Block].Row(first+i), x)
		copy(s.Values[l.Block].Row(first+i), y)
		return nil
	}

	var ids [][]int32
	start := 0
	for _, p := range places {
		ids, t.At = append(ids, p.IDs), append(t.At, start+p.At)
		start += len(p.IDs)
	}

	undo, err := m.Attach(t, names...)
	if err != nil {
		return err
	}
	defer undo()

	h, err := m.Embed(ids)
	if err != nil {
		return err
	}
	defer h.Free()

	for b := range last + 1 {
		if err := m.RunBlock(ctx, b, h, nil); err != nil {
			return err
		}

		out, ok := s.Stream[b]
		if !ok {
			continue
		}

		for i, at := range t.At {
			v, err := t.Rows.Get(h.X, at)
			if err != nil {
				return err
			}
			copy(out.Row(first+i), v)
		}
	}

	return nil
}
