package batches

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestEveryPassSeesAll: whatever the batch, the first pass over the data sees every sequence once, and no step
// is empty.
func TestEveryPassSeesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lens := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 20).Draw(t, "lens")
		var d Data
		usable := 0
		for _, n := range lens {
			d.IDs = append(d.IDs, make([]int32, n))
			if n > 1 {
				usable++
			}
		}

		o := Options{
			Batch: rapid.IntRange(1, 6).Draw(t, "batch"), Micro: rapid.IntRange(0, 3).Draw(t, "micro"),
			Seed: rapid.Uint64().Draw(t, "seed"),
		}
		if rapid.Bool().Draw(t, "pack") {
			o.Tokens = rapid.IntRange(1, 20).Draw(t, "tokens")
		}

		o.Ordered = rapid.Bool().Draw(t, "ordered")
		p, err := New(d, o)
		if usable == 0 {
			if !errors.Is(err, ErrEmpty) {
				t.Fatal(err)
			}
			return
		}

		if err != nil {
			t.Fatal(err)
		}

		var all []int32
		for i, step := range p.Steps {
			tokens := 0
			for _, s := range step {
				tokens += lens[s]
			}

			if len(step) == 0 || o.Tokens == 0 && len(step) > o.Batch ||
				o.Tokens > 0 && len(step) > 1 && tokens > o.Tokens || tokens != p.Tokens(i) {
				t.Fatalf("step %v of %d tokens", step, tokens)
			}

			all = append(all, step...)
		}

		if o.Ordered && !slices.IsSorted(all) {
			t.Fatalf("not in order: %v", all)
		}

		slices.Sort(all)
		if len(slices.Compact(slices.Clone(all))) != usable || len(all) != usable || p.Dropped != len(lens)-usable {
			t.Fatalf("%d usable sequences, the pass sees %v", usable, all)
		}

		o.Steps = rapid.IntRange(1, 30).Draw(t, "steps")
		long, err := New(d, o)
		if err != nil || len(long.Steps) != o.Steps {
			t.Fatalf("%d steps, want %d (%v)", len(long.Steps), o.Steps, err)
		}
	})
}

// TestBatches: micro-batches split a step without changing what counts.
func TestBatches(t *testing.T) {
	d := Data{
		IDs:    [][]int32{{1, 2, 3}, {4, 5}, {6, 7, 8, 9}},
		Labels: [][]int32{{-100, 2, -100}, {-100, 5}, {-100, -100, 8, 9}},
	}
	p, err := New(d, Options{Batch: 3, Micro: 2, Ordered: true})
	if err != nil {
		t.Fatal(err)
	}

	list, counted := p.At(0)
	if len(list) != 2 || len(list[0].IDs) != 2 || len(list[1].IDs) != 1 || counted != 4 {
		t.Errorf("%d batches, %d counted", len(list), counted)
	}
}
