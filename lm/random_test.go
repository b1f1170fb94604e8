package lm

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// recipe describes a checkpoint with random weights.
type recipe struct {
	config map[string]any
	dtype  safetensors.DType // F32 if zero
	std    float64           // of matrices; 0.1 if zero
	seed   uint64
	shard  int64 // bytes per file
	rename func(string) string
	extra  []safetensors.Info // written as zeros
}

// recorder is a [arch.Source] that has every tensor it is asked for, in the right shape.
type recorder struct {
	c     *arch.Config
	names []string
	shape map[string][]int64
}

func (r *recorder) Names() []string                   { return r.names }
func (r *recorder) Shape(name string) ([]int64, bool) { s, ok := r.shape[name]; return s, ok }
func (r *recorder) File(string) string                { return "recipe" }

func newRecorder(c *arch.Config) *recorder {
	r := &recorder{c: c, shape: map[string][]int64{}}
	for l := -1; l < c.Layers; l++ {
		for i := range c.Arch.Tensors {
			t := &c.Arch.Tensors[i]
			if t.PerBlock() != (l >= 0) || !c.Holds(t.When, l) {
				continue
			}

			for e := range c.Copies(t) {
				name := arch.Expand(t.Name, l, e)
				for _, d := range t.Shape {
					r.shape[name] = append(r.shape[name], c.Dim(d))
				}
				r.names = append(r.names, name)
			}
		}
	}

	return r
}

