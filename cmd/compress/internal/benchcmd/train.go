package benchcmd

import (
	"context"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// Sequences and tokens of a training step.
const (
	trainBatch, trainLength = 2, 256
)

// trainCases are forward and backward passes, and steps of training. Of operations those with the weights are
// counted: two for every token going forward, two for the inputs' gradients, and two for the weights' where the
// weights are trained.
func trainCases(ctx context.Context, dev kernels.Device, b *bed, o Options) (cases []timed, err error) {
	o.Model = ""
	list, err := variants(ctx, dev, b, o)
	if err != nil {
		return nil, err
	}

	for _, v := range list {
		m, err := b.load(ctx, v.dir, dev, lm.Options{Precision: v.precision})
		if err != nil {
			return nil, err
		}

		cases = append(cases, backwardCase(ctx, m, v.label))
		if v.label == "BF16 exact" {
			continue
		}

		for _, t := range []struct {
			name string
			o    lora.Options
		}{
			{"lora step r 8 ", lora.Options{Kind: "lora", Rank: 8}},
			{"mos step e 4 ", lora.Options{Kind: "mos", Rank: 8, EquivalentRank: 4, Shards: 4}},
			{"full step ", lora.Options{Kind: "full"}},
		} {
			cases = append(cases, stepCase(ctx, dev, v, t.name+v.label, t.o))
		}
	}

	return cases, nil
}

// backwardCase computes the gradients of all parameters, with activations kept.
func backwardCase(ctx context.Context, m *lm.Model, label string) timed {
	ids := numbers(m.Config(), trainBatch, trainLength)
	weights, _ := multiplied(m)
	hooks := &lm.Hooks{WeightGrad: func(string, kernels.Mat) error { return nil }}
	return timed{
		name: "forward and backward " + label, flops: 6 * weights * trainBatch * float64(len(ids[0])), half: isHalf(m),
		run: func() error {
			_, err := m.Backward(ctx, ids, lm.BackwardOptions{Hooks: hooks, Keep: 1 << 40})
			return err
		},
	}
}

// stepCase trains for a few steps.
func stepCase(ctx context.Context, dev kernels.Device, v variant, name string, o lora.Options) timed {
	factor := 4.0
	if o.Kind == "full" {
		factor = 6
	}

	weights := float64(small.hidden * small.vocab)
	weights += float64(
		small.blocks * small.hidden * (2*small.hidden + 2*small.hidden/small.heads*small.kv + 3*small.inner))
	return timed{
		name: name, flops: factor * weights * trainBatch * trainLength, half: v.label != "F32 exact",
		steps: func(n int, mark func()) error {
			m, err := lm.Load(ctx, v.dir, dev, lm.Options{Precision: v.precision})
			if err != nil {
				return err
			}
			defer m.Close()

			o.Steps = n
			o.Batch = trainBatch
			o.Clip = 1
			o.LR = 1e-3
			o.Each = func(lora.Step) { mark() }

			data := corpus.New(numbers(m.Config(), trainBatch, trainLength), "random")
			if o.Kind == "full" {
				_, err = lora.Tune(ctx, m, data, o)
			} else {
				_, err = lora.Train(ctx, m, data, o)
			}

			return err
		},
	}
}
