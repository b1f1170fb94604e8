package lm

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/safetensors"
)

// Every bad input is one clear line around a named error.
func TestBadInput(t *testing.T) {
	m := load(t, recipe{config: tiny()["gpt2"]}.write(t, t.TempDir()), ref.New(), Options{})
	cancelled, cancel := context.WithCancel(ctx)
	cancel()

	long := make([]int32, 65)
	for name, c := range map[string]struct {
		ctx    context.Context
		ids    [][]int32
		labels [][]int32
		is     error
		says   string
	}{
		"vocabulary": {
			ctx,
			[][]int32{{1}, {2, 37}},
			nil, ErrVocabulary,
			"37 at sequence 1, position 1; the model has 37 tokens",
		},
		"negative": {ctx, [][]int32{{-1}}, nil, ErrVocabulary, "-1 at sequence 0, position 0"},
		"too long": {ctx, [][]int32{long}, nil, ErrTooLong, "sequence 0 has 65 tokens, the model 64 positions " +
			"(n_positions)"},
		"empty": {ctx, [][]int32{{}}, nil, ErrInput, "no tokens"},
		"none":  {ctx, nil, nil, ErrInput, "no tokens"},
		"label": {
			ctx,
			[][]int32{{1, 2}},
			[][]int32{{1, 40}},
			ErrVocabulary,
			"label 40 at sequence 0, position 1",
		},
		"label count":   {ctx, [][]int32{{1, 2}}, [][]int32{{1}}, ErrInput, "sequence 0 has 1 labels for 2 ids"},
		"label batches": {ctx, [][]int32{{1, 2}}, [][]int32{}, ErrInput, "labels for 0 sequences, ids for 1"},
		"cancelled":     {cancelled, [][]int32{{1, 2}}, nil, context.Canceled, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.Forward(c.ctx, c.ids, ForwardOptions{Labels: c.labels})
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
		})
	}

	w, err := m.MutableParam("transformer.h.1.mlp.c_fc.weight")
	if err != nil {
		t.Fatal(err)
	}

	w.Buf.F32()[17] = float32(math.Inf(1))
	_, err = m.Forward(ctx, [][]int32{{1, 2, 3}}, ForwardOptions{})
	if !errors.Is(err, ErrNonFinite) ||
		!strings.Contains(err.Error(), "transformer.h.1.mlp.c_fc.weight is not finite at element 17") {
		t.Errorf("infinite weight: %v", err)
	}
}

// Checkpoints that disagree with their configuration are refused, naming file, tensor and key.
func TestBadCheckpoint(t *testing.T) {
	base := tiny()["llama"]
	with := func(key string, value any) map[string]any {
		c := map[string]any{}
		for k, v := range base {
			c[k] = v
		}
		c[key] = value
		return c
	}

	for name, c := range map[string]struct {
		r      recipe
		config map[string]any
		is     error
		says   string
	}{
		"inner size": {recipe{config: base}, with("intermediate_size", 24), ErrShape, "model.safetensors: tensor " +
			"\"model.layers.0.mlp.gate_proj.weight\": shape disagrees with the configuration: shape [20 24], but " +
			"config.json gives [24 24] (intermediate_size)"},
		"vocabulary": {
			recipe{config: base},
			with("vocab_size", 40), ErrShape,
			"shape [37 24], but config.json gives [40 24] (vocab_size)",
		},
		"heads": {
			recipe{config: base},
			with("num_key_value_heads", 4), ErrShape,
			"(num_key_value_heads, head_dim, hidden_size)",
		},
		"layers": {
			recipe{config: base},
			with("num_hidden_layers", 4), ErrMissingTensor,
			"of a llama with 4 layers: model.layers.3.input_layernorm.weight",
		},
		"many layers": {
			recipe{config: base},
			with("num_hidden_layers", 9999), ErrMissingTensor,
			"(9999 layers) asks for at least",
		},
		"fewer": {
			recipe{config: base},
			with("num_hidden_layers", 2), ErrExtraTensor,
			"a llama does not have these 16: model.layers.2.",
		},
		"biases": {
			recipe{config: base},
			with("attention_bias", false), ErrExtraTensor,
			"these 12: model.layers.0.self_attn.q_proj.bias",
		},
		"tied": {
			recipe{config: base},
			with("tie_word_embeddings", true), ErrExtraTensor,
			"tensor \"lm_head.weight\": tensor is not part of the model: it differs from model.embed_tokens.weight",
		},
		"untied": {
			recipe{config: with("tie_word_embeddings", true)},
			base, ErrMissingTensor,
			"lm_head.weight (where the head is the token table, config.json says tie_word_embeddings: true)",
		},
		"type": {
			recipe{
				config: with("num_hidden_layers", 1),
				extra:  []safetensors.Info{{Name: "x", DType: safetensors.I64, Shape: []int64{2}}},
			},
			with("num_hidden_layers", 1), ErrExtraTensor, "these 1: x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.r.write(t, t.TempDir())
			text, err := json.Marshal(c.config)
			if err != nil {
				t.Fatal(err)
			}

			if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666); err != nil {
				t.Fatal(err)
			}

			_, err = Load(ctx, dir, ref.New(), Options{})
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v", err)
			}
		})
	}

	dir := recipe{
		config: base,
		extra:  []safetensors.Info{{Name: "x", DType: safetensors.I64, Shape: []int64{2}}},
	}.write(t, t.TempDir())
	load(t, dir, ref.New(), Options{AllowExtra: true})
	if err := os.Remove(filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}

	if _, err := Load(ctx, dir, ref.New(), Options{}); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "config.json") {
		t.Errorf("no config.json: %v", err)
	}

	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(ctx, dir, ref.New(), Options{}); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("a link out of the folder: %v", err)
	}
	if _, err := Load(ctx, filepath.Join(dir, "nothing"), ref.New(), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// A failing Append leaves the session as it was, or empty where it cannot; streaming changes nothing.
func TestSessionAfterFailure(t *testing.T) {
	for _, name := range []string{"llama", "mistral"} {
		config := maps.Clone(tiny()[name])
		config["max_position_embeddings"] = 4096
		m := load(t, recipe{config: config, seed: 3}.write(t, t.TempDir()), cpu.New(cpu.Options{}),
			Options{Stream: true})
		seq := tokens(5, 37, 1500)[0]
		s, err := m.NewSession(SessionOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()

		first, err := s.Append(ctx, seq[:20])
		if err != nil {
			t.Fatal(err)
		}

		first = slices.Clone(first)
		cancelled := &afterBlocks{Context: ctx, left: 8} // fails in the third piece of the prompt
		if _, err := s.Append(cancelled, seq); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}

		want := 20
		if name == "mistral" {
			want = 0
		}
		if s.Len() != want {
			t.Fatalf("%s: %d tokens after the failure", name, s.Len())
		}
		if err := s.Truncate(0); err != nil {
			t.Fatal(err)
		}

		again, err := s.Append(ctx, seq[:20])
		if err != nil {
			t.Fatal(err)
		}

		near(t, "logits", again, first, 0)
		if _, err := s.Append(ctx, nil); !errors.Is(err, ErrInput) {
			t.Errorf("no tokens: %v", err)
		}
		if _, err := s.Append(ctx, []int32{99}); !errors.Is(err, ErrVocabulary) || s.Len() != 20 {
			t.Errorf("vocabulary: %v", err)
		}
	}
}

// afterBlocks is a context that is cancelled once it has been asked a number of times.
type afterBlocks struct {
	context.Context
	left int
}

func (a *afterBlocks) Err() error {
	a.left--
	if a.left < 0 {
		return context.Canceled
	}
	return nil
}
