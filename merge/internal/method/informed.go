package method

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/merge/internal/spectral"
)

// fisher is Σ λ_j·F_j·x_j / Σ λ_j·F_j with the diagonal of each model's Fisher information (Matena and Raffel,
// NeurIPS 2022). Where no model has any, and for tensors without statistics, it is the mean with the λ_j.
func fisher(t *Tensor) (*Program, error) {
	weights := numbers(t, "weight")
	total := sum(weights)
	if total == 0 {
		return nil, fmt.Errorf("tensor %q: weights %v: %w", t.Name, weights, ErrZeroWeight)
	}

	known := 0
	for _, in := range t.Inputs {
		if in.Stat == nil {
			continue
		}
		if size(in.Stat) != t.N {
			return nil, fmt.Errorf("tensor %q: statistics of %s have shape %v, the tensor %v: %w", t.Name, in.Name,
				in.Stat, t.Shape, ErrStatistics)
		}

		known++
	}

	switch known {
	case 0:
		for j := range weights {
			weights[j] /= total
		}
		p := combination(weights)
		p.Warnings = []string{fmt.Sprintf("tensor %q has no Fisher statistics and is averaged", t.Name)}
		return p, nil
	case len(t.Inputs):
	default:
		return nil, someLack(t, known)
	}

	return &Program{Apply: func(b *Block) {
		for i := range b.Out {
			var num, den, plain float64
			for j, x := range b.X {
				f := weights[j] * float64(b.Stat[j][i])
				num += f * float64(x[i])
				den += f
				plain += weights[j] / total * float64(x[i])
			}

			if den != 0 { // else no model cares about the element, and it is averaged
				plain = num / den
			}

			b.Out[i] = float32(plain)
		}
	}}, nil
}

// someLack names the models without statistics of a tensor that the other ones have some of: weighing those by theirs
// and these by nothing would be neither merge.
func someLack(t *Tensor, known int) error {
	var lack []string
	for _, in := range t.Inputs {
		if in.Stat == nil {
			lack = append(lack, in.Name)
		}
	}

	verb := "lacks"
	if len(lack) > 1 {
		verb = "lack"
	}
	return fmt.Errorf("tensor %q: %d of %d models have statistics, %s %s them: %w", t.Name, known, len(t.Inputs),
		strings.Join(lack, ", "), verb, ErrStatistics)
}

func size(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// regMean solves for the matrix whose outputs are nearest to those of every model on its own inputs (Jin et
// al., ICLR 2023): W = (Σ Ĝ_j)⁻¹ Σ Ĝ_j W_j for W as [in, out], with G_j = XᵀX / tokens of the layer's inputs,
// whose elements off the diagonal are multiplied by alpha. Tensors without statistics are averaged. Matrices
// are [out, in] as a linear layer stores them, or [in, out] where the statistics' size says so, or parameter
// transposed for square ones.
func regMean(t *Tensor) (*Program, error) {
	n := len(t.Inputs)
	known := 0
	for _, in := range t.Inputs {
		if in.Stat != nil {
			known++
		}
	}

	if known > 0 && known < n && len(t.Shape) == 2 {
		return nil, someLack(t, known)
	}
	if known == 0 || len(t.Shape) != 2 {
		w := make([]float64, n)
		for j := range w {
			w[j] = 1 / float64(n)
		}
		return combination(w), nil
	}

	// A matrix that is not square says by the size of its statistics which of its axes are the inputs.
	transposed := t.Params.Bool("transposed")
	for _, i := range t.Inputs {
		transposed = transposed || len(i.Stat) == 2 && i.Stat[0] == t.Shape[0] && i.Stat[0] != t.Shape[1]
	}

	in := t.Shape[1]
	if transposed {
		in = t.Shape[0]
	}

	for _, i := range t.Inputs {
		if len(i.Stat) != 2 || i.Stat[0] != in || i.Stat[1] != in {
			return nil, fmt.Errorf("tensor %q of shape %v: statistics of %s have shape %v, not [%d %d]: %w", t.Name,
				t.Shape, i.Name, i.Stat, in, in, ErrStatistics)
		}
	}

	alpha := t.Params.Number("alpha")
	return &Program{
		Memory: 8*(3*in*in+4*t.N) + 4*int64(n)*in*in,
		Whole: func(w *Whole) error {
			return named(t, spectral.RegMean(w.Out, w.X, w.Stat, int(in), alpha, transposed, w.solver()))
		},
	}, nil
}
