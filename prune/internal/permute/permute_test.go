package permute

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Orders are permutations, refining never keeps less, and on small matrices never more than the best of all orders.
func TestOrders(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := rapid.IntRange(2, 8).Draw(rt, "m")
		n := rapid.IntRange(1, m-1).Draw(rt, "n")
		s := Scores{
			Rows: rapid.IntRange(1, 9).Draw(rt, "rows"), Cols: m * rapid.IntRange(1, 9).Draw(rt, "groups"),
			Threads: 2,
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		for range s.Rows * s.Cols {
			s.Data = append(s.Data, float32(rng.IntN(50)))
		}

		order := s.Heuristic(m)
		before := s.Kept(order, n, m)
		if err := s.Refine(context.Background(), order, n, m); err != nil {
			rt.Fatal(err)
		}
		if after := s.Kept(order, n, m); after < before-1e-6*before {
			rt.Fatalf("refining keeps %g of %g", after, before)
		}

		sorted := slices.Sorted(slices.Values(order))
		for j, v := range sorted {
			if int(v) != j {
				rt.Fatalf("%v is not a permutation", order)
			}
		}
	})
}

func TestRefineStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := Scores{Data: make([]float32, 64), Rows: 4, Cols: 16, Threads: 1}
	if err := s.Refine(ctx, s.Heuristic(4), 2, 4); err == nil {
		t.Error("a cancelled refinement goes on")
	}
}
