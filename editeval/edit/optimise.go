package edit

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/editeval/edit/internal/probe"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// Encoded is a request as token ids.
type Encoded struct {
	Prompts  [][]int32 // every template with the prompt in it, without the target; the first is the prompt alone
	Lookup   []int     // position of the subject's last token in each
	Groups   []int     // sizes of consecutive groups of prompts: a key is the mean over groups of the mean inside a group
	Target   []int32   // what shall follow
	KL       []int32   // a sentence about the subject whose continuation shall stay
	KLLookup int       // the position whose continuation that is
}

// Loss is one iteration of the search for a value.
type Loss struct {
	NLL   float64 `json:"nll"`        // mean over prompts of the mean of -log p over the target's tokens
	KL    float64 `json:"kl"`         // times its factor
	Decay float64 `json:"wd"`         // factor · ‖d‖/‖v0‖²
	Total float64 `json:"loss"`       //
	Norm  float64 `json:"delta_norm"` // of d, before the step
}

// site is where a vector is added at the lookup positions: a linear's output, or what leaves a block.
type site struct {
	linear string // empty: what leaves the block
	block  int
}

// goal is one request on the way to its value.
type goal struct {
	req     *Encoded
	v0, d   [][]float64 // by site
	grads   [][]float64
	adam    []probe.Adam
	initial []float64 // log-probabilities of the sentence about the subject before the edit
	history []Loss
	nll, kl float64
	p, pmax float64 // mean probability of the target's tokens, and of the likeliest ones
	soft    bool    // PMET: the target is reached, its loss counts less
	done    bool
	failed  bool
}

// descent is how values are searched.
type descent struct {
	hp    *HParams
	sites []site
	pmet  bool // the schedule of PMET
}

// optimise finds for every request the vectors that make the target likely when they are added at the sites (ROME: compute_v.py; MEMIT:
// compute_z.py). All requests of a pass share it; each has its own loss, step and end.
func (d descent) optimise(ctx context.Context, m *lm.Model, reqs []Encoded) ([]*goal, error) {
	goals := make([]*goal, len(reqs))
	for i := range reqs {
		goals[i] = &goal{
			req: &reqs[i], v0: make([][]float64, len(d.sites)), d: make([][]float64, len(d.sites)), grads: make([][]float64, len(d.sites)),
			adam: make([]probe.Adam, len(d.sites)),
		}
	}
	size := func(g *goal) int {
		n := len(g.req.KL) + 1
		for _, p := range g.req.Prompts {
			n += len(p) + len(g.req.Target)
		}
		return n
	}
	for _, c := range probe.Chunks(goals, size) {
		for it := range d.hp.Steps {
			active := undone(goals[c[0]:c[1]])
			if len(active) == 0 {
				break
			}
			if err := d.pass(ctx, m, active); err != nil {
				return nil, err
			}
			for _, g := range active {
				d.advance(g, it == d.hp.Steps-1)
			}
		}
	}
	return goals, nil
}

func undone(goals []*goal) []*goal {
	var out []*goal
	for _, g := range goals {
		if !g.done {
			out = append(out, g)
		}
	}
	return out
}

// advance notes the loss and takes a step, or ends the search.
func (d descent) advance(g *goal, last bool) {
	hp := d.hp
	factor := 1.0
	if g.soft {
		factor = 0.1
	}
	decay, size := 0.0, 0.0
	for s := range d.sites {
		n := probe.Norm(g.d[s])
		size = math.Hypot(size, n)
		decay += hp.WeightDecay * n / max(probe.Dot(g.v0[s], g.v0[s]), math.SmallestNonzeroFloat64)
	}
	l := Loss{NLL: g.nll, KL: g.kl, Decay: decay, Total: factor*g.nll + g.kl + decay, Norm: size}
	g.history = append(g.history, l)
	if g.failed || !probe.Finite([]float64{l.Total}) {
		g.failed, g.done = true, true
		return
	}
	reached := d.pmet && g.p == g.pmax
	if l.Total < 0.05 || last || reached && g.kl <= 0.01 {
		g.done = true
		return
	}
	for s := range d.sites {
		g.move(s, hp)
	}
	g.soft = reached
}

