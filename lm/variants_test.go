package lm

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/modelcompress/compress/lm/corpus"
)

// TestVariants: variants of a streamed model that run side by side have the figures, to the last bit, that each has by
// itself, whatever they share; every block has its own weights again afterwards; and a form that cannot be put in, or
// variants of another number of blocks, are errors that leave the model as it was.
func TestVariants(t *testing.T) {
	ctx := context.Background()
	config := tiny()["llama"]
	dir := recipe{config: config, seed: 3, std: 0.3}.write(t, t.TempDir())
	dense := load(t, dir, cpuDevice(t, 2), Options{})
	m := load(t, dir, cpuDevice(t, 2), Options{Stream: true})
	blocks := m.Blocks()

	// Sequences of up to 4096 tokens go through blocks two at a time: five of them are three batches.
	w := corpus.New(tokens(5, m.config.Vocab, 9, 4, 7, 2, 5), "made up")
	w.SeqLen = lossBatch / 2
	base, err := dense.NewBaseline(ctx, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Free()

	// Form k of a block is its matrices without k of every eight rows.
	was := map[int]int{}
	drop := func(l, form int) error {
		for _, lin := range m.Linears(l) {
			own, err := m.MutableParam(lin.Name)
			if err != nil {
				return err
			}
			for r := range own.Rows {
				if r%8 < form {
					clear(own.RowF32(r))
				}
			}
			own.Buf.Changed()
		}
		was[l] = form
		return nil
	}
	back := func(l int) error {
		delete(was, l)
		for _, lin := range m.Linears(l) {
			if err := m.Restore(lin.Name); err != nil {
				return err
			}
		}
		return nil
	}
	put := func(_ context.Context, l, form int) error {
		if form < was[l] {
			t.Errorf("block %d: form %d after %d", l, form, was[l])
		}
		return drop(l, form)
	}

	level := func(of ...int) []int {
		for len(of) < blocks {
			of = append(of, of[len(of)-1])
		}
		return of[:blocks]
	}
	forms := [][]int{level(0), level(0, 4), level(4, 0), level(0, 2), level(4, 0), level(2)}
	got, err := base.CompareVariants(ctx, m, Variants{Forms: forms, Put: put, Back: back})
	if err != nil {
		t.Fatal(err)
	}

	for i, form := range forms {
		alone, err := base.CompareVariants(ctx, m, Variants{Forms: [][]int{form}, Put: put, Back: back})
		if err != nil {
			t.Fatal(err)
		}
		for l, k := range form {
			if err := drop(l, k); err != nil {
				t.Fatal(err)
			}
		}
		whole, err := base.Compare(ctx, m, nil)
		if err != nil {
			t.Fatal(err)
		}
		for l := range form {
			if err := back(l); err != nil {
				t.Fatal(err)
			}
		}

		if !reflect.DeepEqual(got[i], whole) || !reflect.DeepEqual(alone[0], whole) {
			t.Errorf("variant %d: %+v, by itself %+v, in memory %+v", i, got[i], alone[0], whole)
		}
	}
	if d := got[0]; d.KL > 1e-12 {
		t.Errorf("the model itself: %+v", d)
	}

	broken := errors.New("broken")
	fails := func(_ context.Context, l, form int) error {
		if form == 4 {
			return errors.Join(drop(l, form), broken)
		}
		return drop(l, form)
	}
	for name, bad := range map[string]Variants{
		"put":    {Forms: forms, Put: fails, Back: back},
		"blocks": {Forms: [][]int{make([]int, blocks+1)}, Put: put, Back: back},
	} {
		want := broken
		if name == "blocks" {
			want = ErrInput
		}
		if _, err := base.CompareVariants(ctx, m, bad); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
		if d, err := base.Compare(ctx, m, nil); err != nil || d.KL > 1e-12 {
			t.Errorf("%s: afterwards %+v, %v", name, d, err)
		}
	}
	if none, err := base.CompareVariants(ctx, m, Variants{}); err != nil || len(none) != 0 {
		t.Errorf("no variants: %v, %v", none, err)
	}
}
