package mos

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// TestTiny is the worked example of the specification: two blocks, three vectors of two shards, one of them private.
func TestTiny(t *testing.T) {
	p := NewPool("q_proj", Geometry{Blocks: 2, Equivalent: 2, Rank: 3, Shards: 2, Private: 1, In: 4, Out: 6})
	if p.Rows() != 8 || p.Public() != 4 {
		t.Fatalf("%d rows, %d public", p.Rows(), p.Public())
	}

	p.IndexA = []int32{2, 0, 3, 1, 4, 5, 0, 1, 2, 3, 6, 7}
	p.IndexB = slices.Clone(p.IndexA)
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	for i := range p.A.Data() {
		p.A.Data()[i] = float32(i / 2) // a row holds its number
	}

	a, bt := mat(3, 4), mat(3, 6)
	Part{p, 0}.Assemble(a, bt)
	if want := []float32{2, 2, 0, 0, 3, 3, 1, 1, 4, 4, 5, 5}; !slices.Equal(a.Buf.F32(), want) {
		t.Errorf("%v, want %v", a.Buf.F32(), want)
	}
}

func mat(rows, cols int) kernels.Mat {
	return kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
}

// drawPool draws a sound geometry, and a pool with lists.
func drawPool(t *rapid.T) *Pool {
	g := Geometry{
		Blocks: rapid.IntRange(1, 6).Draw(t, "blocks"), Equivalent: rapid.IntRange(1, 4).Draw(t, "equivalent"),
		Shards: rapid.IntRange(1, 4).Draw(t, "shards"),
	}

	g.In, g.Out = g.Shards*rapid.IntRange(1, 5).Draw(t, "in"), g.Shards*rapid.IntRange(1, 5).Draw(t, "out")
	way := rapid.SampledFrom([]adapter.Sampling{adapter.Official, adapter.Balanced, adapter.Pure}).Draw(t, "sampling")
	if g.Pure = way == adapter.Pure; g.Pure {
		g.Rank = g.Equivalent * g.Blocks
	} else {
		g.Private = rapid.IntRange(0, g.Equivalent).Draw(t, "private")
		g.Rank = g.Private + rapid.IntRange(0, (g.Equivalent-g.Private)*g.Blocks).Draw(t, "public")
		if g.Rank == 0 {
			g.Rank = 1
		}
	}

	if err := g.Check(); err != nil {
		t.Fatal(err)
	}

	p := NewPool("x", g)
	if err := p.Draw(rapid.Uint64().Draw(t, "seed"), way, rapid.Bool().Draw(t, "dissociate")); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}

	checkUses(t, p, way)
	return p
}

// checkUses: every private row is used exactly once; balanced sampling uses the public ones equally often.
func checkUses(t *rapid.T, p *Pool, way adapter.Sampling) {
	for _, index := range [][]int32{p.IndexA, p.IndexB} {
		uses := make([]int, p.Rows())
		for _, row := range index {
			uses[row]++
		}

		for _, n := range uses[p.Public():] {
			if n != 1 {
				t.Fatalf("a private row is used %d times", n)
			}
		}

		if public := uses[:p.Public()]; way == adapter.Balanced && len(public) > 0 &&
			slices.Max(public)-slices.Min(public) > 1 {
			t.Fatalf("public rows are used %d to %d times", slices.Min(public), slices.Max(public))
		}
	}
}

