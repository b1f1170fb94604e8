package bench

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// The drawn model: a Llama of 21.9 million parameters.
const (
	drawVocab, drawHidden, drawInner, drawBlocks = 4096, 512, 1408, 6
	drawHeads, drawKV, drawBatch, drawLength     = 8, 4, 4, 256
	drawTokens                                   = 32 // generated
)

// forwardCases run a model: whole batches, and one token at a time. done gives back what they hold.
func forwardCases(ctx context.Context, dev kernels.Device, o Options) (cases []timed, done func(), err error) {
	var undo []func()
	done = func() {
		for _, f := range undo {
			f()
		}
	}
	paths := map[string]string{"": o.Model}
	if o.Model == "" {
		dir, err := os.MkdirTemp("", "compress-bench-")
		if err != nil {
			return nil, done, err
		}
		undo = append(undo, func() { os.RemoveAll(dir) })
		paths = map[string]string{"F32 ": filepath.Join(dir, "f32"), "BF16 ": filepath.Join(dir, "bf16")}
		if err := drawModel(paths["F32 "], o.Seed); err != nil {
			return nil, done, err
		}
		bf16 := checkpoint.RewriteOptions{DType: safetensors.BF16}
		if _, err := checkpoint.Rewrite(ctx, paths["F32 "], paths["BF16 "], bf16, checkpoint.Env{Device: dev}); err != nil {
			return nil, done, err
		}
	}
	for _, label := range slices.Sorted(maps.Keys(paths)) {
		for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
			if label == "F32 " && p == kernels.Fast {
				continue
			}
			m, err := lm.Load(ctx, paths[label], dev, lm.Options{Precision: p})
			if err != nil {
				return nil, done, err
			}
			undo = append(undo, func() { m.Close() })
			cases = append(cases, modelCases(ctx, m, label+p.String())...)
		}
	}
	return cases, done, nil
}

// modelCases are a forward pass with loss, and greedy generation.
func modelCases(ctx context.Context, m *lm.Model, label string) []timed {
	c := m.Config()
	ids := make([][]int32, drawBatch)
	for i := range ids {
		ids[i] = make([]int32, min(drawLength, max(c.MaxPositions, 1)))
		for t := range ids[i] {
			ids[i][t] = int32((i*7919 + t*104729) % c.Vocab)
		}
	}
	weights := float64(m.NumParameters())
	if !c.Tied {
		weights -= float64(c.Vocab * c.Hidden) // the token table is looked up, not multiplied
	}
	bytes := float64(m.Source().DataSize())
	bytes *= weights / float64(m.NumParameters())
	return []timed{
		{
			"forward and loss " + label, 2 * weights * float64(drawBatch*len(ids[0])), bytes,
			func() error { _, err := m.Forward(ctx, ids, lm.ForwardOptions{}); return err },
		},
		{
			"generate 32 tokens " + label, 2 * weights * drawTokens, bytes * drawTokens,
			func() error {
				_, err := m.Generate(ctx, ids[0][:1], lm.GenerateOptions{MaxTokens: drawTokens})
				return err
			},
		},
	}
}

// drawModel writes the drawn model in F32.
func drawModel(dir string, seed uint64) error {
	s, err := checkpoint.Stage(dir, nil)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "vocab_size": drawVocab, "hidden_size": drawHidden,
		"intermediate_size": drawInner, "num_hidden_layers": drawBlocks, "num_attention_heads": drawHeads, "num_key_value_heads": drawKV,
		"max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(s.Dir, "config.json"), config, 0o666)
	}
	if err == nil {
		err = drawWeights(s.Dir, config, seed)
	}
	if err != nil {
		s.Abandon()
		return err
	}
	return s.Commit()
}
