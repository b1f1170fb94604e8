package structure

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/linalg"
)

// Every step removes what the rest, fitted anew by the documentation's least squares, can do without best.
func TestSurgeonIsGreedy(t *testing.T) {
	const in, out, tokens = 24, 7, 60
	solver := linalg.Solver{Threads: 1}
	x, w := signs(1, tokens, in), signs(2, out, in)
	mix := signs(9, in, in)
	y := linalg.New(tokens, in)
	solver.Mul(y, x, mix, linalg.Product{})
	h := linalg.New(in, in)
	solver.Mul(h, y, y, linalg.Product{TransA: true})
	drawn := h.Clone()
	for i := range in {
		drawn.Set(i, i, h.At(i, i)*(1+ridges[usual]))
	}

	for _, size := range []int{1, 2, 4} {
		most := in/size - 2
		s, err := newSurgeon(solver, w, h.Clone(), size, most)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.order(t.Context(), most, func(group int) bool { return group != 1 })
		if err != nil {
			t.Fatal(err)
		}

		var want []int
		for range most {
			least := -1
			low := math.Inf(1)
			for group := range in / size {
				if group == 1 || slices.Contains(want, group) {
					continue
				}
				f := &fit{solver: solver, w: w}
				for j := range in {
					if j/size != group && !slices.Contains(want, j/size) {
						f.keep = append(f.keep, j)
					}
				}
				made, _, err := f.made(w, h, ridges[usual])
				if err != nil {
					t.Fatal(err)
				}
				if lost := f.lost(w, made, drawn); lost < low {
					least, low = group, lost
				}
			}
			want = append(want, least)
		}
		if !slices.Equal(got, want) {
			t.Errorf("groups of %d: %v, want %v", size, got, want)
		}
	}
}

// In a model: as many of each are left as are asked for, whatever the threads, and channels are refused.
func TestSurgery(t *testing.T) {
	var kept []*Plan
	for threads := range 2 {
		m, w := open(t, threads+1)
		kept = append(kept, plan(t, m, w, Options{FFN: Share{Drop: 0.25}, Heads: Share{Keep: 3}, Score: OBS}))
		if p := plan(t, m, w, Options{KVHeads: Share{Keep: 1}, Score: OBS}); len(p.Cut.Heads[0]) != 2 {
			t.Errorf("heads %v of keys and values %v", p.Cut.Heads[0], p.Cut.KVHeads[0])
		}
		_, err := Choose(t.Context(), m, w, Options{Hidden: Share{Keep: 48}, Score: OBS})
		if !errors.Is(err, ErrOptions) {
			t.Errorf("channels: %v", err)
		}
	}

	m, _ := open(t, 1)
	for l := range m.Blocks() {
		a, b := kept[0].Cut, kept[1].Cut
		if !slices.Equal(a.Inner[l], b.Inner[l]) || !slices.Equal(a.Heads[l], b.Heads[l]) {
			t.Errorf("block %d: other choices with another number of threads", l)
		}
		if len(a.Inner[l]) != 192 || len(a.Heads[l]) != 3 || a.Heads[l][0]/2 == a.Heads[l][1]/2 {
			t.Errorf("block %d: %d neurons and heads %v", l, len(a.Inner[l]), a.Heads[l])
		}
	}
}
