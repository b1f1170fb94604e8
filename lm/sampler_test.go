package lm

import (
	"math"
	"testing"
)

// TestSamplerLimits: the limits cut the distribution where they say.
func TestSamplerLimits(t *testing.T) {
	logits := []float32{1, 3, 2, 3, -1}
	counts := map[int32]int{}
	for seed := range uint64(400) {
		s := sampler{temperature: 1, topP: 0.85, seed: seed}
		id, ok := s.next(logits, 7)
		if !ok {
			t.Fatal("no token")
		}
		counts[id]++
	}

	// p = .40 .40 .15 .05 in the order 1, 3, 2, 0: the first three reach 0.85
	if counts[0]+counts[4] != 0 || counts[1] < 120 || counts[3] < 120 || counts[2] < 20 {
		t.Errorf("%v", counts)
	}
	if _, ok := (&sampler{}).next([]float32{1, float32(math.NaN())}, 1); !ok {
		t.Error("a NaN that is not the largest ends everything")
	}
	if _, ok := (&sampler{}).next([]float32{float32(math.NaN())}, 1); ok {
		t.Error("a token of nothing but NaN")
	}
}
