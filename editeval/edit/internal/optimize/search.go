package optimize

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// Loss is one iteration of the search for a value.
type Loss struct {
	NLL   float64 // mean over prompts of the mean of -log p over the target's tokens
	KL    float64 // times its factor
	Decay float64 // factor · ‖d‖/‖v0‖²
	Total float64 //
	Norm  float64 // of d, before the step
}

// Params are the hyper-parameters of a search.
type Params struct {
	Steps        int     // the last one without a step of Adam
	LearningRate float64 // of Adam
	WeightDecay  float64 // factor of ‖d‖/‖v0‖²
	Clamp        float64 // ‖d‖ is at most this times ‖v0‖
	KL           float64 // factor of the divergence of the sentence about the subject
	ReverseKL    bool    // KL(initial ‖ edited) instead of KL(edited ‖ initial)
	Settled      int     // ends once the target was top-1 everywhere so many times (ENCORE); 0: never
	Keep         int64   // bytes of activations that may be kept, so that decoder layers are not computed twice
}

// Site is where a vector is added at the lookup positions: a linear's output, or what leaves a decoder layer.
type Site struct {
	Linear string // empty: what leaves the layer
	Block  int
}

// first is the layer from which on a vector at the site matters.
func (s Site) first() int {
	if s.Linear == "" {
		return s.Block + 1
	}
	return s.Block
}

// Goal is one request on the way to its value.
type Goal struct {
	V0, D   [][]float64 // by site: what the model has there, and what is added
	History []Loss
	Failed  bool // the search left the finite numbers

	req     *Request
	labels  [][]int32
	grads   [][]float64
	adam    []site.Adam
	initial []float64 // log-probabilities of the sentence about the subject before the edit
	nll, kl float64
	p, pmax float64 // mean probability of the target's tokens, and of the top-1 ones
	soft    bool    // PMET: the target is reached, its loss counts less
	settled int     // passes in which it was
	done    bool
	tail    *lm.Tail
	group   *group
	rows    int // of a pass
	tokens  int // of the whole sequences
}

// Value is what the model shall have at the first site.
func (g *Goal) Value() []float64 { return site.Plus(g.V0[0], 1, g.D[0]) }

// group is the goals that were prepared together.
type group struct {
	tail *lm.Tail
	left int
}

// Descent is how values are searched. The sites belong to one layer.
type Descent struct {
	Params Params
	Sites  []Site
	PMET   bool // the schedule of PMET
}

// rowsInPass is how many rows a pass computes at most. Twice as many are no faster a row.
const rowsInPass = 1024

// Run finds for every request the vectors that make the target likely when they are added at the sites (ROME:
// compute_v.py; MEMIT: compute_z.py). A pass takes as many requests as fit, each with its own loss, step and
// end; where one ends, the next begins. What the model computes below the sites, and at tokens before the
// lookup positions, does not change in a search and is computed once.
func (d Descent) Run(ctx context.Context, m *lm.Model, reqs []Request) ([]*Goal, error) {
	goals := make([]*Goal, len(reqs))
	for i := range reqs {
		goals[i] = d.goal(&reqs[i])
	}

	// Requests differ much in the steps they need. Passes are kept full with those that wait, and not cut into batches
	// whose slowest member all others would wait for.
	waiting, active := goals, []*Goal(nil)
	defer func() {
		for _, g := range active {
			g.leave()
		}
	}()

	for len(waiting) > 0 || len(active) > 0 {
		n, rows := 0, 0
		for _, g := range active {
			rows += g.rows
		}

		for n < len(waiting) && (rows == 0 || rows+waiting[n].rows <= rowsInPass) {
			rows += waiting[n].rows
			n++
		}

		if err := d.prepare(ctx, m, waiting[:n]); err != nil {
			return nil, err
		}

		active, waiting = append(active, waiting[:n]...), waiting[n:]
		if err := d.pass(ctx, m, active); err != nil {
			return nil, err
		}

		var still []*Goal
		for _, g := range active {
			d.advance(g)
			if g.done {
				g.leave()
			} else {
				still = append(still, g)
			}
		}

		active = still
	}

	return goals, nil
}

func (d Descent) goal(r *Request) *Goal {
	n := len(d.Sites)
	g := &Goal{
		req: r, V0: make([][]float64, n), D: make([][]float64, n), grads: make([][]float64, n),
		adam: make([]site.Adam, n),
	}
	ids, from, labels := r.sequences()
	g.labels = labels

	for i := range ids {
		g.rows += len(ids[i]) - from[i]
		g.tokens += len(ids[i])
	}

	return g
}

// prepare computes what a search does not change.
func (d Descent) prepare(ctx context.Context, m *lm.Model, goals []*Goal) error {
	for _, c := range site.Chunks(goals, func(g *Goal) int { return g.tokens }) {
		var ids [][]int32
		var from []int
		for _, g := range goals[c[0]:c[1]] {
			s, at, _ := g.req.sequences()
			ids, from = append(ids, s...), append(from, at...)
		}

		t, err := m.NewTail(ctx, ids, from, d.Sites[0].first())
		if err != nil {
			return fmt.Errorf("searching the values of %d edits: %w", len(goals), err)
		}

		at, all := 0, &group{t, c[1] - c[0]}
		for _, g := range goals[c[0]:c[1]] {
			g.tail, g.group = t.Part(at, at+len(g.labels)), all
			at += len(g.labels)
		}
	}

	return nil
}

