package lm

import (
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// mlp computes the feed-forward branch of h, or adds it to dst. A mixture can only be added.
func (p *pass) mlp(b *block, dst, h kernels.Mat, accumulate bool) error {
	if b.mixture {
		return p.mixture(b, dst, h)
	}
	return p.feedForward(dst, h, &b.experts[0], accumulate)
}

// feedForward computes dst (+)= down(act(gate(x))·up(x)), or down(act(up(x))).
func (p *pass) feedForward(dst, x kernels.Mat, f *mlp, accumulate bool) error {
	inner := f.down.In
	var mid kernels.Mat
	switch act := p.m.activation; {
	case f.gateUp != nil:
		y := p.mat(sGate, x.Rows, 2*inner)
		if err := p.linear(y, x, f.gateUp, false); err != nil {
			return err
		}
		mid = p.mat(sUp, x.Rows, inner)
		p.ops.Gate(mid, y.ColRange(0, inner), y.ColRange(inner, 2*inner), act)
	case f.gate != nil:
		gate := p.mat(sGate, x.Rows, inner)
		mid = p.mat(sUp, x.Rows, inner)
		if err := p.linear(gate, x, f.gate, false); err != nil {
			return err
		}
		if err := p.linear(mid, x, f.up, false); err != nil {
			return err
		}
		p.ops.Gate(mid, gate, mid, act)
	default:
		mid = p.mat(sUp, x.Rows, inner)
		if err := p.linear(mid, x, f.up, false); err != nil {
			return err
		}
		p.ops.Activate(mid, mid, act)
	}
	return p.linear(dst, mid, f.down, accumulate)
}

// mixture sends every token to its experts and adds their weighted outputs to dst. Tokens are routed on the host; an
// expert runs once, on all of its tokens.
func (p *pass) mixture(b *block, dst, h kernels.Mat) error {
	weights := p.mat(sRoute, h.Rows, p.m.config.Experts)
	p.ops.MatMulNT(weights, h, b.router.mat, kernels.MatMul{})
	p.ops.Softmax(weights, weights)
	if err := p.route(weights); err != nil {
		return err
	}
	for e := range b.experts {
		r := &p.routes[e]
		if len(r.ids) == 0 {
			continue
		}
		x, y := p.mat(sExpertIn, len(r.ids), h.Cols), p.mat(sExpertOut, len(r.ids), h.Cols)
		p.ops.Gather(x, h, r.ids, 1)
		if err := p.feedForward(y, x, &b.experts[e], false); err != nil {
			return err
		}
		p.ops.ScatterAdd(dst, y, r.ids, r.weights)
	}
	if b.shared == nil {
		return nil
	}
	return p.sharedExpert(b, dst, h)
}

// expertTokens are the tokens of one expert, ascending, and their weights.
type expertTokens struct {
	ids     []int32
	weights []float32
}

// route picks the experts of every token: the TopK largest probabilities, of equal ones the lower expert first.
func (p *pass) route(weights kernels.Mat) error {
	c := p.m.config
	if len(p.routes) < c.Experts {
		p.routes = make([]expertTokens, c.Experts)
	}
	for e := range p.routes {
		p.routes[e].ids, p.routes[e].weights = p.routes[e].ids[:0], p.routes[e].weights[:0]
	}
	token := int32(0)
	top := make([]int, 0, c.TopK+1)
	return p.onHost(weights, func(row []float32) {
		top = topK(top[:0], row, c.TopK)
		sum := float32(1)
		if c.NormTopK {
			sum = 0
			for _, e := range top {
				sum += row[e]
			}
		}
		for _, e := range top {
			r := &p.routes[e]
			r.ids, r.weights = append(r.ids, token), append(r.weights, row[e]/sum)
		}
		token++
	})
}

// topK appends the indices of the k largest values, largest first.
func topK(top []int, row []float32, k int) []int {
	for i, v := range row {
		if len(top) == k && !(v > row[top[k-1]]) {
			continue
		}
		at := len(top)
		for at > 0 && v > row[top[at-1]] {
			at--
		}
		top = slices.Insert(top, at, i)
		top = top[:min(len(top), k)]
	}
	return top
}

// sharedExpert adds the expert that every token visits, weighted by the sigmoid of its router.
func (p *pass) sharedExpert(b *block, dst, h kernels.Mat) error {
	y := p.mat(sExpertOut, h.Rows, h.Cols)
	if err := p.feedForward(y, h, b.shared, false); err != nil {
		return err
	}
	gate := p.mat(sRoute, h.Rows, 1)
	p.ops.MatMulNT(gate, h, b.sharedRouter.mat, kernels.MatMul{})
	r := &p.routes[0]
	r.ids, r.weights = r.ids[:0], r.weights[:0]
	if err := p.onHost(gate, func(row []float32) {
		r.ids = append(r.ids, int32(len(r.ids)))
		r.weights = append(r.weights, float32(1/(1+math.Exp(-float64(row[0])))))
	}); err != nil {
		return err
	}
	p.ops.ScatterAdd(dst, y, r.ids, r.weights)
	return nil
}
