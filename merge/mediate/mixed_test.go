package mediate

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge"
)

// mixedRequests are sequences of different lengths, and their weights.
var mixedRequests = struct {
	ids     [][]int32
	weights [][]float64
}{
	[][]int32{{0, 65, 12, 300}, {41, 7}, {9, 9, 2}, {300, 12, 1, 5}},
	[][]float64{{1, 0, 0}, {0, 0.25, 0.75}, {0, 0, 0}, {0, 0, 1}},
}

// TestMixedPassIsTheMaterialisedOne: one pass over requests with different experts gives the logits that each
// request has when its effective weights are materialised, for every encoding; afterwards the model is the
// dense one.
func TestMixedPassIsTheMaterialisedOne(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	keeps := []string{"0.05", "0.4", "1", "{random: 0.3}", "{lowrank: 4}", "{bits: 3}", "sign1", "{best: 0.2}"}
	for _, keep := range keeps {
		_, m, r := atWork(t, "dtype: float32\n"+mediateRecipe("{select: all, keep: "+keep+"}", trio...), dev, 0)
		dense := logits(t, m)
		x := mixedRequests
		undo, err := r.Mixed([]int{4, 2, 3, 4}, x.weights)
		if err != nil {
			t.Fatal(err)
		}

		mixed, err := m.Forward(t.Context(), x.ids, lm.ForwardOptions{Logits: true})
		if err != nil {
			t.Fatal(err)
		}

		if keep == "1" { // either way
			err = r.Undo()
		}

		undo()
		if err != nil {
			t.Fatal(err)
		}

		if got := logits(t, m); fmt.Sprint(got) != fmt.Sprint(dense) {
			t.Errorf("keep %s: undone, it is not the dense model", keep)
		}

		row := 0
		for i, ids := range x.ids {
			if err := r.Use(x.weights[i]); err != nil {
				t.Fatal(err)
			}

			one, err := m.Forward(t.Context(), [][]int32{ids}, lm.ForwardOptions{Logits: true})
			if err != nil {
				t.Fatal(err)
			}

			for k := range ids {
				a, b := mixed.Logits.RowF32(row), one.Logits.RowF32(k)
				for c := range a {
					// sums of float32 products in another order, through a few layers; logits are of the order of 10
					if math.Abs(float64(a[c]-b[c])) > 2e-3 {
						t.Fatalf("keep %s, request %d, token %d: logit %d is %v, materialised %v", keep, i, k, c, a[c],
							b[c])
					}
				}

				row++
			}
		}
	}
}

// TestMixedRefuses: tables outside of blocks have no products to add to.
func TestMixedRefuses(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()
	_, _, r := atWork(t, mediateRecipe("{select: all, route_embeddings: true}", trio...), dev, 0)
	if _, err := r.Mixed([]int{1}, [][]float64{{1, 0, 0}}); !errors.Is(err, ErrMixed) {
		t.Errorf("%v", err)
	}
	if _, err := r.Mixed([]int{1, 2}, [][]float64{{1, 0, 0}}); !errors.Is(err, merge.ErrOption) {
		t.Errorf("%v", err)
	}
}

// TestMixedCost: factors of low rank are worth a mixed pass over single tokens of many requests whose weights
// are not in the cache, and long requests with weights in the cache are not.
func TestMixedCost(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	_, _, r := atWork(t, mediateRecipe("{select: all, keep: {lowrank: 2}}", trio...), dev, 0)
	w := [][]float64{{1, 0, 0}, {0, 1, 0}}
	if !r.MixedIsCheaper([]int{1, 1}, w) {
		t.Error("single tokens, nothing in the cache")
	}

	for _, one := range w {
		if err := r.Use(one); err != nil {
			t.Fatal(err)
		}
	}

	if r.MixedIsCheaper([]int{256, 256}, w) {
		t.Error("long requests, all in the cache")
	}
}