// move takes the step of one vector and keeps it in its ball.
func (g *goal) move(s int, hp *HParams) {
	d, v0 := g.d[s], g.v0[s]
	if n := probe.Norm(d); n > 0 {
		f := hp.WeightDecay / n / max(probe.Dot(v0, v0), math.SmallestNonzeroFloat64)
		g.grads[s] = probe.Plus(g.grads[s], f, d)
	}
	g.adam[s].Lr = hp.LearningRate
	g.adam[s].Step(d, g.grads[s])
	if n, limit := probe.Norm(d), hp.Clamp*probe.Norm(v0); n > limit {
		g.d[s] = probe.Scaled(limit/n, d)
	}
	if !probe.Finite(g.d[s]) {
		g.failed, g.done = true, true
	}
}

// sum is one row of logits that counts.
type summand struct {
	g      *goal
	weight float64 // of -log p; 0: the row of the sentence about the subject
}

// batch is one pass over some goals.
type batch struct {
	descent
	goals  []*goal
	ids    [][]int32
	labels [][]int32
	at     []int // rows of the pass where the vectors are added
	owner  []int // and whose they are
	bare   []bool
	counts []summand
	next   int
	rows   probe.Rows
}

// lay builds the sequences of a pass.
func (d descent) lay(dev kernels.Device, goals []*goal) *batch {
	b := &batch{descent: d, goals: goals, rows: probe.Rows{Dev: dev}}
	start := 0
	for gi, g := range goals {
		r := g.req
		for pi, p := range r.Prompts {
			ids := append(append([]int32(nil), p...), r.Target...)
			labels := ignored(len(ids))
			copy(labels[len(p):], r.Target)
			for range r.Target {
				b.counts = append(b.counts, summand{g, 1 / float64(len(r.Prompts)*len(r.Target))})
			}
			b.put(ids, labels, start+r.Lookup[pi], gi, pi == 0)
			start += len(ids)
		}
		if len(r.KL) == 0 {
			continue
		}
		ids := append(append([]int32(nil), r.KL...), 0) // one more, so that the last position predicts something
		labels := ignored(len(ids))
		labels[r.KLLookup+1] = ids[r.KLLookup+1]
		b.counts = append(b.counts, summand{g, 0})
		b.put(ids, labels, start+r.KLLookup, gi, false)
		start += len(ids)
	}
	return b
}

func ignored(n int) []int32 {
	labels := make([]int32, n)
	for i := range labels {
		labels[i] = lm.IgnoreLabel
	}
	return labels
}

func (b *batch) put(ids, labels []int32, at, owner int, bare bool) {
	b.ids, b.labels = append(b.ids, ids), append(b.labels, labels)
	b.at, b.owner, b.bare = append(b.at, at), append(b.owner, owner), append(b.bare, bare)
}

// pass computes losses and gradients of some goals.
func (d descent) pass(ctx context.Context, m *lm.Model, goals []*goal) error {
	b := d.lay(m.Device(), goals)
	for _, g := range goals {
		g.nll, g.kl, g.p, g.pmax = 0, 0, 0, 0
		for s := range d.sites {
			g.grads[s] = nil
		}
	}
	o := lm.BackwardOptions{
		Labels: b.labels, Hooks: &lm.Hooks{}, Objective: b.objective, Keep: d.hp.Keep(),
		WantHidden: func(int) bool { return false }, Want: func(string) bool { return false },
	}
	for s, at := range d.sites {
		if at.linear == "" {
			b.hook(s, at.block+1, &o)
			continue
		}
		undo, err := m.Attach(b.tap(s), at.linear)
		if err != nil {
			return err
		}
		defer undo()
	}
	if _, err := m.Backward(ctx, b.ids, o); err != nil {
		return fmt.Errorf("searching the values of %d edits: %w", len(goals), err)
	}
	return nil
}

// visit meets a site's value x at one place and says what is added.
func (b *batch) visit(s, i int, x []float64) []float64 {
	g := b.goals[b.owner[i]]
	if g.v0[s] == nil && b.bare[i] {
		g.v0[s], g.d[s] = append([]float64(nil), x...), make([]float64, len(x))
	}
	return g.d[s]
}

// gather adds a gradient.
func (b *batch) gather(s, i int, dy []float64) {
	g := b.goals[b.owner[i]]
	if g.grads[s] == nil {
		g.grads[s] = make([]float64, len(dy))
	}
	for j, v := range dy {
		g.grads[s][j] += v
	}
}

