package gp

import (
	"math/rand/v2"
	"testing"
)

// TestParetoLayers: nobody is beaten by a member of its own or a later layer, and everybody behind the front by one
// of the layer before.
func TestParetoLayers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		list := make([]point, r.IntN(40))
		for i := range list {
			list[i] = point{float64(r.IntN(8)), float64(r.IntN(8))}
		}

		layer, spread := paretoLayers(list)
		for i, a := range list {
			beaten := layer[i] == 0
			for j, b := range list {
				better := b.size <= a.size && b.quality <= a.quality && b != a
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
