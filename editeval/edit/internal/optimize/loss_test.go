package optimize

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// draws are n logits around 0.
func draws(r *rand.Rand, n int) []float64 {
	z := make([]float64, n)
	for i := range z {
		z[i] = 3 * r.NormFloat64()
	}
	return z
}

// TestLogSoftmax: the logarithms of probabilities that sum to one, whatever is added to all logits, and however large
// they are.
func TestLogSoftmax(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, shift := range []float64{0, 700, -700, 1e6} {
		z := draws(r, 50)
		naive := make([]float64, len(z))
		sum := 0.0
		for _, v := range z {
			sum += math.Exp(v)
		}
		for i, v := range z {
			naive[i] = v - math.Log(sum)
			z[i] += shift
		}

		LogSoftmax(z)
		for i := range z {
			// 2^-52 of the shift is what adding it to a logit loses, and a few roundings more
			if math.Abs(z[i]-naive[i]) > 1e-13+4*math.Abs(shift)*0x1p-52 {
				t.Fatalf("shift %g: %g, want %g", shift, z[i], naive[i])
			}
		}
	}
}

// loss is that of a row, which leaves its logits alone.
func loss(b *batch, c summand, z []float64, label int32) float64 {
	r := b.row(c, slices.Clone(z), label)
	if c.weight == 0 {
		return r.kl
	}
	weight := c.weight
	if c.g.soft {
		weight *= 0.1
	}
	return weight * r.nll
}

// TestRowGradient: what a row leaves in place of its logits is the gradient of its loss, by differences of the loss,
// for targets, for targets of PMET that are reached, and for the divergence in both directions.
func TestRowGradient(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	const vocabulary, step = 20, 1e-5
	for name, c := range map[string]struct {
		weight        float64
		soft, reverse bool
	}{
		"target": {0.25, false, false}, "reached": {0.25, true, false}, "divergence": {0, false, false},
		"divergence the other way": {0, false, true},
	} {
		g := &Goal{soft: c.soft}
		b := &batch{Descent: Descent{Params: Params{KL: 0.5, ReverseKL: c.reverse}}}
		row := summand{g, c.weight}
		if c.weight == 0 {
			g.initial = draws(r, vocabulary)
			LogSoftmax(g.initial)
		}

		z := draws(r, vocabulary)
		gradient := slices.Clone(z)
		b.row(row, gradient, 3)

		for j := range z {
			up, down := slices.Clone(z), slices.Clone(z)
			up[j] += step
			down[j] -= step
			want := (loss(b, row, up, 3) - loss(b, row, down, 3)) / (2 * step)
			// the differences' own error is of the order step², and rounding by 1e-15/step
			if math.Abs(gradient[j]-want) > 1e-8 {
				t.Errorf("%s, logit %d: %g, want %g", name, j, gradient[j], want)
			}
		}
	}
}

// TestRowProbability: the loss of a target is minus the logarithm of its probability, and the largest probability is
// that of the top-1 token.
func TestRowProbability(t *testing.T) {
	z := []float64{math.Log(1), math.Log(2), math.Log(5)}
	b := &batch{}
	for label, want := range []float64{1. / 8, 2. / 8, 5. / 8} {
		r := b.row(summand{&Goal{}, 1}, slices.Clone(z), int32(label))
		if math.Abs(r.p-want) > 1e-15 || math.Abs(r.pmax-5./8) > 1e-15 || math.Abs(r.nll+math.Log(want)) > 1e-14 {
			t.Errorf("%d: %+v", label, r)
		}
	}
}

// TestRowNotFinite: logits that are not numbers fail the goal and give no gradient.
func TestRowNotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		z := []float64{1, bad, 2}
		g := &Goal{}
		row := summand{g, 1}
		r := (&batch{}).row(row, z, 0)
		if got := row.add(r); !r.bad || !g.Failed || got != 0 || !slices.Equal(z, []float64{0, 0, 0}) {
			t.Errorf("%g: %+v, %v", bad, r, z)
		}
	}
}

