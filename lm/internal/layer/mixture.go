package layer

import (
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// route is the tokens of one expert, ascending, and their weights.
type route struct {
	ids     []int32
	weights []float32
}

// A mixture of experts (Shazeer et al., 2017; Mixtral, Qwen2-MoE): p = softmax(router·h), the TopK largest of p choose
// the experts of a token, y = Σ w_e·expert_e(h) with w_e = p_e, or p_e over the sum of the chosen ones (NormTopK), and
// where there is a shared expert, + sigmoid(g·h)·shared(h).
//
// The loop is over experts, not over tokens: an expert's tokens are gathered, pass its matrices together, so that these
// are read once, and are added back with their weights. Experts go in the order of their numbers, and so do the sums of
// each token.

// mixture sends every token to its experts and adds their weighted outputs to dst. Tokens are routed on the host; an
// expert runs once, on all of its tokens.
func (p *Pass) mixture(b *Block, dst, h kernels.Mat) error {
	// In full precision: a rounding that exchanged two experts of nearly equal weight would change the token entirely.
	weights := p.mat(sRoute, h.Rows, p.Config.Experts)
	if err := p.MatMulNT(weights, h, b.Router, kernels.MatMul{Bias: b.RouterBias.Mat()}); err != nil {
		return err
	}
	if err := p.closeOff(weights, p.routing(b).Keep); err != nil {
		return err
	}
	if err := p.score(weights); err != nil {
		return err
	}
	if err := p.route(b, weights); err != nil {
		return err
	}

	at := 0
	for e := range b.Experts {
		r := &p.t.routes[e]
		if len(r.ids) == 0 {
			continue
		}

		x, in := p.mat(sExpertIn, len(r.ids), h.Cols), p.expertInner(&at, len(r.ids))
		y := p.inside(sExpertOut, in.row, len(r.ids), h.Cols)
		p.ops.Gather(x, h, r.ids, 1)
		p.chosen = r.ids
		err := p.feedForward(y, x, &b.Experts[e], in, false)
		p.chosen = nil
		if err != nil {
			return err
		}
		if p.Expert != nil && !p.replay {
			p.Expert(b, e, y, r.ids, r.weights)
		}
		if !dst.IsZero() {
			p.ops.ScatterAdd(dst, y, r.ids, r.weights)
		}
	}

	if b.Shared == nil {
		return nil
	}

	return p.sharedExpert(b, dst, h)
}

// expertInner gives the place of the next expert's n rows: one after another where everything is recorded.
func (p *Pass) expertInner(at *int, n int) inner {
	in := plainInner
	if p.t.full {
		in.row = *at
		*at += n
	}
	return in
}

// mixing is what the backward pass of a mixture carries from expert to expert.
type mixing struct {
	dh, dy, h kernels.Mat
	routed    bool      // the gradients of the experts' weights are needed
	dweights  []float32 // [tokens, experts]
	at        int       // rows of the tape that earlier experts have
}

// mixtureBackward computes the gradients of mixture. The choice of experts is not differentiated; the router's gradient
// comes through the weights of the chosen ones.
func (p *Pass) mixtureBackward(b *Block, dh, dy, h kernels.Mat, accumulate bool) error {
	if !dh.IsZero() && !accumulate {
		if err := p.Zero(dh); err != nil {
			return err
		}
	}

	// Frozen routers whose input wants no gradient need no weights of experts either.
	m := &mixing{dh: dh, dy: dy, h: h, routed: !dh.IsZero() || p.wants(Norm{W: b.Router, B: b.RouterBias})}
	if m.routed {
		m.dweights = make([]float32, h.Rows*p.Config.Experts)
	}

	for e := range b.Experts {
		if err := p.expertBackward(b, e, m); err != nil {
			return err
		}
	}

	if m.routed {
		if err := p.routerBackward(b, m); err != nil {
			return err
		}
	}

	if b.Shared == nil {
		return nil
	}

	return p.sharedBackward(b, m)
}

// expertBackward computes the gradients of one expert and of its tokens' weights.
func (p *Pass) expertBackward(b *Block, e int, m *mixing) error {
	f, r := &b.Experts[e], &p.t.routes[e]
	n := len(r.ids)
	if n == 0 {
		return p.zeroGrads(f)
	}

	// The expert's input is gathered again; its inner matrices are on the tape, in the rows that the forward pass gave
	// it.
	x, in := p.work(gInput, n, m.h.Cols), p.expertInner(&m.at, n)
	rows, dy := p.work(gRows, n, m.h.Cols), p.work(gExpertOut, n, m.h.Cols)
	p.ops.Gather(x, m.h, r.ids, 1)
	p.ops.Gather(rows, m.dy, r.ids, 1)

	if m.routed { // y = w·out, so dw = dy·out
		dots, err := p.rowDots(rows, p.inside(sExpertOut, in.row, n, m.h.Cols))
		if err != nil {
			return err
		}

		for i, id := range r.ids {
			m.dweights[int(id)*p.Config.Experts+e] = dots[i]
		}
	}

	// An expert sees its tokens' gradients times the weights with which its results were added.
	if err := p.scaleRows(dy, rows, r.weights); err != nil {
		return err
	}
	if m.dh.IsZero() {
		return p.feedForwardBackward(kernels.Mat{}, dy, x, f, in, false)
	}

	dx := p.work(gExpertIn, n, m.h.Cols)
	if err := p.feedForwardBackward(dx, dy, x, f, in, false); err != nil {
		return err
	}

	p.ops.ScatterAdd(m.dh, dx, r.ids, Ones(n))
	return nil
}

// zeroGrads writes the gradients of an expert that no token visits: those of matrices are overwritten by the products
// that are left out here, and would be what was in the memory before. Those with one row are zeros already.
func (p *Pass) zeroGrads(f *MLP) error {
	for _, l := range f.linears() {
		if l == nil {
			continue
		}

		if g := p.grad(l.W); !g.IsZero() {
			if err := p.Zero(g); err != nil {
				return err
			}
		}
	}

	return nil
}

// routerBackward computes the gradients of the router from those of the weights that it gave.
func (p *Pass) routerBackward(b *Block, m *mixing) error {
	c := p.Config
	probs, d := p.mat(sRoute, m.h.Rows, c.Experts), p.work(gRoute, m.h.Rows, c.Experts)
	choice, err := p.newChoice(b)
	if err != nil {
		return err
	}

	token := 0
	err = p.onHost(func(rows [][]float32) {
		dweights := m.dweights[token*c.Experts:][:c.Experts]
		// The scale was applied last, after the normalisation.
		for e := range dweights {
			dweights[e] *= c.RoutedScale
		}
		weightsBackward(rows[0], rows[1], dweights, choice.of(rows[1]), c.NormTopK)
		token++
	}, d, probs)
	if err != nil {
		return err
	}

	dlogits := p.work(gRouter, m.h.Rows, c.Experts)
	if err := p.scoreBackward(dlogits, d, probs); err != nil {
		return err
	}
	if g := p.grad(b.RouterBias); !g.IsZero() {
		p.ops.ColSum(g, dlogits)
	}
	p.matrixBackward(b.Router, dlogits, m)

	return nil
}

// weightsBackward writes the gradients of a token's probabilities from those of the chosen experts' weights, which are
// the probabilities, or with norm these divided by their sum.
func weightsBackward(d, probs, dweights []float32, top []int, norm bool) {
	clear(d)
	sum, dot := 1.0, 0.0
	if norm {
		sum = 0
		for _, e := range top {
			sum += float64(probs[e])
			dot += float64(probs[e]) * float64(dweights[e])
		}
		dot /= sum
	}

	for _, e := range top {
		d[e] = float32((float64(dweights[e]) - dot) / sum)
	}
}

// matrixBackward computes the gradients of a router's matrix, and adds that of what it sees.
func (p *Pass) matrixBackward(w *Weight, dlogits kernels.Mat, m *mixing) {
	if g := p.grad(w); !g.IsZero() {
		p.ops.MatMulTN(g, dlogits, m.h, kernels.MatMul{}) // routers are never rounded
	}
	if !m.dh.IsZero() {
		p.ops.MatMulNN(m.dh, dlogits, w.Value, kernels.MatMul{Accumulate: true})
	}
}

// route picks the experts of every token: the TopK largest scores, of equal ones the lower expert first.
func (p *Pass) route(b *Block, weights kernels.Mat) error {
	c := p.Config
	if len(p.t.routes) <= c.Experts {
		p.t.routes = make([]route, c.Experts+1) // the last one is the shared expert's
	}

	routes := p.t.routes
	for e := range routes {
		routes[e].ids, routes[e].weights = routes[e].ids[:0], routes[e].weights[:0]
	}

	choice, err := p.newChoice(b)
	if err != nil {
		return err
	}

	token := int32(0)
	return p.onHost(func(rows [][]float32) {
		row := rows[0]
		top := choice.of(row)
		sum := float32(1)
		if c.NormTopK {
			sum = 0
			for _, e := range top {
				sum += row[e]
			}
		}

		for _, e := range top {
			r := &routes[e]
			r.ids, r.weights = append(r.ids, token), append(r.weights, row[e]/sum*c.RoutedScale)
		}

		token++
	}, weights)
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

// sharedExpert adds the expert that every token visits, weighted by the sigmoid of its router where it has one.
func (p *Pass) sharedExpert(b *Block, dst, h kernels.Mat) error {
	if b.SharedRouter == nil {
		return p.feedForward(dst, h, b.Shared, sharedInner, true)
	}

	y := p.mat(sSharedOut, h.Rows, h.Cols)
	if err := p.feedForward(y, h, b.Shared, sharedInner, false); err != nil {
		return err
	}

	gate := p.mat(sSharedRoute, h.Rows, 1)
	if err := p.MatMulNT(gate, h, b.SharedRouter, kernels.MatMul{}); err != nil {
		return err
	}

	// A scatter to every row is what multiplies each by a weight of its own.
	r := &p.t.routes[p.Config.Experts]
	r.ids, r.weights = r.ids[:0], r.weights[:0]
	if err := p.onHost(func(rows [][]float32) {
		r.ids = append(r.ids, int32(len(r.ids)))
		r.weights = append(r.weights, float32(1/(1+math.Exp(-float64(rows[0][0])))))
	}, gate); err != nil {
		return err
	}

	if !dst.IsZero() {
		p.ops.ScatterAdd(dst, y, r.ids, r.weights)
	}

	return nil
}

// sharedBackward computes the gradients of sharedExpert.
func (p *Pass) sharedBackward(b *Block, m *mixing) error {
	if b.SharedRouter == nil {
		return p.feedForwardBackward(m.dh, m.dy, m.h, b.Shared, sharedInner, true)
	}

	r := &p.t.routes[p.Config.Experts]
	if !m.dh.IsZero() || !p.grad(b.SharedRouter).IsZero() {
		dots, err := p.rowDots(m.dy, p.mat(sSharedOut, m.h.Rows, m.h.Cols))
		if err != nil {
			return err
		}

		dlogits := p.work(gRouter, m.h.Rows, 1)
		token := 0
		err = p.onHost(func(rows [][]float32) {
			s := float64(r.weights[token])
			rows[0][0] = float32(float64(dots[token]) * s * (1 - s)) // the slope of the sigmoid
			token++
		}, dlogits)
		if err != nil {
			return err
		}

		p.matrixBackward(b.SharedRouter, dlogits, m)
	}

	dy := p.work(gExpertOut, m.h.Rows, m.h.Cols)
	if err := p.scaleRows(dy, m.dy, r.weights); err != nil {
		return err
	}

	return p.feedForwardBackward(m.dh, dy, m.h, b.Shared, sharedInner, true)
}

// rowDots gives the scalar product of every row of a with that of b.
func (p *Pass) rowDots(a, b kernels.Mat) ([]float32, error) {
	dots := make([]float32, 0, a.Rows)
	err := p.onHost(func(rows [][]float32) {
		sum := 0.0
		for j, v := range rows[0] {
			sum += float64(v) * float64(rows[1][j])
		}
		dots = append(dots, float32(sum))
	}, a, b)
	return dots, err
}

// scaleRows writes every row of x, times its weight, to dst.
func (p *Pass) scaleRows(dst, x kernels.Mat, weights []float32) error {
	if err := p.Zero(dst); err != nil {
		return err
	}
	p.ops.ScatterAdd(dst, x, Rows(x.Rows), weights)
	return nil
}

// Rows lists the numbers of n rows.
func Rows(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

// Ones is n ones: rows that are added as they are.
func Ones(n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = 1
	}
	return s
}
