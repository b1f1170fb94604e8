package quantize

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// TestLeft: everything that transformers has as a linear layer, and that stays a float, is named in the configuration,
// by the name that it has there.
func TestLeft(t *testing.T) {
	common := map[string]any{
		"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
		"intermediate_size": 32, "ffn_dim": 32, "max_position_embeddings": 64, "tie_word_embeddings": false,
	}
	for name, c := range map[string]struct {
		config map[string]any
		shapes map[string][]int64
		want   []string
	}{
		"a head of another name": {
			config: map[string]any{"model_type": "gpt_neox", "attention_bias": false},
			shapes: map[string][]int64{
				"gpt_neox.embed_in.weight": {37, 16}, "embed_out.weight": {37, 16},
				"gpt_neox.final_layer_norm.weight": {16}, "gpt_neox.final_layer_norm.bias": {16},
				"gpt_neox.layers.0.input_layernorm.weight":           {16},
				"gpt_neox.layers.0.input_layernorm.bias":             {16},
				"gpt_neox.layers.0.post_attention_layernorm.weight":  {16},
				"gpt_neox.layers.0.post_attention_layernorm.bias":    {16},
				"gpt_neox.layers.0.attention.query_key_value.weight": {48, 16},
				"gpt_neox.layers.0.attention.dense.weight":           {16, 16},
				"gpt_neox.layers.0.mlp.dense_h_to_4h.weight":         {32, 16},
				"gpt_neox.layers.0.mlp.dense_h_to_4h.bias":           {32},
				"gpt_neox.layers.0.mlp.dense_4h_to_h.weight":         {16, 32},
				"gpt_neox.layers.0.mlp.dense_4h_to_h.bias":           {16},
			},
			want: []string{"lm_head", "embed_out"},
		},
		"matrices beside the token table": {
			config: map[string]any{
				"model_type": "opt", "word_embed_proj_dim": 8, "do_layer_norm_before": false, "enable_bias": false,
				"tie_word_embeddings": true,
			},
			shapes: map[string][]int64{
				"model.decoder.embed_tokens.weight": {37, 8}, "model.decoder.embed_positions.weight": {66, 16},
				"model.decoder.project_in.weight": {16, 8}, "model.decoder.project_out.weight": {8, 16},
				"model.decoder.layers.0.self_attn_layer_norm.weight": {16},
				"model.decoder.layers.0.self_attn_layer_norm.bias":   {16},
				"model.decoder.layers.0.final_layer_norm.weight":     {16},
				"model.decoder.layers.0.final_layer_norm.bias":       {16},
				"model.decoder.layers.0.self_attn.q_proj.weight":     {16, 16},
				"model.decoder.layers.0.self_attn.k_proj.weight":     {16, 16},
				"model.decoder.layers.0.self_attn.v_proj.weight":     {16, 16},
				"model.decoder.layers.0.self_attn.out_proj.weight":   {16, 16},
				"model.decoder.layers.0.fc1.weight":                  {32, 16},
				"model.decoder.layers.0.fc2.weight":                  {16, 32},
			},
			want: []string{"lm_head", "model.decoder.project_in", "model.decoder.project_out"},
		},
		"the gate of a shared expert": {
			config: map[string]any{
				"model_type": "qwen2_moe", "num_key_value_heads": 2, "num_experts": 1, "num_experts_per_tok": 1,
				"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "qkv_bias": false,
				"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": true,
			},
			shapes: map[string][]int64{
				"model.embed_tokens.weight": {37, 16}, "model.norm.weight": {16},
				"model.layers.0.input_layernorm.weight":             {16},
				"model.layers.0.post_attention_layernorm.weight":    {16},
				"model.layers.0.self_attn.q_proj.weight":            {16, 16},
				"model.layers.0.self_attn.k_proj.weight":            {16, 16},
				"model.layers.0.self_attn.v_proj.weight":            {16, 16},
				"model.layers.0.self_attn.o_proj.weight":            {16, 16},
				"model.layers.0.mlp.gate.weight":                    {1, 16},
				"model.layers.0.mlp.experts.0.gate_proj.weight":     {16, 16},
				"model.layers.0.mlp.experts.0.up_proj.weight":       {16, 16},
				"model.layers.0.mlp.experts.0.down_proj.weight":     {16, 16},
				"model.layers.0.mlp.shared_expert.gate_proj.weight": {16, 16},
				"model.layers.0.mlp.shared_expert.up_proj.weight":   {16, 16},
				"model.layers.0.mlp.shared_expert.down_proj.weight": {16, 16},
				"model.layers.0.mlp.shared_expert_gate.weight":      {1, 16},
			},
			want: []string{"lm_head", "model.layers.0.mlp.gate", "model.layers.0.mlp.shared_expert_gate"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config := map[string]any{}
			maps.Copy(config, common)
			maps.Copy(config, c.config)
			blank(t, dir, config, c.shapes)

			o := options(t, "w8a16", RTN, filepath.Join(t.TempDir(), "out"))
			if _, err := Model(ctx, open(t, dir, 1), corpus.Windows{}, o); err != nil {
				t.Fatal(err)
			}
			var written struct {
				Quantization struct {
					Ignore []string `json:"ignore"`
				} `json:"quantization_config"`
			}
			if err := json.Unmarshal([]byte(files(t, o.Out)["config.json"]), &written); err != nil {
				t.Fatal(err)
			}
			if got := written.Quantization.Ignore; !slices.Equal(got, c.want) {
				t.Errorf("ignored are %q, want %q", got, c.want)
			}
		})
	}
}

// blank writes a model of zeros.
func blank(t *testing.T, dir string, config map[string]any, shapes map[string][]int64) {
	t.Helper()
	var infos []safetensors.Info
	for name, shape := range shapes {
		infos = append(infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape})
	}
	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if err := w.WriteTensor(info.Name, make([]byte, 4*info.Elements())); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	text, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}