// tap is the site at a linear's output.
func (b *batch) tap(s int) *probe.Tap {
	return &probe.Tap{
		Rows: b.rows, At: b.at, None: kernels.MatOf(kernels.WrapF32(make([]float32, 1)), 1, 1),
		See:  func(_ lm.Linear, i int, _, y []float64) []float64 { return b.visit(s, i, y) },
		Grad: func(_ lm.Linear, i int, dy []float64) { b.gather(s, i, dy) },
	}
}

// hook is the site at a hidden state.
func (b *batch) hook(s, state int, o *lm.BackwardOptions) {
	o.WantHidden = func(n int) bool { return n == state }
	o.Edit = func(n int, x kernels.Mat) error {
		if n != state {
			return nil
		}
		for i, at := range b.at {
			v, err := b.rows.Get(x, at)
			if err != nil {
				return err
			}
			if add := b.visit(s, i, v); add != nil {
				if err := b.rows.Put(x, at, probe.Plus(v, 1, add)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	o.Hooks.HiddenGrad = func(_ int, g kernels.Mat) error {
		for i, at := range b.at {
			dy, err := b.rows.Get(g, at)
			if err != nil {
				return err
			}
			b.gather(s, i, dy)
		}
		return nil
	}
}

// objective is the loss of the rows that count: -log p of targets, and the divergence of the sentences about subjects.
func (b *batch) objective(logits kernels.Mat, labels []int32, losses []float64) error {
	first := b.next
	b.next += len(labels)
	rowsOf := make([][]float64, len(labels))
	for i := range labels {
		var err error
		if rowsOf[i], err = b.rows.Get(logits, i); err != nil {
			return err
		}
	}
	parts := make([]rowLoss, len(labels))
	probe.Parallel(len(labels), func(i int) { parts[i] = b.row(b.counts[first+i], rowsOf[i], labels[i]) })
	for i := range labels {
		c := b.counts[first+i]
		losses[i] = c.add(parts[i])
		if err := b.rows.Put(logits, i, rowsOf[i]); err != nil {
			return err
		}
	}
	return nil
}

// rowLoss is what one row gives.
type rowLoss struct {
	nll, p, pmax, kl float64
	bad              bool
}

// add books a row's loss with its goal and returns it.
func (c summand) add(r rowLoss) float64 {
	c.g.failed = c.g.failed || r.bad
	if r.bad {
		return 0
	}
	c.g.nll += c.weight * r.nll
	c.g.p += c.weight * r.p
	c.g.pmax += c.weight * r.pmax
	c.g.kl += r.kl
	return c.weight*r.nll + r.kl
}

// row replaces the logits z of one row by the gradient.
func (b *batch) row(c summand, z []float64, label int32) rowLoss {
	if !probe.Finite(z) {
		clear(z)
		return rowLoss{bad: true}
	}
	logSoftmax(z)
	if c.weight == 0 {
		return rowLoss{kl: b.divergence(c.g, z)}
	}
	r := rowLoss{nll: -z[label], p: math.Exp(z[label]), pmax: math.Inf(-1)}
	weight := c.weight
	if c.g.soft {
		weight *= 0.1
	}
	for j, v := range z {
		r.pmax = max(r.pmax, v)
		z[j] = weight * math.Exp(v)
	}
	z[label] -= weight
	r.pmax = math.Exp(r.pmax)
	return r
}

// divergence is factor·KL(edited ‖ initial), or KL(initial ‖ edited) where the hyper-parameters say so, of log-probabilities z, which
// are replaced by the gradient.
func (b *batch) divergence(g *goal, z []float64) float64 {
	if g.initial == nil {
		g.initial = append([]float64(nil), z...)
	}
	kl, f := 0.0, b.hp.KL
	for j, v := range z {
		if b.hp.ReverseKL {
			kl += math.Exp(g.initial[j]) * (g.initial[j] - v)
		} else {
			kl += math.Exp(v) * (v - g.initial[j])
		}
	}
	for j, v := range z {
		if b.hp.ReverseKL {
			z[j] = f * (math.Exp(v) - math.Exp(g.initial[j]))
		} else {
			z[j] = f * math.Exp(v) * (v - g.initial[j] - kl)
		}
	}
	return f * kl
}

// logSoftmax replaces logits by log-probabilities.
func logSoftmax(z []float64) {
	top := math.Inf(-1)
	for _, v := range z {
		top = max(top, v)
	}
	s := 0.0
	for _, v := range z {
		s += math.Exp(v - top)
	}
	s = top + math.Log(s)
	for j := range z {
		z[j] -= s
	}
}
