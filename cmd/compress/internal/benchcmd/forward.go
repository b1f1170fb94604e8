package benchcmd

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// small is the model of the forward suite: a Llama of 21.9 million parameters.
var small = shape{vocab: 4096, hidden: 512, inner: 1408, blocks: 6, heads: 8, kv: 4, positions: 512}

const (
	drawBatch, drawLength = 4, 256
	drawTokens            = 32  // generated
	drawPrompt            = 512 // of a session, before the first generated one
)

// variant is a model in a folder with a precision of its products.
type variant struct {
	label, dir string
	precision  kernels.Precision
}

// variants are the random model in its types and precisions, or the one that the options name.
func variants(ctx context.Context, dev kernels.Device, b *bed, o Options) ([]variant, error) {
	if o.Model != "" {
		return []variant{{"exact", o.Model, kernels.Exact}, {"fast", o.Model, kernels.Fast}}, nil
	}

	wide, err := b.random(small, safetensors.F32, 0)
	if err != nil {
		return nil, err
	}

	half, err := b.cast(ctx, small, dev)
	return []variant{
		{"F32 exact", wide, kernels.Exact},
		{"BF16 exact", half, kernels.Exact},
		{"BF16 fast", half, kernels.Fast},
	}, err
}

// forwardCases run a model: whole batches, and one token at a time.
func forwardCases(ctx context.Context, dev kernels.Device, b *bed, o Options) (cases []timed, err error) {
	list, err := variants(ctx, dev, b, o)
	if err != nil {
		return nil, err
	}

	for _, v := range list {
		m, err := b.load(ctx, v.dir, dev, lm.Options{Precision: v.precision})
		if err != nil {
			return nil, err
		}
		cases = append(cases, modelCases(ctx, m, v.label)...)
	}

	return cases, nil
}

// numbers are token ids in no order.
func numbers(c *lm.Config, rows, length int) [][]int32 {
	ids := make([][]int32, rows)
	for i := range ids {
		ids[i] = make([]int32, min(length, max(c.MaxPositions, 1)))
		for t := range ids[i] {
			ids[i][t] = int32((i*7919 + t*104729) % c.Vocab)
		}
	}
	return ids
}

// multiplied is how many weights every token is multiplied by, and the bytes that they take.
func multiplied(m *lm.Model) (weights, bytes float64) {
	c, all := m.Config(), float64(m.NumParameters())
	weights = all
	if !c.Tied {
		weights -= float64(c.Vocab * c.Hidden) // the token table is looked up, not multiplied
	}
	return weights, float64(m.DataSize()) * weights / all
}

// isHalf reports whether a model is stored in two bytes a weight.
func isHalf(m *lm.Model) bool { return m.DataSize() < 3*m.NumParameters() }

// modelCases are a forward pass with loss, the prompt of a session, and greedy generation.
func modelCases(ctx context.Context, m *lm.Model, label string) []timed {
	ids := numbers(m.Config(), drawBatch, drawLength)
	weights, bytes := multiplied(m)
	half := isHalf(m)
	prompt := numbers(m.Config(), 1, drawPrompt)[0]
	return []timed{
		{
			name: "forward and loss " + label, flops: 2 * weights * float64(drawBatch*len(ids[0])), bytes: bytes,
			half: half,
			run:  func() error { _, err := m.Forward(ctx, ids, lm.ForwardOptions{}); return err },
		},
		{
			name:  fmt.Sprintf("prompt of %d tokens %s", len(prompt), label),
			flops: 2 * weights * float64(len(prompt)), bytes: bytes, half: half,
			run: func() error {
				s, err := m.NewSession(lm.SessionOptions{})
				if err != nil {
					return err
				}
				defer s.Close()
				_, err = s.Append(ctx, prompt)
				return err
			},
		},
		{
			name: "generate 32 tokens " + label, flops: 2 * weights * drawTokens, bytes: bytes * drawTokens, half: half,
			run: func() error {
				_, err := m.Generate(ctx, ids[0][:1], lm.GenerateOptions{MaxTokens: drawTokens})
				return err
			},
		},
	}
}
