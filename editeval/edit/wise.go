package edit

import (
	"context"
	"math"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/lm/arch"
)

// WISE (Wang et al., arXiv 2405.14768; EasyEdit: models/wise) trains a copy W' of a down-projection, of which a random
// part of the elements may change, and routes by how much the copy's output differs from the original's: a row is
// answered by W' where ‖φ(W'x) - φ(Wx)‖, φ the MLP's activation, is large enough. So that facts differ much and
// ordinary text hardly does, the loss has, beside -log p of the answer, hinges
//
//	[d(text) - d(fact) + γ]₊ + [d(text) - α]₊ + [β - d(fact)]₊
//
// each as its mean over the rows, or pairs of rows, where it is not 0. "Large enough" is a fraction of the least mean
// distance that a fact was left with. After so many facts the next copy begins; of several that answer, the one
// which differs most does.
//
// The publication takes a prompt's mean over tokens for d; here every row is its own (see sidecar), and only those
// learn that Rows says. Its code also decays weights by 1e-5 a step, keeps them within 1 of the original, and merges
// copies by TIES to save memory after 1000 facts; none of that is done here.

// drawnRows is how many rows of ordinary text a fact is held against.
const drawnRows = 32

// chosen is the output of the copy that answers a row; nil: the model's own stays.
func (s *sideMemory) chosen(x, y []float64) []float64 {
	var best []float64
	far := math.Inf(-1)
	own := s.active(y)
	for i := range s.shards {
		fresh := site.Plus(y, 1, s.shards[i].times(x))
		if d := site.Distance(s.active(fresh), own); d >= s.shards[i].least && d > far {
			best, far = fresh, d
		}
	}
	return best
}

// active is φ of a vector.
func (s *sideMemory) active(y []float64) []float64 {
	out := make([]float64, len(y))
	for i, v := range y {
		out[i], _ = activated(s.activation, v)
	}
	return out
}

// activated is the value of an activation and its derivative.
func activated(f arch.Activation, x float64) (y, slope float64) {
	switch f {
	case arch.SiLU:
		g := 1 / (1 + math.Exp(-x))
		return x * g, g * (1 + x*(1-g))
	case arch.GELU:
		p := (1 + math.Erf(x/math.Sqrt2)) / 2
		return x * p, p + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	case arch.GELUTanh:
		const a, c = 0.044715, 0.7978845608028654 // √(2/π)
		t := math.Tanh(c * (x + a*x*x*x))
		return x * (1 + t) / 2, (1+t)/2 + x*(1-t*t)*c*(1+3*a*x*x)/2
	case arch.ReLU:
		if x <= 0 {
			return 0, 0
		}
	}
	return x, 1
}

// wise teaches a copy one fact by gradient descent.
func wise(ctx context.Context, e *Editing, reqs []Encoded) (*change, error) {
	l, err := site.Linear(e.m, e.hp.Layers[0], arch.Down)
	if err != nil {
		return nil, err
	}

	side, part, err := e.side(ctx, l, kindWISE)
	if err != nil {
		return nil, err
	}

	text, gives, err := e.ordinary(ctx, l)
	if err != nil {
		return nil, err
	}
	t, err := e.lesson(ctx, l, &reqs[0])
	if err != nil {
		return nil, err
	}
	defer t.free()

	facts := len(t.rows)
	c := &copyLesson{
		lesson: t, side: side, facts: facts, open: side.mask(part.Seed, part.Shard, part.Mask),
		inputs: linalg.New(facts+min(drawnRows, text.Rows), l.In), change: linalg.New(l.Out, l.In),
	}
	c.own = linalg.New(c.inputs.Rows, l.Out)
	for i := range facts {
		copy(c.inputs.Row(i), t.keys.Row(i))
		copy(c.own.Row(i), t.own.Row(i))
	}
	draw := rng.New(e.seed, "wise text").With(uint64(len(e.steps)))
	for i := facts; i < c.inputs.Rows; i++ {
		k := draw.Below(uint64(i), text.Rows)
		copy(c.inputs.Row(i), text.Row(k))
		copy(c.own.Row(i), gives.Row(k))
	}
	c.begin(part.Shard)

	losses, err := t.descend(ctx, c.give, c.hinges, c.step)
	if err != nil {
		return nil, err
	}

	// Distances after the last step.
	sum := 0.0
	for i := range facts {
		sum += c.distance(i)
	}
	part.Least = e.hp.Threshold * sum / float64(facts)
	part.Left, part.Right = pack(c.slopes.T(), false), pack(c.inputs.T(), false)
	return &change{part: part, losses: [][]float64{losses}}, nil
}

