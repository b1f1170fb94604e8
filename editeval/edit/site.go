package edit

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// passTokens is how many tokens one pass takes at most: what bounds the memory of activations.
const passTokens = 4096

// linear finds the one matrix of a role in a block.
func linear(m *lm.Model, block int, role arch.Role) (lm.Linear, error) {
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
		return lm.Linear{}, fmt.Errorf("%w: %s: block %d has %d matrices of role %q (HINT: mixtures of experts have no single one)", ErrModel, m.Path(), block, len(found), role)
	}
	return found[0], nil
}

// tap is a delta that looks at what linears read and write at some rows of a pass, and may add to what they write.
type tap struct {
	rows rows
	at   []int // rows of the pass, ascending
	see  func(l lm.Linear, i int, x, y []float64) (add []float64)
	grad func(l lm.Linear, i int, dy []float64) // nil: no gradients wanted
	none kernels.Mat
}

// Forward implements [lm.Delta].
func (t *tap) Forward(l lm.Linear, x, y kernels.Mat) error {
	for i, row := range t.at {
		in, err := t.rows.get(x, row)
		if err != nil {
			return err
		}
		out, err := t.rows.get(y, row)
		if err != nil {
			return err
		}
		add := t.see(l, i, in, out)
		if add == nil {
			continue
		}
		if err := t.rows.put(y, row, plus(out, 1, add)); err != nil {
			return err
		}
	}
	return nil
}

// Backward implements [lm.Delta]: what is added has the gradient of the output, and nothing reaches the input.
func (t *tap) Backward(l lm.Linear, _, dy, _ kernels.Mat) error {
	if t.grad == nil {
		return nil
	}
	for i, row := range t.at {
		g, err := t.rows.get(dy, row)
		if err != nil {
			return err
		}
		t.grad(l, i, g)
	}
	return nil
}

// Parameters implements [lm.Delta].
func (t *tap) Parameters() []lm.Parameter {
	if t.grad == nil {
		return nil
	}
	return []lm.Parameter{{Name: "edit", Value: t.none, Grad: t.none}}
}

// place is one position of one sequence.
type place struct {
	ids []int32
	at  int
}

// seen is what a model computes at some places, one row a place, by block.
type seen struct {
	keys, values, stream map[int]linalg.Matrix
}

// row is a copy of a row of a matrix.
func row(m linalg.Matrix, i int) []float64 { return append([]float64(nil), m.Row(i)...) }

// vectors are the rows lo … hi-1.
func vectors(m linalg.Matrix, lo, hi int) [][]float64 {
	out := make([][]float64, 0, hi-lo)
	for i := lo; i < hi; i++ {
		out = append(out, row(m, i))
	}
	return out
}

// chunks cuts places into runs of at most passTokens tokens, never empty ones.
func chunks[T any](list []T, tokens func(T) int) [][2]int {
	var out [][2]int
	lo, sum := 0, 0
	for i, x := range list {
		n := tokens(x)
		if i > lo && sum+n > passTokens {
			out, lo, sum = append(out, [2]int{lo, i}), i, 0
		}
		sum += n
	}
	if lo < len(list) {
		out = append(out, [2]int{lo, len(list)})
	}
	return out
}

// look runs the model up to the last of the blocks and returns what their down-projections read and write, and what the blocks
// give, at the places.
func look(ctx context.Context, m *lm.Model, places []place, blocks []int) (*seen, error) {
	s := &seen{map[int]linalg.Matrix{}, map[int]linalg.Matrix{}, map[int]linalg.Matrix{}}
	var names []string
	last := 0
	for _, b := range blocks {
		l, err := linear(m, b, arch.Down)
		if err != nil {
			return nil, err
		}
		names, last = append(names, l.Name), max(last, b)
		s.keys[b], s.values[b] = linalg.New(len(places), l.In), linalg.New(len(places), l.Out)
		s.stream[b] = linalg.New(len(places), m.Config().Hidden)
	}
	for _, c := range chunks(places, func(p place) int { return len(p.ids) }) {
		if err := s.look(ctx, m, places[c[0]:c[1]], c[0], last, names); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// look fills the rows from first on.
func (s *seen) look(ctx context.Context, m *lm.Model, places []place, first, last int, names []string) error {
	t := &tap{rows: rows{m.Device()}}
	t.see = func(l lm.Linear, i int, x, y []float64) []float64 {
		copy(s.keys[l.Block].Row(first+i), x)
		copy(s.values[l.Block].Row(first+i), y)
		return nil
	}
	var ids [][]int32
	start := 0
	for _, p := range places {
		ids, t.at = append(ids, p.ids), append(t.at, start+p.at)
		start += len(p.ids)
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
		out, ok := s.stream[b]
		if !ok {
			continue
		}
		for i, at := range t.at {
			v, err := t.rows.get(h.X, at)
			if err != nil {
				return err
			}
			copy(out.Row(first+i), v)
		}
	}
	return nil
}
