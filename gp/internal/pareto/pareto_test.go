package pareto

import (
	"math/rand/v2"
	"testing"
)

// TestLayers: nobody is beaten by a member of its own or a later layer, and everybody behind the front by one
// of the layer before.
func TestLayers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		list := make([]Point, r.IntN(40))
		for i := range list {
			list[i] = Point{float64(r.IntN(8)), float64(r.IntN(8))}
		}

		layer, spread := Layers(list)
		for i, a := range list {
			beaten := layer[i] == 0
			for j, b := range list {
				better := b.Size <= a.Size && b.Quality <= a.Quality && b != a
				if better && layer[j] >= layer[i] {
					t.Fatalf("%v of layer %d is beaten by %v of layer %d", a, layer[i], b, layer[j])
				}
				beaten = beaten || (better || b == a) && layer[j] == layer[i]-1
			}

			if !beaten || !(spread[i] >= 0 && spread[i] <= 2) {
				t.Fatalf("%v is in layer %d for nothing, or its spread %g is wrong", a, layer[i], spread[i])
			}
		}
	}
}
