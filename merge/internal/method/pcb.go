package method

import (
	"math"
)

// pcb balances the parameters of n models by competition (Du et al., "Parameter Competition Balancing", NeurIPS
// 2024), over the whole model or every tensor alone. With |δ| clamped to its quantiles at 1e-4 and 1 - 1e-4:
//
//	self_t = minmax(clamp|δ_t|)², B_t = exp(n·self_t)·tanh(δ_t·Σδ), S_t = minmax(max(B_t, its r-quantile from above))
//	out = b + Σ λ_t·clamp(δ_t)·S_t / max(Σ S_t, 1e-12)
func pcb(g []*Tensor) (*Program, error) {
	r := &pcbRun{group: g, tasks: len(g[0].Inputs)}
	for _, t := range g {
		if !t.Base {
			return nil, named(t, ErrNoBase)
		}
		if len(t.Inputs) != r.tasks {
			return nil, named(t, ErrFewInputs)
		}

		r.n += t.N
	}

	if r.tasks == 0 {
		return lone(g[0])
	}

	r.share = g[0].Params.Number("r")
	if !(r.share > 0 && r.share <= 1) {
		return nil, outOfRange(g[0], "r", r.share, "above 0 and at most 1")
	}

	// The quantiles of |δ| first: B depends on them, and the floors of B again on all of B.
	f := r.magnitudes()
	second := r.balances()
	p := &Program{Apply: r.apply, Memory: f.memory() + second.memory()}
	p.Passes = f.passes(func() ([]Pass, error) {
		for t := range r.tasks {
			value := func(i int) float64 { return float64(math.Float32frombits(f.cuts[t][i].Value)) }
			r.low, r.high = append(r.low, value(0)), append(r.high, value(1))
		}
		return second.passes(func() ([]Pass, error) {
			r.setFloors(second)
			return []Pass{r.tops()}, nil
		}), nil
	})

	return p, nil
}

type pcbRun struct {
	group     []*Tensor
	tasks     int
	n         int64
	share     float64
	low, high []float64 // the quantiles of |δ| per model
	floor     []float64 // of B
	top       []float64 // of B
}

// magnitudes finds the quantiles of |δ|.
func (r *pcbRun) magnitudes() *finder {
	const tail = 1e-4
	low := int64(tail * float64(r.n))
	high := max(0, int64(math.Floor(float64(r.n)*(1-tail)-1)))
	return &finder{
		n: r.n, streams: r.tasks,
		keys: func(b *Block, s int) []float32 {
			if s == 0 {
				b.Deltas()
			}
			return b.X[s]
		},
		want: func(int, int64) []int64 { return []int64{r.n - low, r.n - high} },
		take: func(int, int, []Cut) int64 { return math.MaxInt64 },
	}
}

// balances finds the floor of B: streams 2t and 2t+1 are the positive and the negative parts.
func (r *pcbRun) balances() *finder {
	rank := min(int64(float64(r.n)*(1-r.share)), r.n-1) // of the ascending order
	return &finder{
		n: r.n, streams: 2 * r.tasks, exact: true,
		keys: func(b *Block, s int) []float32 {
			if s == 0 {
				b.Deltas()
			}
			out := b.Temp(s % 2)
			sign := 1 - 2*float64(s%2)
			for i := range out {
				out[i] = float32(max(0, sign*r.balance(b, s/2, i)))
			}
			return out
		},
		// A finder orders magnitudes, and B has both signs: the rank lies among the positive parts, or, counted from
		// the other end, among the negative ones.
		want: func(s int, nonzero int64) []int64 {
			k := r.n - rank
			if s%2 == 1 {
				k = rank + 1
			}
			if k <= nonzero {
				return []int64{k}
			}
			return nil
		},
		take: func(int, int, []Cut) int64 { return math.MaxInt64 },
	}
}

// balance is B_t of an element of a block of differences.
func (r *pcbRun) balance(b *Block, t, i int) float64 {
	var total float64
	for _, x := range b.X {
		total += float64(x[i])
	}

	v := float64(b.X[t][i])
	self := 0.0
	if r.high[t] > r.low[t] {
		self = (r.clamp(t, v) - r.low[t]) / (r.high[t] - r.low[t])
	}

	return math.Exp(float64(r.tasks)*self*self) * math.Tanh(v*total)
}

// clamp is |v| inside the quantiles of a model.
func (r *pcbRun) clamp(t int, v float64) float64 { return min(max(math.Abs(v), r.low[t]), r.high[t]) }

func (r *pcbRun) setFloors(f *finder) {
	r.floor = make([]float64, r.tasks)
	for t := range r.floor {
		if c := f.cuts[2*t]; len(c) > 0 {
			r.floor[t] = float64(math.Float32frombits(c[0].Value))
		} else if c := f.cuts[2*t+1]; len(c) > 0 {
			r.floor[t] = -float64(math.Float32frombits(c[0].Value))
		}
	}
}

// tops is the pass for the highest B of every model.
func (r *pcbRun) tops() Pass {
	fresh := func() []float64 {
		list := make([]float64, r.tasks)
		for t := range list {
			list[t] = math.Inf(-1)
		}
		return list
	}

	return Pass{
		Shared: true,
		New:    func() any { return fresh() },
		Each: func(stat any, b *Block) {
			b.Deltas()
			for t, top := range stat.([]float64) {
				for i := range b.Out {
					top = max(top, r.balance(b, t, i))
				}
				stat.([]float64)[t] = top
			}
		},
		End: func(stats []any) ([]Pass, error) {
			r.top = fresh()
			for _, s := range stats {
				for t, v := range s.([]float64) {
					r.top[t] = max(r.top[t], v)
				}
			}
			return nil, nil
		},
	}
}

func (r *pcbRun) apply(b *Block) {
	b.Deltas()
	lambda := numbers(r.group[b.Tensor], "lambda")
	for i := range b.Out {
		var total, shares float64
		for t := range r.tasks {
			s := 0.0
			if r.top[t] > r.floor[t] {
				// Rounded as the floor was: of the element that the floor is from, nothing may be left. A rest of
				// rounding would count in full where no other model has a share.
				s = max(0, float64(float32(r.balance(b, t, i)))-r.floor[t]) / (r.top[t] - r.floor[t])
			}

			v := float64(b.X[t][i])
			total += lambda[t] * math.Copysign(r.clamp(t, v), v) * s
			shares += s
		}

		b.Out[i] = float32(float64(b.Base[i]) + total/max(shares, 1e-12))
	}
}
