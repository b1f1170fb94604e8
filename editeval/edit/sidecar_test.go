package edit

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm/arch"
)

// sided is an editing by a method with a side memory, with one layer and few steps.
func (b *bench) sided(t *testing.T, method string, change func(*HParams)) *Editing {
	t.Helper()
	hp, err := Defaults(method, b.m.Config())
	if err != nil {
		t.Fatal(err)
	}
	hp.Layers, hp.Steps = []int{1}, 12
	if change != nil {
		change(&hp)
	}
	e, err := New(b.m, Options{Method: method, HParams: &hp, Background: b.texts, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// apply writes the facts of the bench.
func (b *bench) apply(t *testing.T, e *Editing, n int) {
	t.Helper()
	for i := range n {
		if _, err := e.Apply(context.Background(), b.encoded[i:i+1], nil); err != nil {
			t.Fatal(err)
		}
	}
}

// What a fact has learnt is answered, whichever rows learn it, and the weights are untouched.
func TestSideMemories(t *testing.T) {
	ctx := context.Background()
	for _, method := range []string{kindWISE, kindMEMOIR} {
		for _, rows := range []string{rowsSubject, rowsAnswer} {
			if method == kindWISE && rows == rowsAnswer {
				continue // which learns little in this small model
			}
			b := newBench(t, 2)
			e := b.sided(t, method, func(h *HParams) { h.Rows, h.Steps = rows, 40 })
			was := b.bytesOf(t)
			before, err := e.Judge(ctx, b.x, b.records)
			if err != nil {
				t.Fatal(err)
			}
			b.apply(t, e, 2)

			after, err := e.Judge(ctx, b.x, b.records)
			if err != nil {
				t.Fatal(err)
			}
			if m := after.Stats["efficacy_magnitude"].Mean; m < before.Stats["efficacy_magnitude"].Mean+0.3 {
				t.Errorf("%s, %s: new answers are more likely than old ones by %.3f, before %.3f", method, rows, m,
					before.Stats["efficacy_magnitude"].Mean)
			}
			if !bytes.Equal(was, b.bytesOf(t)) {
				t.Errorf("%s: weights changed", method)
			}
		}
	}
}

// A fact's own row is answered, and a row that names other columns is not.
func TestSideMemoryByRow(t *testing.T) {
	for _, method := range []string{kindWISE, kindMEMOIR} {
		b := newBench(t, 2)
		e := b.sided(t, method, nil)
		b.apply(t, e, 2)

		side := e.beside.(*sideMemory)
		l := side.linear
		fact := []site.Place{{IDs: b.encoded[0].bare(), At: b.encoded[0].Lookup[0]}}
		whole, err := site.Look(context.Background(), b.m, fact, []int{l.Block})
		if err != nil {
			t.Fatal(err)
		}
		key := site.Row(whole.Keys[l.Block], 0)
		own := make([]float64, l.Out)
		if method == kindMEMOIR {
			if got := side.recalled(key, own); got == nil || site.Norm(got) == 0 {
				t.Error("memoir: the fact's own row is not answered")
			}
			other := slices.Clone(side.center) // nothing stands out: the columns of the lowest indices
			if got := side.recalled(other, own); got != nil && site.Norm(got) > 0 {
				k, share := side.nearestKey(side.name(other))
				t.Errorf("memoir: a row that shares %.2f of %d columns is answered", share, k.size())
			}
			continue
		}
		if got := side.chosen(key, site.Row(whole.Values[l.Block], 0)); got == nil && side.shards[0].least > 0 {
			t.Error("wise: the fact's own row is not answered")
		}
	}
}

// MEMOIR's change is the sum of the steps of gradient descent on a matrix, and touches the columns of its keys alone.
func TestMemoirColumns(t *testing.T) {
	b := newBench(t, 2)
	e := b.sided(t, kindMEMOIR, func(h *HParams) { h.Top = 0.1 })
	b.apply(t, e, 1)
	side := e.beside.(*sideMemory)
	l := side.linear
	open := make([]bool, l.In)
	for _, k := range side.keys {
		for j := range open {
			open[j] = open[j] || k.has(j)
		}
	}
	touched := 0
	for i, v := range side.shards[0].change {
		if v != 0 {
			touched++
			if !open[i%l.In] {
				t.Fatalf("column %d is no fact's, and was changed", i%l.In)
			}
		}
	}
	if touched == 0 || side.top != int(math.Round(0.1*float64(l.In))) {
		t.Errorf("%d elements changed, keys of %d columns", touched, side.top)
	}
}

// WISE's hinges and distances have the gradients that finite differences have, and only open elements change.
func TestWiseGradients(t *testing.T) {
	b := newBench(t, 1)
	e := b.sided(t, kindWISE, func(h *HParams) { h.Mask = 0.5 })
	l, err := site.Linear(b.m, 1, arch.Down)
	if err != nil {
		t.Fatal(err)
	}

	r := rand.New(rand.NewPCG(4, 4))
	side := newSide(b.m, l, kindWISE)
	n, facts := 6, 2
	c := &copyLesson{
		lesson: &lesson{e: e, linear: l}, side: side, facts: facts, inputs: drawn(r, n, l.In), own: drawn(r, n, l.Out),
		open: side.mask(7, 0, 0.5), change: linalg.New(l.Out, l.In),
	}
	c.begin(0)
	c.slopes = drawn(r, n, l.Out)
	c.slopes.Scale(0.05)
	c.give()
	for i, v := range c.change.Data {
		if v != 0 && !c.open(i) {
			t.Fatalf("element %d is not open, and was changed", i)
		}
	}

	loss := c.hinges()
	pull := c.pull
	if loss <= 0 {
		t.Fatalf("loss %g: nothing to differentiate", loss)
	}
	for i := range n {
		g := c.toward(i, pull[i])
		for _, j := range []int{0, l.Out / 2} {
			const h = 1e-5
			at := &c.added.Row(i)[j]
			*at += h
			up := c.hinges()
			*at -= 2 * h
			down := c.hinges()
			*at += h
			// Central differences of a loss near 1 with step 1e-5: rounding 1e-11, curvature 1e-10.
			if want := (up - down) / (2 * h); math.Abs(g[j]-want) > 1e-6*max(1, math.Abs(want)) {
				t.Errorf("row %d, output %d: %g, differences say %g", i, j, g[j], want)
			}
		}
	}
}

// The derivatives of activations.
func TestActivations(t *testing.T) {
	for _, f := range []arch.Activation{arch.SiLU, arch.GELU, arch.GELUTanh, arch.ReLU, "other"} {
		for _, x := range []float64{-3, -0.4, 0.3, 2} {
			const h = 1e-6
			_, slope := activated(f, x)
			up, _ := activated(f, x+h)
			down, _ := activated(f, x-h)
			if want := (up - down) / (2 * h); math.Abs(slope-want) > 1e-8 {
				t.Errorf("%s at %g: %g, differences say %g", f, x, slope, want)
			}
		}
	}
}

// Copies begin anew after so many facts, and each has its own.
func TestWiseShards(t *testing.T) {
	b := newBench(t, 3)
	e := b.sided(t, kindWISE, func(h *HParams) { h.Shard, h.Steps = 2, 2 })
	b.apply(t, e, 3)
	side := e.beside.(*sideMemory)
	if len(side.shards) != 2 || side.shards[0].edits != 2 || side.shards[1].edits != 1 {
		t.Errorf("shards %d", len(side.shards))
	}
}

// What a folder's journal keeps beside the weights answers in the model as it did while it was edited; another memory
// beside it, another layer, damaged parts and methods without text are refused.
func TestSideMemoryFiles(t *testing.T) {
	ctx := context.Background()
	for _, method := range []string{kindWISE, kindMEMOIR} {
		b := newBench(t, 2)
		e := b.sided(t, method, nil)
		b.apply(t, e, 2)
		p := b.encoded[0].bare()
		want, err := e.next(ctx, p)
		if err != nil {
			t.Fatal(err)
		}

		dir := t.TempDir()
		var text bytes.Buffer
		if err := e.WriteJournal(&text, "", ""); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, JournalName), text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		e.Close()

		mem, err := ReadMemory(dir)
		if err != nil {
			t.Fatal(err)
		}
		if name, size := mem.Describe(); name != "side memory" || size != method+", 2 edits" {
			t.Errorf("%s, %s", name, size)
		}
		undo, err := mem.Attach(b.m)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := New(b.m, Options{Method: "ft"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := plain.next(ctx, p)
		undo()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: the journal's memory answers differently: %v", method, err)
		}

		b.refuse(t, e, method)
	}
}

// refuse tries what must not join a side memory.
func (b *bench) refuse(t *testing.T, e *Editing, method string) {
	t.Helper()
	var text bytes.Buffer
	if err := e.WriteJournal(&text, "", ""); err != nil {
		t.Fatal(err)
	}
	read := func() *Journal {
		j, err := ReadJournal(bytes.NewReader(text.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		return j
	}

	for _, other := range []string{"grace", kindWISE, kindMEMOIR} {
		hp, _ := Defaults(other, b.m.Config())
		hp.Steps = 2
		if other == method {
			hp.Layers = []int{2}
		}
		again, err := Open(b.m, read(), true, Options{Method: other, HParams: &hp, Background: b.texts})
		if err != nil {
			t.Fatal(err)
		}
		_, err = again.Apply(context.Background(), b.encoded[:1], nil)
		again.Close()
		if !errors.Is(err, ErrOptions) {
			t.Errorf("%s beside %s at layers %v: %v", other, method, hp.Layers, err)
		}
	}

	for what, damage := range map[string]func(p *Part){
		"kind":  func(p *Part) { p.Kind = "other" },
		"shape": func(p *Part) { p.Left.Rows++ },
		"none":  func(p *Part) { p.Right = nil },
		"shard": func(p *Part) { p.Shard = 3 },
		"keys":  func(p *Part) { p.Keys, p.Mask = [][]byte{{1}}, 2 },
	} {
		j := read()
		damage(j.Steps[0].Part)
		if _, err := Open(b.m, j, true, Options{Method: "ft"}); !errors.Is(err, ErrJournal) {
			t.Errorf("%s: a part with another %s: %v", method, what, err)
		}
	}

	hp, _ := Defaults(method, b.m.Config())
	if _, err := New(b.m, Options{Method: method, HParams: &hp}); !errors.Is(err, ErrStatistics) {
		t.Errorf("%s without text: %v", method, err)
	}
	for _, bad := range []string{
		"rows: all", "threshold: 0", "threshold: 1.5", "mask: 2", "top: 2", "shard: -1", "margin: [1]",
		"margin: [-1, 1, 1]",
	} {
		hp, _ := Defaults(kindWISE, b.m.Config())
		hp.Top = 0.3
		method := kindWISE
		if bad == "top: 2" {
			hp, _ = Defaults(kindMEMOIR, b.m.Config())
			method = kindMEMOIR
		}
		if err := hp.Merge([]byte(bad)); err != nil {
			t.Fatal(err)
		}
		if _, err := New(b.m, Options{Method: method, HParams: &hp, Background: b.texts}); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