// TestDivergenceBegins: the first look at the sentence about the subject is what later ones are compared with: no
// divergence from itself.
func TestDivergenceBegins(t *testing.T) {
	g := &Goal{}
	b := &batch{Descent: Descent{Params: Params{KL: 1}}}
	z := draws(rand.New(rand.NewPCG(3, 3)), 10)
	if r := b.row(summand{g, 0}, z, 0); r.kl != 0 || !slices.Equal(z, make([]float64, 10)) || len(g.initial) != 10 {
		t.Errorf("%+v, %v", r, z)
	}
}

// TestSequences: a search runs every prompt with the target behind it, from the subject on; only the target's tokens
// count, and of the sentence about the subject the one position.
func TestSequences(t *testing.T) {
	r := Request{
		Prompts: [][]int32{{1, 2, 3}, {9, 1, 2, 3}}, Lookup: []int{1, 2}, Target: []int32{7, 8}, KL: []int32{2, 5, 6},
		KLLookup: 1,
	}
	ids, from, labels := r.sequences()

	no := int32(lm.IgnoreLabel)
	if !slices.EqualFunc(ids, [][]int32{{1, 2, 3, 7, 8}, {9, 1, 2, 3, 7, 8}, {2, 5, 6, 0}}, slices.Equal) ||
		!slices.Equal(from, []int{1, 2, 1}) ||
		!slices.EqualFunc(labels, [][]int32{{no, no, 7, 8}, {no, no, 7, 8}, {no, 6, no}}, slices.Equal) {
		t.Errorf("%v %v %v", ids, from, labels)
	}

	r.KL = nil
	if ids, _, _ := r.sequences(); len(ids) != 2 {
		t.Errorf("%v", ids)
	}
}

// TestClamp: a step never leaves the ball around what the model had.
func TestClamp(t *testing.T) {
	g := &Goal{V0: [][]float64{{3, 4}}, D: [][]float64{{0, 0}}, grads: [][]float64{{1, -1}}, adam: make([]site.Adam, 1)}
	for range 50 {
		g.move(0, Params{LearningRate: 1, Clamp: 0.5})
		if n := site.Norm(g.D[0]); n > 2.5*(1+1e-15) {
			t.Fatalf("%g from a vector of norm 5", n)
		}
	}
	if n := site.Norm(g.D[0]); n < 2.4 {
		t.Errorf("it stays at %g", n)
	}

	g.grads[0] = []float64{math.NaN(), 0}
	g.move(0, Params{LearningRate: 1, Clamp: 0.5})
	if !g.Failed || !g.done {
		t.Error("a step that is no number goes on")
	}
}

// TestAdvance: when a search ends: at its last step, at a loss below 0.05, for PMET where the target is top-1
// everywhere and the rest has stayed, and where the loss is no number.
func TestAdvance(t *testing.T) {
	for name, c := range map[string]struct {
		goal         Goal
		steps        int
		pmet         bool
		done, failed bool
	}{
		"goes on":              {Goal{nll: 2}, 5, false, false, false},
		"last step":            {Goal{nll: 2}, 1, false, true, false},
		"small loss":           {Goal{nll: 0.04}, 5, false, true, false},
		"reached":              {Goal{nll: 2, p: 0.6, pmax: 0.6, kl: 0.01}, 5, true, true, false},
		"reached, without it":  {Goal{nll: 2, p: 0.6, pmax: 0.6, kl: 0.01}, 5, false, false, false},
		"reached, but drifted": {Goal{nll: 2, p: 0.6, pmax: 0.6, kl: 0.02}, 5, true, false, false},
		"no number":            {Goal{nll: math.NaN()}, 5, false, true, true},
	} {
		g := c.goal
		g.V0 = [][]float64{{1}}
		g.D = [][]float64{{0}}
		g.grads = [][]float64{{1}}
		g.adam = make([]site.Adam, 1)
		d := Descent{Params: Params{Steps: c.steps, LearningRate: 0.1, Clamp: 1}, Sites: make([]Site, 1), PMET: c.pmet}
		d.advance(&g)
		if g.done != c.done || g.Failed != c.failed || len(g.History) != 1 {
			t.Errorf("%s: done %v, failed %v", name, g.done, g.Failed)
		}
		if moved := g.D[0][0] != 0; moved == c.done {
			t.Errorf("%s: moved %v", name, moved)
		}
		if name == "reached, but drifted" && !g.soft {
			t.Errorf("%s: the target still counts in full", name)
		}
	}
}

