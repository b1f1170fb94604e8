package serve

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// drawn is an adapter of rank 1 with random numbers for every matrix.
type drawn map[string]kernels.LowRank

// draw makes one.
func draw(m *lm.Model, seed uint64) drawn {
	r := rand.New(rand.NewPCG(seed, 9))
	d := drawn{}
	for l := range m.Blocks() {
		for _, lin := range m.Linears(l) {
			p := kernels.LowRank{
				A: kernels.MatOf(kernels.NewHost(kernels.F32, lin.In), 1, lin.In),
				B: kernels.MatOf(kernels.NewHost(kernels.F32, lin.Out), 1, lin.Out),
			}
			for _, x := range []kernels.Mat{p.A, p.B} {
				for i := range x.Cols {
					x.RowF32(0)[i] = float32(0.1 * r.NormFloat64())
				}
			}
			d[lin.Name] = p
		}
	}
	return d
}

// LowRank implements [lm.LowRank].
func (d drawn) LowRank(l lm.Linear) (kernels.LowRank, bool) { return d[l.Name], true }

// Forward implements [lm.Delta].
func (d drawn) Forward(l lm.Linear, x, y kernels.Mat) error {
	p := d[l.Name]
	for i := range x.Rows {
		t := float32(0)
		for j, v := range x.RowF32(i) {
			t += v * p.A.RowF32(0)[j]
		}
		for j, v := range p.B.RowF32(0) {
			y.RowF32(i)[j] += t * v
		}
	}
	return nil
}

// Backward implements [lm.Delta].
func (drawn) Backward(lm.Linear, kernels.Mat, kernels.Mat, kernels.Mat) error { return nil }

// Parameters implements [lm.Delta].
func (drawn) Parameters() []lm.Parameter { return nil }

// laid is a model with an adapter of its own rows.
func laid(t *testing.T, base Model, name string, d drawn) Model {
	t.Helper()
	m := base
	m.Name, m.Parent = name, base.Name
	var err error
	if m.Overlay, err = base.LM.Overlay(&d); err != nil {
		t.Fatal(err)
	}
	return m
}

// Requests of the base, of adapters that act on their own rows, and of one that acts on all, have the answers that each
// has alone; adapters with other numbers have other answers.
func TestAdaptersTogether(t *testing.T) {
	base := nano(t, "base")
	models := Models{base}
	for i := range 5 {
		models = append(models, laid(t, base, fmt.Sprint("a", i), draw(base.LM, uint64(i))))
	}
	last := draw(base.LM, 77)
	turns := base
	turns.Name, turns.Enter = "turns", func() (func(), error) { return base.LM.Attach(&last) }
	c := start(t, append(models, turns), Options{})

	bodies := make([]obj, 28)
	want := make([]string, len(bodies))
	answer := func(a completion) string {
		text, _ := json.Marshal(a.Choices)
		return string(text)
	}
	different := map[string]bool{}
	for i := range bodies {
		bodies[i] = obj{
			"model":  append(models, turns)[i%7].Name,
			"prompt": strings.Repeat("The king had a daughter who was called Anna. ", 1+i/7*5), "max_tokens": 20,
			"ignore_eos": true, "temperature": float64(i%3) / 2, "seed": i / 7, "logprobs": 2,
		}
		want[i] = answer(c.complete(bodies[i]))
		different[want[i]] = true
	}
	if len(different) < len(bodies)-2 {
		t.Errorf("%d different answers", len(different))
	}

	for range 2 {
		var together sync.WaitGroup
		for i := range bodies {
			together.Go(func() {
				if got := answer(c.complete(bodies[i])); got != want[i] {
					t.Errorf("answer %d in company:\n%s\nalone:\n%s", i, got, want[i])
				}
			})
		}
		together.Wait()
	}
}
