package sample_test

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/lm/internal/sample"
)

// The limits cut the distribution where they say.
func TestLimits(t *testing.T) {
	logits := []float32{1, 3, 2, 3, -1}
	counts := map[int32]int{}
	for seed := range uint64(400) {
		s := sample.Sampler{Temperature: 1, TopP: 0.85, Seed: seed}
		id, ok := s.Next(logits, 7)
		if !ok {
			t.Fatal("no token")
		}
		counts[id]++
	}

	// p = .40 .40 .15 .05 in the order 1, 3, 2, 0: the first three reach 0.85
	if counts[0]+counts[4] != 0 || counts[1] < 120 || counts[3] < 120 || counts[2] < 20 {
		t.Errorf("%v", counts)
	}
	if _, ok := (&sample.Sampler{}).Next([]float32{1, float32(math.NaN())}, 1); !ok {
		t.Error("a NaN that is not the largest ends everything")
	}
	if _, ok := (&sample.Sampler{}).Next([]float32{float32(math.NaN())}, 1); ok {
		t.Error("a token of nothing but NaN")
	}
}
