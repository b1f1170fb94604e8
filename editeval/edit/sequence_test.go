package edit

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// drawn is a matrix of normal numbers.
func drawn(r *rand.Rand, rows, cols int) linalg.Matrix {
	m := linalg.New(rows, cols)
	for i := range m.Data {
		m.Data[i] = r.NormFloat64()
	}
	return m
}

func product(a, b linalg.Matrix, o linalg.Product) linalg.Matrix {
	return linalg.Solver{}.Times(a, b, o)
}

// sum is Σ factor·matrix.
func sum(terms ...any) linalg.Matrix {
	var out linalg.Matrix
	for i := 0; i < len(terms); i += 2 {
		m := terms[i+1].(linalg.Matrix)
		if i == 0 {
			out = linalg.New(m.Rows, m.Cols)
		}
		for k := range m.Rows {
			for j := range m.Cols {
				out.Set(k, j, out.At(k, j)+terms[i].(float64)*m.At(k, j))
			}
		}
	}
	return out
}

// over is a·b⁻¹ for a symmetric b.
func over(t *testing.T, a, b linalg.Matrix) linalg.Matrix {
	t.Helper()
	x := a.T()
	if err := errors.Join(linalg.Solver{}.Cholesky(b, false), linalg.Solver{}.CholeskySolve(b, x, false)); err != nil {
		t.Fatal(err)
	}
	return x.T()
}

// synthetic is an editing by a method of one layer, with a covariance that is well conditioned.
func (b *bench) synthetic(t *testing.T, method string, r *rand.Rand) (*Editing, lm.Linear, linalg.Matrix) {
	t.Helper()
	hp, err := Defaults(method, b.m.Config())
	if err != nil {
		t.Fatal(err)
	}
	block := 1
	hp.Layers = []int{block}
	hp.Lambda = 3
	hp.NormLambda = 0
	l, err := site.Linear(b.m, block, arch.Down)
	if err != nil {
		t.Fatal(err)
	}

	x := drawn(r, 2*l.In, l.In)
	c := product(x, x, linalg.Product{TransA: true})
	c.Scale(1 / float64(x.Rows))
	e, err := New(b.m,
		Options{Method: method, HParams: &hp, Statistics: &Statistics{Moments: map[int]Matrix{block: Matrix(c)}}})
	if err != nil {
		t.Fatal(err)
	}

	return e, l, c
}

// Batches with the keys of earlier ones come out as one batch with all facts does, where keys do not move: the
// recursive form of least squares.
func TestAccumulate(t *testing.T) {
	b, r := newBench(t, 1), rand.New(rand.NewPCG(1, 2))
	e, l, _ := b.synthetic(t, "memit-seq", r)
	keys, values := drawn(r, 7, l.In), drawn(r, 7, l.Out) // what is missing before all edits
	block := l.Block

	sumOf := linalg.New(l.Out, l.In)
	for _, c := range [][2]int{{0, 2}, {2, 3}, {3, 7}} {
		k := keys.Sub(c[0], c[1], 0, l.In).Clone()
		s, err := e.shares(block, k)
		if err != nil {
			t.Fatal(err)
		}

		left := values.Sub(c[0], c[1], 0, l.Out).Clone()
		linalg.Solver{}.Mul(left, k, sumOf, linalg.Product{TransB: true, Minus: true, Accumulate: true})
		linalg.Solver{}.Mul(sumOf, left, s, linalg.Product{TransA: true, Accumulate: true})
		e.past.add(past{keys: map[int]linalg.Matrix{block: k}})
	}

	once, _, err := e.weighed(block, keys, 1)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "three batches and one", sumOf.Data, product(values, once, linalg.Product{TransA: true}).Data, 1e-9)
}

// The renewal of LyapLock is the published solution, ΔW = (R·Kᵀ + w·α(V₀K₀ᵀ - W·K₀K₀ᵀ) + VpKpᵀ - W·KpKpᵀ)·A⁻¹ with
// A = K·Kᵀ + w·α·K₀K₀ᵀ + Kp·Kpᵀ, and its first batch is MEMIT's.
func TestLyapLock(t *testing.T) {
	b, r := newBench(t, 1), rand.New(rand.NewPCG(3, 4))
	e, l, c := b.synthetic(t, "lyaplock", r)
	block, cfg := l.Block, linalg.Product{TransA: true}
	w, base, err := e.since(l)
	if err != nil {
		t.Fatal(err)
	}

	first := &change{past: newPast()}
	keys, resid := drawn(r, 4, l.In), drawn(r, 4, l.Out)
	d, err := e.renewal(block, l, keys, resid)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := e.weighed(block, keys, 1)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "first batch", d.Data, product(resid, s, cfg).Data, 1e-6)

	w.sum = sum(1.0, w.sum, 1.0, d)
	if err := e.account(first, block, l, keys); err != nil {
		t.Fatal(err)
	}
	q := first.past.queues[block]
	if want := math.Sqrt(e.hp.Budget * q.First); !(q.First > 0) || math.Abs(q.Length-want) > 1e-9*want {
		t.Errorf("the queue begins at %g, want %g", q.Length, want)
	}

	e.past.add(first.past)
	weight := 1.75
	q.Length *= weight
	e.past.queues[block] = q

	next, more := drawn(r, 3, l.In), drawn(r, 3, l.Out)
	got, err := e.renewal(block, l, next, more)
	if err != nil {
		t.Fatal(err)
	}

	kk := product(keys, keys, cfg)
	left := sum(1.0, product(more, next, cfg),
		3*weight, product(sum(1.0, base, -1.0, w.sum), c, linalg.Product{}),
		1.0, product(first.past.values[block], keys, cfg), -1.0, product(w.sum, kk, linalg.Product{}))
	a := sum(1.0, product(next, next, cfg), 3*weight, c, 1.0, kk)
	near(t, "second batch", got.Data, over(t, left, a).Data, 1e-6)

	// Damage beyond the budget makes the queue longer, less than that leaves it at its least.
	for _, far := range []float64{1, 20} {
		w.sum = sum(1.0, base, far, d)
		c := &change{past: newPast()}
		e.past.queues[block] = first.past.queues[block]
		if err := e.account(c, block, l, keys); err != nil {
			t.Fatal(err)
		}
		if longer := c.past.queues[block].Length > first.past.queues[block].Length; longer != (far*far > e.hp.Budget) {
			t.Errorf("damage of %g times the first batch's: the queue is longer: %v", far*far, longer)
		}
	}
}

