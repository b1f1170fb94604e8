package lora_test

import (
	"testing"

	"github.com/modelcompress/compress/lora"
)

// TestAllPrivate: the defaults of a Mixture of Shards share something whatever the equivalent rank is; what is
// asked for is kept.
func TestAllPrivate(t *testing.T) {
	for _, c := range []struct {
		o    lora.Options
		rank int
		all  bool
	}{
		{lora.Options{}, 0, false},
		{lora.Options{Kind: "mos"}, 2, false},
		{lora.Options{Kind: "mos", EquivalentRank: 1}, 1, false},
		{lora.Options{Kind: "mos", EquivalentRank: 1, Sampling: "official"}, 1, false},
		{lora.Options{Kind: "mos", EquivalentRank: 1, Private: 1}, 1, true},
		{lora.Options{Kind: "mos", EquivalentRank: 3, Private: 3}, 3, true},
		{lora.Options{Kind: "mos", EquivalentRank: 3, Private: 2}, 3, false},
		{lora.Options{Kind: "mos", EquivalentRank: 1, Private: 1, Sampling: "pure"}, 1, false},
		{lora.Options{Kind: "lora"}, 0, false},
	} {
		rank, all := c.o.AllPrivate()
		if all != c.all || rank != c.rank {
			t.Errorf("%+v: %d, %v; want %d, %v", c.o, rank, all, c.rank, c.all)
		}
	}
}
