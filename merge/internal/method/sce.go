package method

import (
	"math"

	"github.com/modelcompress/compress/merge/internal/vec"
)

// sce selects the elements whose differences vary most between the models, weighs each model by the mean square
// of what is selected, and lets the sign of the sum elect (Wan et al., "FuseChat", 2024):
//
//	out = b + Σ a_j·keep_j·δ_j / max(Σ a_j·keep_j, 1e-6)
//
// If the mean squares sum to less than 1e-6, all weights are equal.
func sce(t *Tensor) (*Program, error) {
	if p, err := based(t); p != nil || err != nil {
		return p, err
	}

	top := t.Params.Number("select_topk")
	if math.IsNaN(top) {
		return nil, outOfRange(t, "select_topk", top, "a number")
	}

	r := &sceRun{t: t, top: top, window: all}
	p := &Program{Apply: r.apply}
	if top >= 1 {
		p.Passes = []Pass{r.squares()}
		return p, nil
	}

	f := r.finder()
	p.Memory, p.Ties = f.memory(), &f.ties
	p.Passes = f.passes(func() ([]Pass, error) {
		r.window = none
		if len(f.cuts[0]) > 0 {
			r.window = f.window(0, f.cuts[0][0].K)
		}
		return []Pass{r.squares()}, nil
	})

	return p, nil
}

type sceRun struct {
	t       *Tensor
	top     float64
	window  Window
	weights []float64
}

func (r *sceRun) finder() *finder {
	return &finder{
		n: r.t.N, streams: 1, exact: true, draw: byDraw([]*Tensor{r.t}, true),
		keys: func(b *Block, _ int) []float32 {
			b.Deltas()
			return spread(b)
		},
		want: func(_ int, nonzero int64) []int64 {
			if k := int64(float64(nonzero) * r.top); k > 0 {
				return []int64{k}
			}
			return nil
		},
		take: func(_, _ int, c []Cut) int64 { return c[0].K - c[0].Above },
	}
}

// spread is N² times the variance of the inputs, element by element: the sum of squared differences of pairs,
// which is zero exactly where all agree.
func spread(b *Block) []float32 {
	v := b.Temp(0)
	clear(v)
	for i, x := range b.X {
		for _, y := range b.X[:i] {
			vec.Apart(v, x, y)
		}
	}
	return v
}

// selected replaces the inputs by their selected differences.
func (r *sceRun) selected(b *Block) {
	b.Deltas()
	if r.top >= 1 {
		return
	}
	v := spread(b)
	for _, x := range b.X {
		r.window.Apply(x, x, v, b)
	}
}

// squares is the pass for the weights.
func (r *sceRun) squares() Pass {
	n := len(r.t.Inputs)
	return Pass{
		New: func() any { return make([]float64, n) },
		Each: func(stat any, b *Block) {
			r.selected(b)
			for j, x := range b.X {
				stat.([]float64)[j] += vec.Dot(x, x)
			}
		},
		End: func(stats []any) ([]Pass, error) {
			r.weights = make([]float64, n)
			for _, s := range stats {
				for j, v := range s.([]float64) {
					r.weights[j] += v / float64(r.t.N)
				}
			}

			total := sum(r.weights)
			for j := range r.weights {
				if total < 1e-6 {
					r.weights[j] = 1 / float64(n)
				} else {
					r.weights[j] /= total
				}
			}

			return nil, nil
		},
	}
}

func (r *sceRun) apply(b *Block) {
	r.selected(b)
	total := b.Temp(0)
	num := b.Temp(1)
	den := b.Temp(2)

	clear(total)
	clear(num)
	clear(den)
	for _, x := range b.X {
		vec.Add(total, total, x, 1)
	}
	for j, x := range b.X {
		vec.Elect(num, den, x, total, float32(r.weights[j]), float32(r.weights[j]))
	}

	vec.RatioFloor(num, num, den, 1e-6)
	vec.Add(b.Out, b.Base, num, 1)
}

// ram adds what only one model changed as it is and averages what several changed: active are |δ| > epsilon.
// With scaled, what only one model changed is multiplied by 1 + r·min(shared/unique, alpha), with the counts of
// the model's active elements in the tensor that others change too, and that they do not (arXiv 2601.13572).
func ram(scaled bool) func(t *Tensor) (*Program, error) {
	return func(t *Tensor) (*Program, error) {
		if !t.Base {
			return based(t)
		}

		epsilon := float32(t.Params.Number("epsilon"))
		lambda := make([]float64, len(t.Inputs))
		for j := range lambda {
			lambda[j] = 1
		}

		p := &Program{Apply: func(b *Block) { ramApply(b, epsilon, lambda) }}
		if !scaled {
			return p, nil
		}

		r, alpha := t.Params.Number("r"), t.Params.Number("alpha")
		p.Passes = []Pass{{
			New: func() any { return make([]int64, 2*len(lambda)) },
			Each: func(stat any, b *Block) {
				b.Deltas()
				ramCount(b, epsilon, stat.([]int64))
			},
			Shared: true,
			End: func(stats []any) ([]Pass, error) {
				for j := range lambda {
					var unique, shared int64
					for _, s := range stats {
						unique += s.([]int64)[2*j]
						shared += s.([]int64)[2*j+1]
					}
					lambda[j] = 1 + r*min(max(float64(shared)/max(float64(unique), float64(epsilon)), 0), alpha)
				}
				return nil, nil
			},
		}}

		return p, nil
	}
}

// ramCount adds the active elements of every model, those of it alone and those shared.
func ramCount(b *Block, epsilon float32, counts []int64) {
	for i := range b.Out {
		active, last := 0, 0
		for j, x := range b.X {
			if abs(x[i]) > epsilon {
				active++
				last = j
			}
		}

		switch active {
		case 0:
		case 1:
			counts[2*last]++
		default:
			for j, x := range b.X {
				if abs(x[i]) > epsilon {
					counts[2*j+1]++
				}
			}
		}
	}
}

func ramApply(b *Block, epsilon float32, lambda []float64) {
	b.Deltas()

	for i := range b.Out {
		var total float64
		active, last := 0, 0
		for j, x := range b.X {
			if abs(x[i]) > epsilon {
				active++
				last = j
				total += float64(x[i])
			}
		}

		switch active {
		case 0:
		case 1:
			total *= lambda[last]
		default:
			total /= float64(active)
		}

		b.Out[i] = float32(float64(b.Base[i]) + total)
	}
}
