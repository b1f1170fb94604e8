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

// TestShares: at no time is a set a whole draw ahead of its share, nor further behind than the others can be ahead
// together; one of weight 0 is never drawn; every pass over a set sees all of it; and a run without a number of steps
// draws as many as the sets have.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "sets")
		group := rapid.IntRange(1, 2).Draw(t, "group")
		var d Data
		var sets []Set
		var of []int // the set of every group
		all, sum := 0, 0.0
		for k := range n {
			s := Set{
				Sequences: group * rapid.IntRange(1, 6).Draw(t, "sequences"),
				Weight:    rapid.SampledFrom([]float64{0, 1, 2, 3, 0.1, 17, 1e-3}).Draw(t, "weight"),
			}
			if k == n-1 && sum == 0 {
				s.Weight = 2
			}
			if s.Weight > 0 {
				all += s.Sequences / group
			}
			sum += s.Weight
			sets = append(sets, s)
			for i := range s.Sequences {
				d.IDs = append(d.IDs, []int32{1, 2})
				if i%group == 0 {
					of = append(of, k)
				}
			}
		}

		o := Options{
			Batch: rapid.IntRange(1, 4).Draw(t, "batch"), Seed: rapid.Uint64().Draw(t, "seed"),
			Group: group, Sets: sets,
			Ordered: rapid.Bool().Draw(t, "ordered"), Steps: rapid.IntRange(0, 40).Draw(t, "steps"),
		}
		p, err := New(d, o)
		if err != nil {
			t.Fatal(err)
		}

		drawn, total := make([]int, n), 0
		pass := make([]map[int32]bool, n)
		for _, step := range p.Steps {
			for _, g := range step {
				k := of[g]
				drawn[k]++
				total++
				if len(pass[k]) == sets[k].Sequences/group {
					pass[k] = nil
				}
				if pass[k] == nil {
					pass[k] = map[int32]bool{}
				}
				if pass[k][g] {
					t.Fatalf("sequence %d twice in a pass", g)
				}
				pass[k][g] = true

				for i, s := range sets {
					ahead := float64(drawn[i]) - float64(total)*s.Weight/sum
					if ahead > 1-1/float64(n)+1e-9 || ahead < -float64(n) || s.Weight == 0 && drawn[i] > 0 {
						t.Fatalf("after %d draws set %d is %g ahead of its share", total, i, ahead)
					}
				}
			}
		}

		for k, u := range p.Uses {
			if u.Drawn != drawn[k] || u.Usable != sets[k].Sequences/group {
				t.Fatalf("set %d: %+v, seen %d", k, u, drawn[k])
			}
		}
		if o.Steps == 0 && total != all {
			t.Fatalf("%d draws of %d", total, all)
		}
	})
}

// TestOneSet: data that are one set are laid out as data without sets; of two equal shares the first begins.
func TestOneSet(t *testing.T) {
	d := Data{IDs: make([][]int32, 12)}
	for i := range d.IDs {
		d.IDs[i] = []int32{1, 2}
	}

	o := Options{Batch: 5, Seed: 7, Steps: 9}
	want, err := New(d, o)
	if err != nil {
		t.Fatal(err)
	}

	o.Sets = []Set{{12, 0.3}}
	got, err := New(d, o)
	if err != nil || !slices.EqualFunc(got.Steps, want.Steps, slices.Equal) {
		t.Errorf("%v, want %v (%v)", got.Steps, want.Steps, err)
	}
	if got.Uses[0].Drawn != 45 {
		t.Errorf("%+v", got.Uses)
	}

	o = Options{Batch: 8, Ordered: true, Steps: 1, Sets: []Set{{2, 3}, {10, 1}}}
	if got, err = New(d, o); err != nil || !slices.Equal(got.Steps[0], []int32{0, 1, 2, 0, 1, 0, 3, 1}) {
		t.Errorf("%v (%v)", got.Steps, err)
	}
}

// TestSetsRefused: sets that are not what the data are made of, and one of which nothing can be learned.
func TestSetsRefused(t *testing.T) {
	d := Data{IDs: [][]int32{{1, 2}, {1, 2}, {1}}}
	for name, c := range map[string]struct {
		o    Options
		want error
	}{
		"too few":     {Options{Batch: 1, Sets: []Set{{2, 1}}}, ErrSets},
		"half a pair": {Options{Batch: 1, Group: 2, Sets: []Set{{1, 1}, {2, 1}}}, ErrSets},
		"empty":       {Options{Batch: 1, Sets: []Set{{2, 1}, {1, 1}}}, ErrEmpty},
	} {
		if _, err := New(d, c.o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	p, err := New(d, Options{Batch: 1, Sets: []Set{{2, 1}, {1, 0}}})
	if err != nil || len(p.Steps) != 2 || p.Dropped != 1 || p.Uses[1].Usable != 0 {
		t.Errorf("a set that is not drawn: %+v (%v)", p, err)
	}
}

// TestPasses: so many passes see every sequence so many times, and only the last step is short.
func TestPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "sequences")
		passes := rapid.IntRange(1, 4).Draw(t, "passes")
		o := Options{Batch: rapid.IntRange(1, 5).Draw(t, "batch"), Passes: passes, Seed: rapid.Uint64().Draw(t, "seed")}
		d := Data{}
		for range n {
			d.IDs = append(d.IDs, make([]int32, 2))
		}
		p, err := New(d, o)
		if err != nil {
			t.Fatal(err)
		}

		seen := make([]int, n)
		for i, step := range p.Steps {
			if len(step) != o.Batch && i < len(p.Steps)-1 {
				t.Fatalf("step %d of %d has %d sequences", i, len(p.Steps), len(step))
			}
			for _, s := range step {
				seen[s]++
			}
		}
		if slices.ContainsFunc(seen, func(k int) bool { return k != passes }) {
			t.Fatalf("%v, want %d of each", seen, passes)
		}
	})
}
