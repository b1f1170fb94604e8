package lora

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// TestWritePairs: the files have the factors with a scale of 1, of other ranks each, and belong to the base.
func TestWritePairs(t *testing.T) {
	s := rng.NewStream(3)
	drawn := func(rows, cols int) kernels.Mat {
		m := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
		for i := range m.Buf.F32() {
			m.Buf.F32()[i] = float32(s.Normal())
		}
		return m
	}

	base := openModel(t, nano, "cpu", lm.Options{})
	for _, blocks := range []int{1, base.Blocks()} { // some of the matrices, and all
		ranks := map[string]int{}
		factors := map[string][2]kernels.Mat{}
		for l := range blocks {
			for i, lin := range base.Linears(l) {
				r := 1 + (i+l)%3
				ranks[lin.Name] = r
				factors[lin.Name] = [2]kernels.Mat{drawn(r, lin.In), drawn(lin.Out, r)}
			}
		}

		dir := filepath.Join(t.TempDir(), "adapter")
		p := Pairs{Ranks: ranks, Pair: func(tensor string) (a, b kernels.Mat, err error) {
			return factors[tensor][0], factors[tensor][1], nil
		}}
		if notes, err := WritePairs(t.Context(), nano, dir, p); err != nil || len(notes) > 0 {
			t.Fatal(notes, err)
		}
		if _, err := WritePairs(t.Context(), nano, dir, p); !errors.Is(err, ErrExists) {
			t.Errorf("over another: %v", err)
		}

		a, err := Open(dir, base)
		if err != nil {
			t.Fatal(err)
		}
		if remark, err := a.OtherBase(t.Context(), base); remark != "" || err != nil {
			t.Errorf("%q %v", remark, err)
		}
		if len(a.inner.Low) != len(ranks) {
			t.Fatalf("%d modules, want %d", len(a.inner.Low), len(ranks))
		}
		for _, l := range a.inner.Low {
			x, y := l.Pair()
			want := factors[l.Module.Tensor]
			if l.Scale != 1 || l.Rank != ranks[l.Module.Tensor] || !slices.Equal(flat(x), flat(want[0])) ||
				!slices.Equal(flat(y), flat(want[1])) {
				t.Errorf("%d blocks: %s: rank %d, scale %g", blocks, l.Module.Path, l.Rank, l.Scale)
			}
		}
	}
}

// TestWritePairsRefused: factors of no matrix, of another shape, and none.
func TestWritePairsRefused(t *testing.T) {
	one := openModel(t, nano, "cpu", lm.Options{}).Linears(0)[0]
	for _, p := range []Pairs{
		{},
		{Ranks: map[string]int{"nothing": 2}},
		{Ranks: map[string]int{one.Name: -1}},
		{Ranks: map[string]int{one.Name: 2}, Pair: func(string) (a, b kernels.Mat, err error) {
			return adapter.NewParam("", 1, one.In).Value, adapter.NewParam("", one.Out, 2).Value, nil
		}},
		{Ranks: map[string]int{one.Name: 1}, Pair: func(string) (a, b kernels.Mat, err error) {
			x := adapter.NewParam("", 1, one.In)
			x.Value.RowF32(0)[0] = float32(math.NaN())
			return x.Value, adapter.NewParam("", one.Out, 1).Value, nil
		}},
	} {
		if _, err := WritePairs(t.Context(), nano, filepath.Join(t.TempDir(), "a"), p); err == nil {
			t.Errorf("%v", p.Ranks)
		}
	}
}
