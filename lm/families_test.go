package lm

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// families calls f with the folder of every small checkpoint that transformers has computed: those kept here, made by
// compare/oracle.py, or those in the folder that COMPRESS_FAMILIES names.
func families(t *testing.T, f func(t *testing.T, dir string)) {
	root := filepath.Join("testdata", "families")
	if other := os.Getenv("COMPRESS_FAMILIES"); other != "" {
		root = other
	}

	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if e.IsDir() {
			t.Run(e.Name(), func(t *testing.T) { f(t, dir) })
		}
	}
}

// newer gives small configurations of the families whose operations those of tiny do not have.
func newer() map[string]map[string]any {
	common := func(modelType string, more map[string]any) map[string]any {
		c := map[string]any{
			"model_type": modelType, "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2,
			"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 20, "max_position_embeddings": 64,
		}
		maps.Copy(c, more)
		return c
	}

	latent := map[string]any{
		"num_key_value_heads": 4, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
		"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "first_k_dense_replace": 1,
		"n_group": 4, "topk_group": 2,
	}
	wide := maps.Clone(latent)
	wide["v_head_dim"] = 14
	wide["q_lora_rank"] = nil
	wide["first_k_dense_replace"] = 2

	return map[string]map[string]any{
		"deepseek-v3":      common("deepseek_v3", latent),
		"deepseek-v3-wide": common("deepseek_v3", wide),
		"gpt-oss": common("gpt_oss", map[string]any{
			"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 6, "sliding_window": 5, "swiglu_limit": 0.5,
		}),
		"falcon": common("falcon", map[string]any{"new_decoder_architecture": true, "num_kv_heads": 2}),
		"olmo2":  common("olmo2", nil),
		"granite": common("granite", map[string]any{
			"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0, "attention_multiplier": 0.3,
		}),
		"granite-moe": common("granitemoeshared", map[string]any{
			"num_local_experts": 4, "residual_multiplier": 0.4, "shared_intermediate_size": 12,
		}),
		"cohere":  common("cohere", map[string]any{"use_qk_norm": true, "logit_scale": 0.5}),
		"smollm3": common("smollm3", map[string]any{"no_rope_layers": []int{1, 0}}),
		"stablelm": common("stablelm", map[string]any{
			"qk_layernorm": true, "partial_rotary_factor": 0.67, "hidden_size": 24,
		}),
		"gemma3": common("gemma3_text", map[string]any{
			"head_dim": 6, "sliding_window": 5, "query_pre_attn_scalar": 40, "sliding_window_pattern": 2,
		}),
	}
}

// everyTiny is what tests of properties run on: tiny's configurations, and newer's.
func everyTiny() map[string]map[string]any {
	all := tiny()
	maps.Copy(all, newer())
	return all
}

// Logits, hidden states, losses and the greedy continuation of every family, with both spellings of the configuration.
func TestFamilies(t *testing.T) {
	families(t, func(t *testing.T, dir string) {
		configs, _ := filepath.Glob(filepath.Join(dir, "config*.json"))
		for _, c := range configs {
			config := filepath.Base(c)
			t.Run(config, func(t *testing.T) {
				devices(t, func(t *testing.T, dev kernels.Device) {
					m := load(t, withConfig(t, dir, config), dev, Options{})
					if u := m.Config().Unknown; len(u) > 0 {
						t.Errorf("keys that nobody reads: %q", u)
					}
					checkForward(t, m, openExpected(t, filepath.Join(dir, "oracle")))
				})
			})
		}
	})
}

// Every gradient of every family.
func TestFamilyGradients(t *testing.T) {
	families(t, func(t *testing.T, dir string) {
		devices(t, func(t *testing.T, dev kernels.Device) {
			checkGradients(t, load(t, dir, dev, Options{}), openExpected(t, filepath.Join(dir, "oracle")))
		})
	})
}