// nano is the shipped model.
func nano(t *testing.T) *lm.Model {
	t.Helper()
	m, err := lm.Load(context.Background(), "../../../../testdata/nano/base", cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// TestRun: a search lowers its loss, at a linear's output and at what leaves a layer; requests that are searched
// together find what each finds alone; and adding what was found makes the model say the target.
func TestRun(t *testing.T) {
	m := nano(t)
	down, err := site.Linear(m, 1, arch.Down)
	if err != nil {
		t.Fatal(err)
	}

	reqs := []Request{
		{Prompts: [][]int32{{5, 6, 7, 8}}, Lookup: []int{2}, Target: []int32{40}, KL: []int32{7, 9}, KLLookup: 0},
		{Prompts: [][]int32{{15, 16}, {3, 15, 16}}, Lookup: []int{1, 2}, Target: []int32{41, 42}},
	}
	for _, at := range []Site{{Linear: down.Name, Block: 1}, {Block: 1}} {
		d := Descent{Params: Params{Steps: 12, LearningRate: 0.5, Clamp: 100, KL: 0.0625}, Sites: []Site{at}}
		together, err := d.Run(t.Context(), m, reqs)
		if err != nil {
			t.Fatal(err)
		}

		for i, g := range together {
			first, last := g.History[0], g.History[len(g.History)-1]
			if g.Failed || !(last.Total < first.Total*2/3) || first.Norm != 0 {
				t.Errorf("%+v, request %d: %+v, then %+v", at, i, first, last)
			}

			alone, err := d.Run(t.Context(), m, reqs[i:i+1])
			if err != nil {
				t.Fatal(err)
			}
			// Sums over the rows of one request do not mix with others'. Products of another height may add in another
			// order, which float32 shows at 2^-24 of each, and twelve steps carry it on.
			if far := site.Distance(alone[0].Value(), g.Value()); far > 1e-5*site.Norm(g.Value()) {
				t.Errorf("%+v, request %d: another value alone, %g away of %g", at, i, far, site.Norm(g.Value()))
			}
			if !slices.Equal(g.Value(), site.Plus(g.V0[0], 1, g.D[0])) {
				t.Errorf("the value is not what was there and what is added")
			}
		}
	}
}

// TestObjective: the losses of a pass are those of its rows, in order, and the gradients stand where the logits were.
func TestObjective(t *testing.T) {
	one, two := &Goal{}, &Goal{}
	b := &batch{counts: []summand{{one, 1}, {two, 0.5}, {two, 0.5}}, rows: site.Rows{Dev: cpu.New(cpu.Options{})}}
	logits := kernels.MatOf(kernels.WrapF32([]float32{0, 0, 0, 0}), 2, 2)
	losses := make([]float64, 2)
	if err := b.objective(logits, []int32{0, 1}, losses); err != nil {
		t.Fatal(err)
	}

	// two tokens that are equally probable
	if math.Abs(losses[0]-math.Ln2) > 1e-15 || math.Abs(losses[1]-math.Ln2/2) > 1e-15 || b.next != 2 {
		t.Errorf("%v", losses)
	}
	if got := logits.Buf.F32(); !slices.Equal(got, []float32{-0.5, 0.5, 0.25, -0.25}) {
		t.Errorf("%v", got)
	}
	if one.nll != losses[0] || two.nll != losses[1] || two.p != 0.25 || two.pmax != 0.25 {
		t.Errorf("%+v %+v", one, two)
	}
}
