package method

import (
	"math"
)

// fusion takes the other model's elements where they matter most (arcee_fusion): where the importance
//
//	I = |x - b| · KL(softmax(x_row) ‖ softmax(b_row))
//
// is at least the median plus 1.5 times the distance of the quartiles, quantile q being the element of rank
// ⌊q(n-1)⌋ of the ascending order. The divergence is computed in float64, with 1e-8 added to every probability.
func fusion(t *Tensor) (*Program, error) {
	if p, err := lone(t); p != nil || err != nil {
		return p, err
	}
	if !t.Base {
		return nil, named(t, ErrNoBase)
	}

	r := &fusionRun{t: t, rows: make([]float64, t.Rows())}
	f := &finder{
		n: t.N, streams: 1,
		keys: func(b *Block, _ int) []float32 { return r.importance(b) },
		want: func(int, int64) []int64 {
			var ks []int64
			for _, q := range []float64{0.5, 0.25, 0.75} {
				ks = append(ks, t.N-int64(q*float64(t.N-1)))
			}
			return ks
		},
		take: func(_, _ int, c []Cut) int64 { return math.MaxInt64 },
	}

	p := &Program{Apply: r.apply, Memory: f.memory() + 8*t.Rows()}
	p.Passes = append([]Pass{r.divergences()}, f.passes(func() ([]Pass, error) {
		value := func(i int) float64 { return float64(math.Float32frombits(f.cuts[0][i].Value)) }
		r.threshold = value(0) + 1.5*(value(2)-value(1))
		return nil, nil
	})...)

	p.Rows = true
	return p, nil
}

type fusionRun struct {
	t         *Tensor
	rows      []float64 // divergence of every row
	threshold float64
}

// divergences is the pass that fills rows; every block writes its own.
func (r *fusionRun) divergences() Pass {
	cols := int(r.t.Cols())
	return Pass{
		Shared: true,
		New:    func() any { return make([]float64, 2*cols) },
		Each: func(stat any, b *Block) {
			buf := stat.([]float64)
			for first := 0; first+cols <= b.Len(); first += cols {
				row := (b.Off + int64(first)) / int64(cols)
				r.rows[row] = divergence(b.X[0][first:first+cols], b.Base[first:first+cols], buf[:cols], buf[cols:])
			}
		},
		End: func([]any) ([]Pass, error) { return nil, nil },
	}
}

// divergence is KL(softmax(x)+1e-8 ‖ softmax(y)+1e-8).
func divergence(x, y []float32, p, q []float64) (kl float64) {
	softmax(p, x)
	softmax(q, y)
	for i := range p {
		a, b := p[i]+1e-8, q[i]+1e-8
		kl += a * math.Log(a/b)
	}
	return max(kl, 0)
}

func softmax(dst []float64, x []float32) {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, float64(v))
	}

	total := 0.0
	for i, v := range x {
		dst[i] = math.Exp(float64(v) - top)
		total += dst[i]
	}

	for i := range dst {
		dst[i] /= total
	}
}

// importance is I of a block, in the first scratch slice.
func (r *fusionRun) importance(b *Block) []float32 {
	out := b.Temp(0)
	cols := r.t.Cols()
	row, col := b.Off/cols, b.Off%cols
	for i, x := range b.X[0] {
		out[i] = float32(math.Abs(float64(x)-float64(b.Base[i])) * r.rows[row])
		col++
		if col == cols {
			row, col = row+1, 0
		}
	}

	return out
}

func (r *fusionRun) apply(b *Block) {
	for i, v := range r.importance(b) {
		if float64(v) >= r.threshold {
			b.Out[i] = b.X[0][i]
		} else {
			b.Out[i] = b.Base[i]
		}
	}
}
