package arch

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// llama is a valid configuration; more overrides its keys, and a nil value removes one.
func llama(more map[string]any) map[string]any {
	c := map[string]any{
		"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
		"num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64,
	}

	maps.Copy(c, more)

	for k, v := range more {
		if v == nil {
			delete(c, k)
		}
	}

	return c
}

func parse(t testing.TB, c map[string]any) (*Config, error) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return ParseConfig("config.json", text)
}

func must(t testing.TB, c map[string]any) *Config {
	t.Helper()
	parsed, err := parse(t, c)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// null is a JSON null in a configuration that llama builds.
var null = json.RawMessage("null")

// Every fault is one line that names file and key.
func TestConfigFaults(t *testing.T) {
	scaled := func(kind string, more map[string]any) map[string]any {
		p := map[string]any{"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
		for k, v := range more {
			p[k] = v
			if v == nil {
				delete(p, k)
			}
		}
		return llama(map[string]any{"rope_parameters": p})
	}

	for name, c := range map[string]struct {
		config map[string]any
		want   string
	}{
		"unknown architecture": {
			llama(map[string]any{"model_type": "mamba"}),
			`unknown architecture: model_type "mamba", which needs state-space layers; known: cohere, cohere2,`,
		},
		"no architecture":    {llama(map[string]any{"model_type": nil}), "unknown architecture: no model_type"},
		"type of model_type": {llama(map[string]any{"model_type": 3}), "model_type: 3 is not a string"},
		"missing key":        {llama(map[string]any{"hidden_size": nil}), "hidden_size: is missing"},
		"null required key":  {llama(map[string]any{"vocab_size": null}), "vocab_size: is missing"},
		"zero": {
			llama(map[string]any{"num_attention_heads": 0}),
			"num_attention_heads: 0 is not in 1..1048576",
		},
		"negative": {
			llama(map[string]any{"num_hidden_layers": -1}),
			"num_hidden_layers: -1 is not in 1..16384",
		},
		"huge": {
			llama(map[string]any{"intermediate_size": 1 << 40}),
			"intermediate_size: 1099511627776 is not in",
		},
		"fraction": {
			llama(map[string]any{"hidden_size": 16.5}),
			"hidden_size: 16.5 is not a whole number",
		},
		"text": {
			llama(map[string]any{"hidden_size": "16"}),
			`hidden_size: "16" is not a whole number`,
		},
		"heads": {
			llama(map[string]any{"hidden_size": 18}),
			"hidden_size: 18 is not a multiple of num_attention_heads 4",
		},
		"groups": {
			llama(map[string]any{"num_key_value_heads": 3}),
			"num_attention_heads: 4 is not a multiple of the 3 key/value heads",
		},
		"eps": {llama(map[string]any{"rms_norm_eps": -1}), "rms_norm_eps: -1 is not between 0 and 1"},
		"eps text": {
			llama(map[string]any{"rms_norm_eps": "1e-5"}),
			`rms_norm_eps: "1e-5" is not a number`,
		},
		"flag": {
			llama(map[string]any{"attention_bias": 1}),
			"attention_bias: 1 is neither true nor false",
		},
		"activation": {
			llama(map[string]any{"hidden_act": "mish"}),
			`hidden_act: unknown activation "mish"; known: gelu`,
		},
		"quantized": {
			llama(map[string]any{"quantization_config": map[string]any{"bits": 4}}),
			`quantization_config: {"bits":4} is not supported`,
		},
		"encoder": {
			llama(map[string]any{"is_encoder_decoder": true}),
			"is_encoder_decoder: true is not supported",
		},
		"layer types": {
			llama(map[string]any{"layer_types": []string{"full_attention"}}),
			"layer_types: 1 entries for 2 layers",
		},
		"layer type": {
			llama(map[string]any{"layer_types": []string{"full_attention", "linear_attention"}}),
			`layer_types: layer 1: unknown type "linear_attention"`,
		},
		"no window": {
			llama(map[string]any{"layer_types": []string{"full_attention", "sliding_attention"}}),
			"layer 1 slides, but the configuration gives no window",
		},
		"token id": {
			llama(map[string]any{"eos_token_id": 1.5}),
			"eos_token_id: 1.5 is neither a token id",
		},
		"rope type": {
			scaled("mrope", nil),
			`rope_parameters.rope_type: unknown type "mrope"; known: default, linear`,
		},
		"rope without type": {
			llama(map[string]any{"rope_scaling": map[string]any{"factor": 2}}),
			"rope_scaling.rope_type: is missing",
		},
		"rope factor": {
			scaled("linear", map[string]any{"factor": nil}),
			"rope_parameters.factor: is missing",
		},
		"rope factor zero": {
			scaled("linear", map[string]any{"factor": 0}),
			"rope_parameters.factor: 0 is not positive",
		},
		"rope factor text": {
			scaled("yarn", map[string]any{"factor": "2"}),
			`rope_parameters.factor: "2" is not a number`,
		},
		"rope base": {
			scaled("linear", map[string]any{"rope_theta": 0}),
			"rope_parameters.rope_theta: 0 cannot be the base",
		},
		"llama3 order": {
			scaled("llama3", map[string]any{"low_freq_factor": 4, "high_freq_factor": 1}),
			"high_freq_factor: 1 is not above low_freq_factor 4",
		},
		"longrope list": {
			scaled("longrope", map[string]any{"short_factor": []int{1}}),
			"rope_parameters.short_factor: must be a list of 2 numbers",
		},
		"rope per layer": {
			llama(map[string]any{"rope_parameters": map[string]any{"full_attention": map[string]any{}}}),
			"parameters per layer type",
		},
		"rope spelled twice": {
			llama(
				map[string]any{
					"rope_theta":      1e6,
					"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 1e4},
				}),
			"rope_parameters.rope_theta: 10000, but rope_theta is 1000000",
		},
		"rope types differ": {
			llama(map[string]any{"rope_scaling": map[string]any{"rope_type": "linear", "type": "yarn", "factor": 2}}),
			`"yarn", but rope_type is "linear"`,
		},
		"two rope sections": {
			llama(map[string]any{
				"rope_scaling":    map[string]any{"type": "linear", "factor": 2},
				"rope_parameters": map[string]any{"rope_type": "default"},
			}),
			"rope_scaling: the file has rope_parameters too",
		},
		"rope section": {
			llama(map[string]any{"rope_scaling": []int{1}}),
			"rope_scaling: [1] is not an object",
		},
		"partial rotation": {
			llama(
				map[string]any{
					"rope_parameters": map[string]any{"rope_type": "default", "partial_rotary_factor": 0.5},
				}),
			"0.5 is not supported for llama",
		},
		"odd rotation": {
			map[string]any{
				"model_type": "gpt_neox", "vocab_size": 8, "hidden_size": 12,
				"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
			},
			"3 of 12 channels of a head cannot be rotated",
		},
		"rotary_dim": {map[string]any{
			"model_type": "gptj", "vocab_size": 8, "n_embd": 12, "n_layer": 1,
			"n_head": 1,
		}, "64 of 12 channels"},
		"opt norm": {
			map[string]any{
				"model_type": "opt", "vocab_size": 8, "hidden_size": 12,
				"num_hidden_layers": 1, "num_attention_heads": 1, "ffn_dim": 8, "do_layer_norm_before": 0,
			},
			"do_layer_norm_before: 0 is neither true nor false",
		},
		"opt projection": {
			map[string]any{
				"model_type": "opt", "vocab_size": 8, "hidden_size": 12,
				"num_hidden_layers": 1, "num_attention_heads": 1, "ffn_dim": 8, "word_embed_proj_dim": 0,
			},
			"word_embed_proj_dim: 0 is not in 1..",
		},
		"experts": {
			llama(map[string]any{"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}),
			"num_experts_per_tok: 3 of 2 experts",
		},
		"experts spelled twice": {
			llama(map[string]any{"model_type": "qwen3_moe", "num_experts": 2, "num_local_experts": 3}),
			"num_local_experts: 3, but num_experts is 2",
		},
		"dense layers": {
			llama(map[string]any{"model_type": "qwen3_moe", "mlp_only_layers": []int{2}}),
			"mlp_only_layers: 2 is not one of 2 blocks",
		},
		"groups of experts": {
			llama(map[string]any{
				"model_type": "glm4_moe", "n_routed_experts": 8, "n_group": 3, "topk_group": 1,
				"num_experts_per_tok": 2,
			}),
			"n_group: 8 experts do not make 3 equal groups",
		},
		"too few experts in groups": {
			llama(map[string]any{
				"model_type": "deepseek_v3", "n_routed_experts": 8, "n_group": 4, "topk_group": 1,
				"num_experts_per_tok": 3, "num_key_value_heads": nil,
			}),
			"topk_group: 1 of 4 groups of 2 experts do not hold 3",
		},
		"groups of one expert": {
			llama(map[string]any{
				"model_type": "glm4_moe", "n_routed_experts": 4, "n_group": 4, "topk_group": 2,
				"num_experts_per_tok": 2,
			}),
			"n_group: 4: a group needs two experts",
		},
		"way to choose experts": {
			llama(map[string]any{
				"model_type": "deepseek_v2", "topk_method": "best", "num_experts_per_tok": 2,
				"num_key_value_heads": nil,
			}),
			`topk_method: unknown method "best"; known: greedy, group_limited_greedy`,
		},
		"odd rotated channels of latent attention": {
			llama(map[string]any{"model_type": "deepseek_v3", "qk_rope_head_dim": 5, "num_key_value_heads": nil}),
			"5 of 133 channels of a head cannot be rotated",
		},
		"latent attention with fewer keys": {
			llama(map[string]any{"model_type": "deepseek_v3", "num_key_value_heads": 1}),
			"num_key_value_heads: 1 is not supported for deepseek_v3",
		},
		"heads of another size than the norm of a whole row has room for": {
			llama(map[string]any{"model_type": "olmoe", "head_dim": 6}),
			"head_dim: 6 is not supported for olmoe, which has 4 here",
		},
		"list of rotated layers": {
			llama(map[string]any{"model_type": "smollm3", "no_rope_layers": []int{1}}),
			"no_rope_layers: 1 entries for 2 layers",
		},
		"state-space layer": {
			llama(map[string]any{"model_type": "granitemoehybrid", "layer_types": []string{"mamba", "attention"}}),
			`layer_types: layer 0: unknown type "mamba"; known: full_attention`,
		},
		"multiplier": {
			llama(map[string]any{"model_type": "granite", "residual_multiplier": 0}),
			"residual_multiplier: 0 is not a factor",
		},
		"rotation of a kind of layer": {
			llama(map[string]any{
				"model_type":      "gemma3_text",
				"rope_parameters": map[string]any{"full_attention": []int{1}, "sliding_attention": map[string]any{}},
			}),
			"rope_parameters.full_attention: [1] is not an object",
		},
		"scaling of a kind of layer": {
			llama(map[string]any{
				"model_type": "olmo3",
				"rope_parameters": map[string]any{
					"full_attention":    map[string]any{"rope_type": "yarn"},
					"sliding_attention": map[string]any{},
				},
			}),
			"rope_parameters.full_attention.factor: is missing",
		},
		"positions by biases": {
			llama(map[string]any{"model_type": "falcon", "alibi": true}),
			"alibi: true is not supported for falcon",
		},
		"softcap": {
			llama(map[string]any{"model_type": "gemma2", "final_logit_softcapping": -1}),
			"final_logit_softcapping: -1 is not a limit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, c.config)
			var typed *ConfigError
			if !errors.As(err, &typed) {
				t.Fatalf("error %v is no ConfigError", err)
			}
			if msg := err.Error(); !strings.Contains(msg, c.want) || !strings.HasPrefix(msg, "config.json: ") ||
				strings.Contains(msg, "\n") {
				t.Errorf("%q does not say %q", msg, c.want)
			}
		})
	}

	for text, want := range map[string]string{
		`{"model_type": "llama", "hidden_size": 64, "hidden_size": 128}`: "config.json: hidden_size: given twice",
		`{"model_type": "llama", "rope_scaling": {"factor": 2, "factor": 4}}`: "config.json: rope_scaling.factor: " +
			"given twice",
	} {
		var typed *ConfigError
		if _, err := ParseConfig("config.json", []byte(text)); !errors.As(err, &typed) || err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}

	for _, text := range []string{"", "[]", "null", "{", `{"model_type":`} {
		if _, err := ParseConfig("config.json", []byte(text)); err == nil ||
			!strings.HasPrefix(err.Error(), "config.json: not a JSON object") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Both spellings of every oracle model, and of every model that ships, give the same configuration.
func TestSpellingsOracle(t *testing.T) {
	root := os.Getenv("COMPRESS_ORACLE")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared", "oracle")
	}

	legacy, _ := filepath.Glob(filepath.Join(root, "models", "*", "config.legacy.json"))
	if len(legacy) == 0 {
		t.Skipf("%s is not there", filepath.Join(root, "models"))
	}

	for _, old := range legacy {
		var parsed [2]*Config
		for i, file := range []string{old, strings.Replace(old, ".legacy", "", 1)} {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}

			if parsed[i], err = ParseConfig(file, text); err != nil {
				t.Fatal(err)
			}
			if len(parsed[i].Unknown) > 0 {
				t.Errorf("%s: unknown keys %v", file, parsed[i].Unknown)
			}
			parsed[i].absent = nil // each spelling leaves the other's keys out
		}

		if !reflect.DeepEqual(parsed[0], parsed[1]) {
			t.Errorf("%s: %+v\n%+v", old, parsed[0], parsed[1])
		}
	}
}

// What an absent key, an explicit null and an older spelling mean.
func TestDefaults(t *testing.T) {
	mistral := func(more map[string]any) *Config {
		return must(t, llama(mergeMaps(map[string]any{"model_type": "mistral", "num_key_value_heads": 2}, more)))
	}
	if w := mistral(nil).Windows[1]; w != 4096 {
		t.Errorf("absent window of Mistral is %d", w)
	}
	if w := mistral(map[string]any{"sliding_window": null}).Windows[1]; w != 0 {
		t.Errorf("null window of Mistral is %d", w)
	}

	if k := must(t,
		llama(map[string]any{
			"model_type": "mistral", "hidden_size": 64, "num_attention_heads": 16,
			"num_key_value_heads": nil,
		})).KVHeads; k != 8 {
		t.Errorf("absent key heads of Mistral are %d", k)
	}

	if k := must(t, llama(map[string]any{"model_type": "mistral", "num_key_value_heads": null})).KVHeads; k != 4 {
		t.Errorf("null key heads of Mistral are %d", k)
	}
	if d := must(t, llama(map[string]any{"model_type": "qwen3"})).HeadDim; d != 128 {
		t.Errorf("absent head_dim of Qwen3 is %d", d)
	}

	g := must(t, llama(map[string]any{"model_type": "gemma2", "final_logit_softcapping": null}))
	if g.HeadDim != 256 || !g.Tied || g.AttnSoftcap != 50 || g.FinalSoftcap != 0 || g.AttnScales[0] != 1.0/16 ||
		g.Windows[0] != 4096 || g.Windows[1] != 0 {
		t.Errorf("Gemma 2: %+v", g)
	}

	q := must(t, llama(map[string]any{"model_type": "qwen2", "sliding_window": 12}))
	if q.Windows[1] != 0 || q.KVHeads != 2 {
		t.Errorf("Qwen2: %+v", q)
	}

	q = must(t,
		llama(map[string]any{
			"model_type": "qwen2", "sliding_window": 12, "use_sliding_window": true,
			"max_window_layers": 1,
		}))
	if q.Windows[0] != 0 || q.Windows[1] != 12 {
		t.Errorf("Qwen2 windows %v", q.Windows)
	}

	p := must(t,
		llama(map[string]any{
			"model_type": "phi3", "original_max_position_embeddings": 16,
			"rope_scaling": map[string]any{
				"type": "su", "short_factor": []float64{1, 2}, "long_factor": []float64{3, 4},
				"original_max_position_embeddings": 99,
			},
		}))

	if p.Rope.Type != "longrope" || p.Rope.Original != 16 || p.Rope.Factor != 4 || p.Rope.LongFactor[1] != 4 {
		t.Errorf("Phi-3: %+v", p.Rope)
	}

	c := must(t,
		llama(map[string]any{
			"model_type": nil, "architectures": []string{"LlamaForCausalLM"},
			"eos_token_id": []int{1, 2}, "colour": 3,
			"rope_scaling": map[string]any{"type": "linear", "factor": 2, "finetuned": true},
		}))

	if c.ModelType != "llama" || len(c.EOS) != 2 || c.BOS != -1 ||
		!reflect.DeepEqual(c.Unknown, []string{"colour", "rope_scaling.finetuned"}) {
		t.Errorf("%s %v %d %v", c.ModelType, c.EOS, c.BOS, c.Unknown)
	}
}

func mergeMaps(a, b map[string]any) map[string]any {
	m := maps.Clone(a)
	maps.Copy(m, b)
	return m
}

// FuzzParseConfig feeds arbitrary text; whatever parses must have consistent sizes.
func FuzzParseConfig(f *testing.F) {
	for _, modelType := range Known() {
		text, err := json.Marshal(
			llama(map[string]any{
				"model_type": modelType, "n_embd": 16, "n_head": 2, "n_layer": 1, "ffn_dim": 8,
				"rotary_dim": 4,
			}))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}

	f.Add(
		[]byte(
			`{"model_type":"llama","rope_scaling":{"type":"yarn","factor":1e308,"original_max_position_embeddings":1}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		c, err := ParseConfig("config.json", text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("more than one line: %q", err)
			}
			return
		}

		if c.Heads%c.KVHeads != 0 || c.HeadDim < 1 || c.Vocab < 1 || len(c.Windows) != c.Layers ||
			len(c.Mixture) != c.Layers {
			t.Fatalf("%+v", c)
		}

		for _, d := range Dims() {
			if c.Dim(d) < 0 {
				t.Fatalf("%s is %d", d, c.Dim(d))
			}
		}

		if c.Rope != nil {
			if freq, _ := c.Rope.InvFreq(c.MaxPositions); len(freq) != c.Rope.Dim/2 {
				t.Fatalf("%d frequencies", len(freq))
			}
		}
	})
}

// TestMeant: an unknown key is set beside those that the file could have given, and does not.
func TestMeant(t *testing.T) {
	text := `{"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
		"intermediate_size": 8, "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_thet": 5e5,
		"hidden_sizes": 8, "colour": 1}`
	c, err := ParseConfig("config.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	for key, want := range map[string]string{"rope_thet": "rope_theta", "hidden_sizes": "", "colour": ""} {
		if !strings.Contains(strings.Join(c.Unknown, " ")+" ", key+" ") {
			t.Errorf("%s is known", key)
		}
		if got := c.Meant(key); got != want {
			t.Errorf("%s: %q is meant, want %q", key, got, want)
		}
	}
}