// copyLesson is a fact that a copy learns.
type copyLesson struct {
	*lesson
	side   *sideMemory
	facts  int              // rows of the fact; the others are of ordinary text
	open   func(i int) bool // elements that may change
	inputs linalg.Matrix    // what the rows read
	own    linalg.Matrix    // what the model gives for it
	known  linalg.Matrix    // and the copy before this fact, less that
	added  linalg.Matrix    // and what this fact has changed of that
	slopes linalg.Matrix    // Σ of the steps: the change is slopesᵀ·inputs, where it is open
	change linalg.Matrix    // which is this
	gram   linalg.Matrix    // inner products of what the rows read
	unit   float64          // of distances
	pull   []float64        // derivatives of the hinges by the rows' distances
}

// begin computes what does not change.
func (c *copyLesson) begin(shard int) {
	n := c.inputs.Rows
	c.known = linalg.New(n, c.linear.Out)
	c.added, c.slopes = linalg.New(n, c.linear.Out), linalg.New(n, c.linear.Out)
	for i := c.facts; i < n; i++ {
		c.unit += site.Norm(c.side.active(c.own.Row(i))) / float64(n-c.facts)
	}
	c.gram = c.e.gram(c.inputs, c.inputs)

	if shard < len(c.side.shards) {
		mmapsafe.Each(0, n, func(i int) { copy(c.known.Row(i), c.side.shards[shard].times(c.inputs.Row(i))) })
	}
}

// give is what the copy adds at the fact's rows.
func (c *copyLesson) give() linalg.Matrix {
	n := c.inputs.Rows
	c.e.solver.Mul(c.change, c.slopes, c.inputs, linalg.Product{TransA: true})
	if c.open != nil {
		mmapsafe.Each(0, c.change.Rows, func(i int) {
			for j, row := 0, c.change.Row(i); j < len(row); j++ {
				if !c.open(i*len(row) + j) {
					row[j] = 0
				}
			}
		})
	}
	c.e.solver.Mul(c.added, c.inputs, c.change, linalg.Product{TransB: true})

	add := linalg.New(c.facts, c.linear.Out)
	for i := range n {
		for j, v := range c.known.Row(i) {
			c.added.Row(i)[j] += v
		}
		if i < c.facts {
			copy(add.Row(i), c.added.Row(i))
		}
	}
	return add
}

// distance is d of a row.
func (c *copyLesson) distance(i int) float64 {
	return site.Distance(c.side.active(site.Plus(c.own.Row(i), 1, c.added.Row(i))), c.side.active(c.own.Row(i)))
}

// step moves the copy.
func (c *copyLesson) step(grads linalg.Matrix) {
	all := linalg.New(c.inputs.Rows, c.linear.Out)
	for i := range all.Rows {
		g := c.toward(i, c.pull[i])
		if i < c.facts {
			g = site.Plus(g, 1, grads.Row(i))
		}
		copy(all.Row(i), g)
	}

	// The length is that of the gradient of the whole matrix, as if all of it could change.
	rate := c.e.hp.LearningRate * c.e.clip(productNorm(c.e.gram(all, all), c.gram))
	for i, v := range all.Data {
		c.slopes.Data[i] -= rate * v
	}
}

// hinges are the loss of the distances; they leave its derivatives by each.
func (c *copyLesson) hinges() (loss float64) {
	n := c.inputs.Rows
	d, pull := make([]float64, n), make([]float64, n)
	c.pull = pull
	for i := range d {
		d[i] = c.distance(i)
	}

	alpha, beta := c.unit*c.e.hp.Margin[0], c.unit*c.e.hp.Margin[1]
	gamma := c.unit * c.e.hp.Margin[2]
	type term struct {
		value    float64
		down, up int // the row that shall be nearer, and the one that shall be farther; -1: none
	}
	mean := func(list []term) {
		for _, t := range list {
			loss += t.value / float64(len(list))
			if t.down >= 0 {
				pull[t.down] += 1 / float64(len(list))
			}
			if t.up >= 0 {
				pull[t.up] -= 1 / float64(len(list))
			}
		}
	}

	var pairs, near, far []term
	for k := c.facts; k < n; k++ {
		if v := d[k] - alpha; v > 0 {
			near = append(near, term{v, k, -1})
		}
		for i := range c.facts {
			if v := d[k] - d[i] + gamma; v > 0 {
				pairs = append(pairs, term{v, k, i})
			}
		}
	}
	for i := range c.facts {
		if v := beta - d[i]; v > 0 {
			far = append(far, term{v, -1, i})
		}
	}
	mean(pairs)
	mean(near)
	mean(far)
	return loss
}

// toward is the gradient of a row's distance, times a factor.
func (c *copyLesson) toward(i int, factor float64) []float64 {
	out := make([]float64, c.linear.Out)
	d := c.distance(i)
	if factor == 0 || d == 0 {
		return out
	}
	for j, own := range c.own.Row(i) {
		now, slope := activated(c.side.activation, own+c.added.At(i, j))
		was, _ := activated(c.side.activation, own)
		out[j] = factor * (now - was) / d * slope
	}
	return out
}
