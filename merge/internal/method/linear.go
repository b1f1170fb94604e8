package method

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/merge/internal/vec"
)

// linear is Σ w_j·x_j, divided by Σ w_j if normalize.
func linear(t *Tensor) (*Program, error) {
	w := numbers(t, "weight")
	if t.Params.Bool("normalize") {
		s := sum(w)
		if s == 0 || math.IsNaN(s) || math.IsInf(s, 0) {
			return nil, fmt.Errorf("tensor %q: weights %v with normalize: %w", t.Name, w, ErrZeroWeight)
		}
		for i := range w {
			w[i] /= s
		}
	}

	return combination(w), nil
}

// combination is Σ w_j·x_j, plus the base if there is one and x_j are differences.
func combination(w []float64) *Program {
	return &Program{Apply: func(b *Block) { combine(b, w) }, Words: mixed(w)}
}

// combine writes Σ w_j·x_j.
func combine(b *Block, w []float64) {
	vec.Scale(b.Out, b.X[0], float32(w[0]))
	for j, x := range b.X[1:] {
		vec.Add(b.Out, b.Out, x, float32(w[j+1]))
	}
}

// passthrough is the only input, times scale if one is given.
func passthrough(t *Tensor) (*Program, error) {
	if len(t.Inputs) != 1 {
		return nil, fmt.Errorf("tensor %q has %d inputs, passthrough takes one: %w", t.Name, len(t.Inputs),
			ErrUnsupported)
	}

	scale := 1.0
	if v := t.Inputs[0].Params; v.Has("scale") {
		scale = v.Number("scale")
	}
	if scale == 1 {
		return &Program{Apply: func(b *Block) { copy(b.Out, b.X[0]) }}, nil
	}

	return combination([]float64{scale}), nil
}

// nearswap is g·x + (1-g)·b with g = clamp(t / max(|b - x|, 1e-6), 0, 1).
func nearswap(t *Tensor) (*Program, error) {
	if p, err := lone(t); p != nil || err != nil {
		if !t.Base {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, ErrNoBase)
		}
		return p, err
	}

	swap := float32(t.Params.Number("t"))
	return &Program{Apply: func(b *Block) {
		for i, x := range b.X[0] {
			d := b.Base[i] - x
			g := swap / max(abs(d), 1e-6)
			g = min(max(g, 0), 1)
			b.Out[i] = g*x + (1-g)*b.Base[i]
		}
	}}, nil
}

// lone is the program of a tensor that only the base, or only one input, has; nil if there are more.
func lone(t *Tensor) (*Program, error) {
	switch {
	case t.Base && len(t.Inputs) == 0:
		return &Program{Apply: func(b *Block) { copy(b.Out, b.Base) }}, nil
	case !t.Base && len(t.Inputs) == 1:
		return &Program{Apply: func(b *Block) { copy(b.Out, b.X[0]) }}, nil
	case len(t.Inputs) == 0:
		return nil, fmt.Errorf("tensor %q: %w", t.Name, ErrFewInputs)
	}
	return nil, nil
}

func abs(x float32) float32 { return math.Float32frombits(math.Float32bits(x) & math.MaxInt32) }

// based refuses tensors that the base lacks, and gives the base's where nothing else has the tensor.
func based(t *Tensor) (*Program, error) {
	if !t.Base {
		return nil, fmt.Errorf("tensor %q: %w", t.Name, ErrNoBase)
	}
	return lone(t)
}

// Copy is the program of a tensor that is its only input.
func Copy() *Program { return &Program{Apply: func(b *Block) { copy(b.Out, b.X[0]) }} }