// TestScatterIsAdjoint: for any pools x and gradients g, ⟨assemble(x), g⟩ = ⟨x, scatter(g)⟩. Whole numbers make
// the sums exact.
func TestScatterIsAdjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPool(t)
		part := Part{p, rapid.IntRange(0, p.Blocks-1).Draw(t, "block")}
		number := rapid.Float64Range(-9, 9)
		fill := func(x []float32) {
			for i := range x {
				x[i] = float32(math.Round(number.Draw(t, "x")))
			}
		}

		fill(p.A.Data())
		fill(p.B.Data())
		a := mat(p.Rank, p.In)

		bt := mat(p.Rank, p.Out)
		da := mat(p.Rank, p.In)
		dbt := mat(p.Rank, p.Out)

		fill(da.Buf.F32())
		fill(dbt.Buf.F32())
		part.Assemble(a, bt)
		p.A.Clear()
		p.B.Clear()
		part.Scatter(da, dbt)
		if x, y := dot(a.Buf.F32(), da.Buf.F32()), dot(p.A.Data(), p.A.Grad.Buf.F32()); x != y {
			t.Fatalf("A: %v and %v", x, y)
		}
		if x, y := dot(bt.Buf.F32(), dbt.Buf.F32()), dot(p.B.Data(), p.B.Grad.Buf.F32()); x != y {
			t.Fatalf("B: %v and %v", x, y)
		}
	})
}

func dot(x, y []float32) (sum float64) {
	for i := range x {
		sum += float64(x[i]) * float64(y[i])
	}
	return sum
}

// TestCheckedLists: lists of strangers are refused for each fault.
func TestCheckedLists(t *testing.T) {
	for name, list := range map[string][]int32{
		"short":         {0, 1},
		"outside":       {8, 0, 3, 1, 4, 5, 0, 1, 2, 3, 6, 7},
		"negative":      {-1, 0, 3, 1, 4, 5, 0, 1, 2, 3, 6, 7},
		"twice":         {0, 0, 3, 1, 4, 5, 0, 1, 2, 3, 6, 7},
		"other private": {2, 0, 3, 1, 6, 7, 0, 1, 2, 3, 4, 5},
		"private early": {4, 0, 3, 1, 4, 5, 0, 1, 2, 3, 6, 7},
	} {
		p := NewPool("q_proj", Geometry{Blocks: 2, Equivalent: 2, Rank: 3, Shards: 2, Private: 1, In: 4, Out: 6})
		p.IndexA, p.IndexB = list, list
		if err := p.Check(); !errors.Is(err, adapter.ErrFile) || !strings.Contains(err.Error(), "index_A") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDeadShare: the share of public rows that nobody uses is the one of the formula, (1 - (r-p)/((e-p)·L))^L.
func TestDeadShare(t *testing.T) {
	g := Geometry{Blocks: 32, Equivalent: 8, Rank: 16, Shards: 4, In: 4, Out: 4}
	p := NewPool("x", g)
	if err := p.Draw(1, adapter.Official, true); err != nil {
		t.Fatal(err)
	}

	want := math.Pow(1-16.0/(8*32), 32) * float64(g.Public())
	a, b := p.Dead()
	for _, n := range []int{a, b} {
		if math.Abs(float64(n)-want) > 4*math.Sqrt(want) { // four standard deviations, generously
			t.Errorf("%d dead rows, %.0f expected", n, want)
		}
	}

	if err := p.Draw(1, adapter.Balanced, true); err != nil {
		t.Fatal(err)
	}
	if a, b := p.Dead(); a+b != 0 {
		t.Errorf("balanced: %d and %d dead rows", a, b)
	}
}

// TestTypes: a type is named by as much of the path as tells it from others.
func TestTypes(t *testing.T) {
	var modules []adapter.Module
	for l := range 2 {
		for _, n := range []string{"attn.c_proj", "mlp.c_proj", "attn.c_attn"} {
			modules = append(modules,
				adapter.Module{Path: fmt.Sprintf("h.%d.%s", l, n), Block: l, Role: "o", In: 4, Out: 4})
		}
	}

	types, err := Types(modules)
	if err != nil || len(types) != 3 {
		t.Fatal(types, err)
	}

	for i, want := range []string{"attn.c_proj", "mlp.c_proj", "c_attn"} {
		if types[i].Name != want || len(types[i].Modules) != 2 {
			t.Errorf("%s with %d modules, want %s", types[i].Name, len(types[i].Modules), want)
		}
	}

	modules[0].In = 8
	if _, err := Types(modules); !errors.Is(err, adapter.ErrTarget) {
		t.Error(err)
	}
}