// leave gives back what a goal's passes needed, with the last of its group.
func (g *Goal) leave() {
	if g.group == nil {
		return
	}

	g.group.left--
	if g.group.left == 0 {
		g.group.tail.Free()
	}

	g.tail = nil
	g.group = nil
	g.initial = nil
}

// advance notes the loss and takes a step, or ends the search.
func (d Descent) advance(g *Goal) {
	hp := d.Params
	last := len(g.History) == hp.Steps-1
	factor := 1.0
	if g.soft {
		factor = 0.1
	}

	decay, size := 0.0, 0.0
	for s := range d.Sites {
		n := site.Norm(g.D[s])
		size = math.Hypot(size, n)
		decay += hp.WeightDecay * n / max(site.Dot(g.V0[s], g.V0[s]), math.SmallestNonzeroFloat64)
	}

	l := Loss{NLL: g.nll, KL: g.kl, Decay: decay, Total: factor*g.nll + g.kl + decay, Norm: size}
	g.History = append(g.History, l)

	if g.Failed || !site.Finite([]float64{l.Total}) {
		g.Failed, g.done = true, true
		return
	}

	// Where the target's tokens are top-1 everywhere, both means are the same sum.
	top := g.p == g.pmax
	if top {
		g.settled++
	}

	reached := d.PMET && top
	if l.Total < 0.05 || last || reached && g.kl <= 0.01 || hp.Settled > 0 && g.settled >= hp.Settled {
		g.done = true
		return
	}

	for s := range d.Sites {
		g.move(s, hp)
	}

	g.soft = reached
}

// move takes the step of one vector and keeps it in its ball.
func (g *Goal) move(s int, hp Params) {
	d, v0 := g.D[s], g.V0[s]
	if n := site.Norm(d); n > 0 {
		f := hp.WeightDecay / n / max(site.Dot(v0, v0), math.SmallestNonzeroFloat64)
		g.grads[s] = site.Plus(g.grads[s], f, d)
	}

	g.adam[s].Lr = hp.LearningRate
	g.adam[s].Step(d, g.grads[s])
	if n, limit := site.Norm(d), hp.Clamp*site.Norm(v0); n > limit {
		g.D[s] = site.Scaled(limit/n, d)
	}
	if !site.Finite(g.D[s]) {
		g.Failed, g.done = true, true
	}
}

// batch is one pass over some goals.
type batch struct {
	Descent
	goals  []*Goal
	at     []int // rows of the pass where the vectors are added
	owner  []int // and whose they are
	bare   []bool
	counts []summand
	next   int
	rows   site.Rows
}

// lay lists the rows of a pass.
func (d Descent) lay(dev kernels.Device, goals []*Goal) (b *batch, tails []*lm.Tail, labels [][]int32) {
	b = &batch{Descent: d, goals: goals, rows: site.Rows{Dev: dev}}
	start := 0
	for gi, g := range goals {
		tails, labels = append(tails, g.tail), append(labels, g.labels...)
		for i, l := range g.labels {
			b.at = append(b.at, start)
			b.owner = append(b.owner, gi)
			b.bare = append(b.bare, i == 0)
			start += len(l)

			if i == len(g.req.Prompts) {
				b.counts = append(b.counts, summand{g, 0})
				continue
			}

			for range g.req.Target {
				b.counts = append(b.counts, summand{g, 1 / float64(len(g.req.Prompts)*len(g.req.Target))})
			}
		}
	}

	return b, tails, labels
}

// pass computes losses and gradients of some goals.
func (d Descent) pass(ctx context.Context, m *lm.Model, goals []*Goal) error {
	b, tails, labels := d.lay(m.Device(), goals)

	for _, g := range goals {
		g.nll = 0
		g.kl = 0
		g.p = 0
		g.pmax = 0
		clear(g.grads)
	}

	o := lm.BackwardOptions{
		Labels: labels, Hooks: &lm.Hooks{}, Objective: b.objective, Keep: d.Params.Keep,
		WantHidden: func(int) bool { return false },
	}

	for s, at := range d.Sites {
		if at.Linear == "" {
			b.hook(s, at.Block+1, &o)
			continue
		}

		undo, err := m.Attach(b.tap(s), at.Linear)
		if err != nil {
			return err
		}
		defer undo()
	}

	if _, err := m.BackwardTails(ctx, tails, o); err != nil {
		return fmt.Errorf("searching the values of %d edits: %w", len(goals), err)
	}

	return nil
}

// visit meets a site's value x at one place and says what is added.
func (b *batch) visit(s, i int, x []float64) []float64 {
	g := b.goals[b.owner[i]]
	if g.V0[s] == nil && b.bare[i] {
		g.V0[s], g.D[s] = append([]float64(nil), x...), make([]float64, len(x))
	}
	return g.D[s]
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
func (b *batch) tap(s int) *site.Tap {
	return &site.Tap{
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
				if err := b.rows.Put(x, at, site.Plus(v, 1, add)); err != nil {
					return err
				}
			}
		}

		return nil
	}

	// The vector is added to the state, so its gradient is that of the state at its rows.
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
