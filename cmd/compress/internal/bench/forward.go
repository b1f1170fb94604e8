package bench

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// small is the model of the forward suite: a Llama of 21.9 million parameters.
var small = shape{vocab: 4096, hidden: 512, inner: 1408, blocks: 6, heads: 8, kv: 4, positions: 512}

const (
	drawBatch, drawLength = 4, 256
	drawTokens            = 32 // generated
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
		if err := small.write(paths["F32 "], safetensors.F32, o.Seed); err != nil {
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
			name: "forward and loss " + label, flops: 2 * weights * float64(drawBatch*len(ids[0])), bytes: bytes,
			run: func() error { _, err := m.Forward(ctx, ids, lm.ForwardOptions{}); return err },
		},
		{
			name: "generate 32 tokens " + label, flops: 2 * weights * drawTokens, bytes: bytes * drawTokens,
			run: func() error {
				_, err := m.Generate(ctx, ids[0][:1], lm.GenerateOptions{MaxTokens: drawTokens})
				return err
			},
		},
	}
}
