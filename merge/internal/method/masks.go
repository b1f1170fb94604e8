package method

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/merge/internal/vec"
)

// consensus keeps of the summed differences the elements that at least k models want: m_j = [|δ_j| > λ_j·|Σδ - δ_j|],
// out = b + alpha·[Σ m_j ≥ k]·Σδ (TALL masks and Consensus: Wang et al., ICML 2024). With task, the mask of one model
// is used instead, which gives back that model.
func consensus(t *Tensor) (*Program, error) {
	if p, err := based(t); p != nil || err != nil {
		return p, err
	}

	alpha, least := t.Params.Number("alpha"), int(t.Params.Number("k"))
	lambda := numbers(t, "lambda")
	task, err := chosen(t)
	if err != nil {
		return nil, err
	}

	if task >= 0 {
		least = 1
	}

	return &Program{Apply: func(b *Block) {
		b.Deltas()

		for i := range b.Out {
			var total float32
			for _, x := range b.X {
				total += x[i]
			}

			votes := 0
			for j, x := range b.X {
				if (task < 0 || task == j) && abs(x[i]) > float32(lambda[j])*abs(total-x[i]) {
					votes++
				}
			}

			if votes < least {
				total = 0
			}

			b.Out[i] = b.Base[i] + float32(alpha)*total
		}
	}}, nil
}

// chosen is the input that the parameter task names by its position, from 1; -1 if there is none.
func chosen(t *Tensor) (int, error) {
	if !t.Params.Has("task") {
		return -1, nil
	}
	k := t.Params.Number("task")
	if k < 1 || k > float64(len(t.Inputs)) {
		return 0, outOfRange(t, "task", k, fmt.Sprintf("the position of a model, 1 to %d", len(t.Inputs)))
	}
	return int(k) - 1, nil
}

// emr elects a unified difference, the largest magnitude of the elected sign, and gives one model of it back by
// that model's mask and scale (Huang et al., NeurIPS 2024): λ = Σ_tensors mean|δ| / Σ_tensors
// mean|mask·unified|. Without task, the unified difference itself is added.
func emr(g []*Tensor) (*Program, error) {
	for _, t := range g {
		if !t.Base {
			return nil, named(t, ErrNoBase)
		}
	}

	task, err := chosen(g[0])
	if err != nil {
		return nil, err
	}

	scale := 1.0
	p := &Program{Apply: func(b *Block) {
		b.Deltas()
		for i, u := range unified(b) {
			if task >= 0 && !(u*b.X[task][i] > 0) {
				u = 0
			}
			b.Out[i] = b.Base[i] + float32(scale)*u
		}
	}}

	if task < 0 {
		return p, nil
	}

	p.Passes = []Pass{{
		New: func() any { return new([2]float64) },
		Each: func(stat any, b *Block) {
			b.Deltas()
			sums := stat.(*[2]float64)
			n := float64(g[b.Tensor].N)
			for i, u := range unified(b) {
				x := b.X[task][i]
				sums[0] += math.Abs(float64(x)) / n
				if u*x > 0 {
					sums[1] += math.Abs(float64(u)) / n
				}
			}
		},
		End: func(stats []any) ([]Pass, error) {
			var own, masked float64
			for _, s := range stats {
				own += s.(*[2]float64)[0]
				masked += s.(*[2]float64)[1]
			}
			if masked > 0 {
				scale = own / masked
			}
			return nil, nil
		},
	}}

	return p, nil
}

// unified is the largest magnitude among the differences that have the sign of their sum (- for 0), with that
// sign, in the first scratch slice.
func unified(b *Block) []float32 {
	out := b.Temp(0)
	for i := range out {
		var total, best float32
		for _, x := range b.X {
			total += x[i]
		}

		sign := float32(-1)
		if total > 0 {
			sign = 1
		}
		for _, x := range b.X {
			best = max(best, sign*x[i])
		}

		out[i] = sign * best
	}

	return out
}

// magMax takes the difference of the largest magnitude, the later model's where several are equal, times scale
// (Marczak et al., ECCV 2024).
func magMax(t *Tensor) (*Program, error) {
	if p, err := based(t); p != nil || err != nil {
		return p, err
	}

	scale := float32(t.Params.Number("scale"))
	return &Program{Apply: func(b *Block) {
		b.Deltas()

		for i := range b.Out {
			var best float32
			for _, x := range b.X {
				if abs(x[i]) >= abs(best) {
					best = x[i]
				}
			}

			b.Out[i] = b.Base[i] + scale*best
		}
	}}, nil
}

// bitDelta replaces every difference by its sign times its mean magnitude and adds them with weights (Liu et
// al., "BitDelta", NeurIPS 2024; scales are not distilled). The sign of 0 is -, as one bit says.
func bitDelta(t *Tensor) (*Program, error) {
	if p, err := based(t); p != nil || err != nil {
		return p, err
	}

	weights := numbers(t, "weight")
	size := make([]float64, len(weights))
	return &Program{
		Passes: []Pass{{
			New: func() any { return make([]float64, len(size)) },
			Each: func(stat any, b *Block) {
				b.Deltas()
				for j, x := range b.X {
					stat.([]float64)[j] += vec.SumAbs(x)
				}
			},
			End: func(stats []any) ([]Pass, error) {
				for _, s := range stats {
					for j, v := range s.([]float64) {
						size[j] += v / float64(t.N)
					}
				}
				return nil, nil
			},
		}},
		Apply: func(b *Block) {
			b.Deltas()

			for i := range b.Out {
				v := float64(b.Base[i])
				for j, x := range b.X {
					s := weights[j] * size[j]
					if !(x[i] > 0) {
						s = -s
					}
					v += s
				}

				b.Out[i] = float32(v)
			}
		},
	}, nil
}