// write makes the checkpoint in a folder.
func (r recipe) write(t testing.TB, dir string) string {
	t.Helper()
	text, err := json.Marshal(r.config)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666); err != nil {
		t.Fatal(err)
	}

	config, err := arch.ParseConfig("config.json", text)
	if err != nil {
		t.Fatal(err)
	}

	if r.dtype == 0 {
		r.dtype = safetensors.F32
	}
	if r.std == 0 {
		r.std = 0.1
	}

	rec := newRecorder(config)
	var infos []safetensors.Info
	written := func(name string) string {
		if r.rename != nil {
			return r.rename(name)
		}
		return name
	}

	for _, name := range rec.names {
		infos = append(infos, safetensors.Info{Name: written(name), DType: r.dtype, Shape: rec.shape[name]})
	}

	w, err := safetensors.CreateDir(dir, append(infos, r.extra...), nil, safetensors.DirOptions{MaxShardSize: r.shard})
	if err != nil {
		t.Fatal(err)
	}

	for i, info := range infos {
		if err := w.WriteTensor(info.Name, r.data(info, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}

	for _, info := range r.extra {
		n, _ := info.DType.ByteSize(info.Shape)
		if err := w.WriteTensor(info.Name, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return dir
}

// data draws a tensor: matrices uniform with the recipe's deviation, vectors near 1 (weights) or 0 (biases).
func (r recipe) data(info safetensors.Info, index uint64) []byte {
	n := int(info.Elements())
	out := make([]byte, 0, n*info.DType.Bits()/8)

	centre, width := 0.0, r.std*math.Sqrt(12)
	if len(info.Shape) == 1 {
		width = 0.2
		if filepath.Ext(info.Name) == ".weight" {
			centre = 1
		}
	}

	for i := range n {
		v := float32(centre + width*(uniform(r.seed+index, uint64(i))-0.5))
		switch info.DType {
		case safetensors.F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		case safetensors.BF16:
			out = binary.LittleEndian.AppendUint16(out, kernels.ToBF16(v))
		case safetensors.F16:
			out = binary.LittleEndian.AppendUint16(out, kernels.ToF16(v))
		case safetensors.F64:
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(float64(v)))
		default:
			panic("recipe: element type")
		}
	}

	return out
}

// uniform is a number in [0, 1).
func uniform(seed, counter uint64) float64 { return rng.Token(seed).Float(counter) }

// tokens draws sequences of ids.
func tokens(seed uint64, vocab int, lens ...int) [][]int32 {
	var ids [][]int32
	for s, n := range lens {
		seq := make([]int32, n)
		for t := range seq {
			seq[t] = int32(uniform(seed+uint64(s), uint64(t)) * float64(vocab))
		}
		ids = append(ids, seq)
	}
	return ids
}

// tiny gives configurations that together use every architecture and option, small enough for the plain loops.
func tiny() map[string]map[string]any {
	common := func(modelType string, more map[string]any) map[string]any {
		c := map[string]any{
			"model_type": modelType, "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 3,
			"num_attention_heads": 4,
			"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 20, "max_position_embeddings": 64,
		}
		for k, v := range more {
			c[k] = v
		}
		return c
	}

	rope := func(kind string, more map[string]any) map[string]any {
		p := map[string]any{"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
		for k, v := range more {
			p[k] = v
		}
		return map[string]any{"rope_parameters": p}
	}

	gpt := map[string]any{"vocab_size": 37, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, "n_inner": 20}
	with := func(c map[string]any, more map[string]any) map[string]any {
		d := map[string]any{}
		for k, v := range c {
			d[k] = v
		}
		for k, v := range more {
			d[k] = v
		}
		return d
	}

	return map[string]map[string]any{
		"llama":         common("llama", map[string]any{"attention_bias": true, "mlp_bias": true}),
		"llama-linear":  common("llama", rope("linear", nil)),
		"llama-yarn":    common("llama", rope("yarn", map[string]any{"original_max_position_embeddings": 16})),
		"llama-dynamic": common("llama", with(rope("dynamic", nil), map[string]any{"max_position_embeddings": 16})),
		"mistral":       common("mistral", map[string]any{"sliding_window": 5}),
		"qwen2-window": common("qwen2",
			map[string]any{"use_sliding_window": true, "max_window_layers": 1, "sliding_window": 5}),
		"qwen3": common("qwen3", nil),
		"qwen3-types": common("qwen3",
			map[string]any{
				"layer_types":        []string{"full_attention", "sliding_attention", "full_attention"},
				"use_sliding_window": true, "sliding_window": 6,
			}),
		"phi3-longrope": common("phi3",
			map[string]any{
				"original_max_position_embeddings": 16,
				"rope_parameters": map[string]any{
					"rope_type": "longrope", "rope_theta": 10000.0,
					"original_max_position_embeddings": 16, "short_factor": []float64{1, 1.1, 1.2},
					"long_factor": []float64{2, 3, 4},
				}, "head_dim": 6,
			}),
		"gemma2":  common("gemma2", map[string]any{"sliding_window": 5, "query_pre_attn_scalar": 10}),
		"mixtral": common("mixtral", map[string]any{"num_local_experts": 4}),
		"qwen2-moe": common("qwen2_moe",
			map[string]any{
				"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
				"shared_expert_intermediate_size": 16, "decoder_sparse_step": 2, "mlp_only_layers": []int{},
			}),
		"qwen3-moe": common("qwen3_moe",
			map[string]any{
				"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
				"norm_topk_prob": true, "mlp_only_layers": []int{0},
			}),
		"olmoe": common("olmoe",
			map[string]any{"num_experts": 5, "num_experts_per_tok": 2, "clip_qkv": 0.5, "head_dim": 6}),
		"gpt2": with(gpt, map[string]any{"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}),
		"gptj": with(gpt, map[string]any{"model_type": "gptj", "rotary_dim": 4}),
		"opt": {
			"model_type": "opt", "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2,
			"num_attention_heads": 3, "ffn_dim": 20, "max_position_embeddings": 64, "word_embed_proj_dim": 24,
			"enable_bias": false,
		},
		"opt-350m": {
			"model_type": "opt", "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2,
			"num_attention_heads": 3, "ffn_dim": 20, "max_position_embeddings": 64, "word_embed_proj_dim": 16,
			"do_layer_norm_before": false,
		},
		"gptneox": {
			"model_type": "gpt_neox", "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2,
			"num_attention_heads": 3, "intermediate_size": 20, "max_position_embeddings": 64, "rotary_pct": 0.5,
		},
		"gptneox-serial": {
			"model_type": "gpt_neox", "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2,
			"num_attention_heads": 3, "intermediate_size": 20, "max_position_embeddings": 64,
			"use_parallel_residual": false, "attention_bias": false,
		},
	}
}