// Anchored values have one length, those that went astray stay what they were, and ENCORE's search ends early.
func TestAnchor(t *testing.T) {
	b := newBench(t, 5)
	for _, name := range []string{"nas", "rome"} {
		hp, _ := Defaults(name, b.m.Config())
		hp.Steps, hp.Anchor = 5, true
		e, err := New(b.m, Options{Method: name, HParams: &hp, Statistics: b.stats, Anchors: b.encoded[1:]})
		if err != nil {
			t.Fatal(err)
		}

		d := optimize.Descent{Params: hp.search(), Sites: []optimize.Site{{Block: 1}}}
		reqs := b.encoded[:2]
		goals, err := d.Run(context.Background(), b.m, searchable(reqs))
		if err != nil {
			t.Fatal(err)
		}
		goals[1].D[0] = site.Scaled(1e4, goals[1].D[0])
		c := &change{goals: goals, past: newPast()}
		if err := e.anchor(context.Background(), c, d, reqs); err != nil {
			t.Fatal(err)
		}

		v0, scale, err := e.bare(context.Background(), d, goals, reqs)
		if err != nil {
			t.Fatal(err)
		}
		got, want := site.Norm(site.Plus(v0[0], 1/scale, goals[0].D[0])), c.past.anchor
		if !(want > 0) || math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s: a value of length %g, the anchor is %g", name, got, want)
		}
		if !slices.Equal(c.skipped, []int{1}) || site.Norm(goals[1].D[0]) != 0 {
			t.Errorf("%s: values that went astray: %v", name, c.skipped)
		}
	}

	hp, _ := Defaults("encore", b.m.Config())
	run := func(settled int) (steps int) {
		hp.Settled = settled
		goals, err := optimize.Descent{Params: hp.search(), Sites: []optimize.Site{{Block: 1}}}.Run(
			context.Background(), b.m, searchable(b.encoded))
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range goals {
			steps += len(g.History)
		}
		return steps
	}
	if one, none := run(1), run(0); one >= none {
		t.Errorf("searches that end once the target is on top take %d steps, others %d", one, none)
	}
}

// UltraEdit's moments follow the published recursion, its change is the published solution, in both forms, and lowers
// the loss.
func TestUltraEdit(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var m *moments
	n := 0.0
	mean, squares := make([]float64, 3), make([]float64, 3)
	for _, rows := range []int{1, 4, 2} {
		x := drawn(r, rows, 3)
		m = m.with(x)
		for j := range 3 {
			sum, dev := 0.0, 0.0
			for i := range rows {
				sum += x.At(i, j) / float64(rows)
			}
			for i := range rows {
				dev += (x.At(i, j) - sum) * (x.At(i, j) - sum) / max(float64(rows-1), 1)
			}
			k := float64(rows)
			d := sum - mean[j]
			mean[j] += k * d / (n + k)
			squares[j] += k*dev + n*k*d*d/(n+k)
		}
		n += float64(rows)
	}
	near(t, "means", m.mean, mean, 1e-12)
	near(t, "squares", m.squares, squares, 1e-12)

	b := newBench(t, 5)
	hp, _ := Defaults("ultraedit", b.m.Config())
	hp.LearningRate = 1e-3
	e, err := New(b.m, Options{Method: "ultraedit", HParams: &hp})
	if err != nil {
		t.Fatal(err)
	}

	for _, rows := range []int{3, 9} {
		f := &flow{lm.Linear{Name: "m", In: 5, Out: 4}, drawn(r, rows, 9)}
		v := drawn(r, rows, 4)
		d, err := e.least(f, v)
		if err != nil {
			t.Fatal(err)
		}
		h := f.inputs().Clone()
		a := product(h, h, linalg.Product{TransA: true})
		for i := range 5 {
			a.Set(i, i, a.At(i, i)+1)
		}
		near(t, "change", d.written().Data, over(t, product(v, h, linalg.Product{TransA: true}), a).Data, 1e-6)
	}

	before, err := e.Apply(context.Background(), b.encoded, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, after, err := e.flows(context.Background(), b.encoded)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range after {
		if was := before.Losses[i][0]; l >= was {
			t.Errorf("fact %d: the loss is %g and was %g", i, l, was)
		}
	}
}

// Entries of matrices name roles and layers.
func TestMatrices(t *testing.T) {
	b := newBench(t, 1)
	for text, want := range map[string]int{
		"up": 2, "up:0-3": 4, "down:1": 1, "up:3-9": -1, "up:2-1": -1, "up:x": -1, "router": -1, "": -1,
	} {
		hp, _ := Defaults("ultraedit", b.m.Config())
		hp.Layers, hp.Matrices = []int{1, 2}, []string{text}
		e, err := New(b.m, Options{Method: "ultraedit", HParams: &hp})
		if want < 0 {
			if err == nil {
				t.Errorf("%q: no error", text)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if list, err := e.matrices(); err != nil || len(list) != want {
			t.Errorf("%q: %d matrices, want %d: %v", text, len(list), want, err)
		}
	}
}
