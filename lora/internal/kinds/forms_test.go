package kinds

import (
	"fmt"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// llama lists the modules of a Llama of some size.
func llama(layers, hidden, kv, inner int) []adapter.Module {
	var list []adapter.Module
	for l := range layers {
		for _, m := range []struct {
			name    string
			in, out int
			role    string
		}{
			{"self_attn.q_proj", hidden, hidden, "q"},
			{"self_attn.k_proj", hidden, kv, "k"},
			{"self_attn.v_proj", hidden, kv, "v"},
			{"self_attn.o_proj", hidden, hidden, "o"},
			{"mlp.gate_proj", hidden, inner, "gate"},
			{"mlp.up_proj", hidden, inner, "up"},
			{"mlp.down_proj", inner, hidden, "down"},
		} {
			path := fmt.Sprintf("model.layers.%d.%s", l, m.name)
			list = append(list, adapter.Module{
				Path: path, Tensor: path + ".weight", Block: l, Expert: -1, In: m.in,
				Out: m.out, Role: arch.Role(m.role),
			})
		}
	}

	return list
}

// TestCounts compares parameter counts with the published ones: those of a Mixture of Shards do not depend on
// rank, shards and private rank, and equal LoRA's of the equivalent rank.
func TestCounts(t *testing.T) {
	for name, c := range map[string]struct {
		modules []adapter.Module
		perRank int64
	}{
		"LLaMA-2-7B":     {llama(32, 4096, 4096, 11008), 2_498_560},
		"LLaMA-2-13B":    {llama(40, 5120, 5120, 13824), 3_911_680},
		"Llama-3-8B":     {llama(32, 4096, 1024, 14336), 2_621_440},
		"Llama-3.2-3B":   {llama(28, 3072, 1024, 8192), 1_519_616},
		"Llama-3.2-1B":   {llama(16, 2048, 512, 8192), 704_512},
		"TinyLlama-1.1B": {llama(22, 2048, 256, 5632), 788_480},
	} {
		for _, e := range []int{1, 2, 8} {
			for _, sizes := range [][3]int{{4, 2, 0}, {8, 4, 1}, {3, 1, 0}} {
				cfg := adapter.Config{Kind: adapter.MoS, Rank: sizes[0], Alpha: 16, Targets: adapter.Match{All: true}}
				cfg.MoS = adapter.MoSConfig{
					EquivalentRank: e, Shards: sizes[1], Private: sizes[2],
					Sampling: adapter.Official,
				}
				if e == 1 && sizes[2] == 1 {
					cfg.Rank = 1 // all private
				}
				if n, err := Trainable(&cfg, c.modules); err != nil || n != int64(e)*c.perRank {
					t.Errorf("%s, e=%d %v: %d, want %d (%v)", name, e, sizes, n, int64(e)*c.perRank, err)
				}
			}
		}

		for _, r := range []int{16, 64} {
			cfg := adapter.Config{Kind: adapter.LoRA, Rank: r, Alpha: 16, Targets: adapter.Match{All: true}}
			if n, err := Trainable(&cfg, c.modules); err != nil || n != int64(r)*c.perRank {
				t.Errorf("%s, LoRA %d: %d (%v)", name, r, n, err)
			}
		}
	}

	vera := adapter.Config{Kind: adapter.VeRA, Rank: 256, Alpha: 1, Targets: adapter.Match{All: true}}
	if n, err := Trainable(&vera, llama(32, 4096, 4096, 11008)); err != nil || n != 1_417_216 {
		t.Errorf("VeRA of 256: %d (%v)", n, err)
	}
}
