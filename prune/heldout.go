package prune

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// lossBatch is about how many tokens are run at a time.
const lossBatch = 8192

// errLoss: a loss is NaN or infinite.
var errLoss = failure.New("not a finite loss", "compress inspect MODEL --verify finds weights that are not finite")

// heldOut measures the perplexity of a model. progress gets how much more of lossWork is done, with every decoder layer
// of a batch: a batch of a large model takes minutes.
func heldOut(ctx context.Context, m *lm.Model, w corpus.Windows, progress func(more int64)) (HeldOut, error) {
	var loss, count []float64
	batch := max(1, lossBatch/max(w.SeqLen, 1))
	for at := 0; at < len(w.IDs); at += batch {
		part := w.IDs[at:min(at+batch, len(w.IDs))]
		tokens := tokensOf(part)
		hooks := &lm.Hooks{BlockOutput: func(int, kernels.Mat) { progress(tokens) }}
		r, err := m.Forward(ctx, part, lm.ForwardOptions{Hooks: hooks})
		if err != nil {
			return HeldOut{}, err
		}

		for _, row := range r.LossPerToken {
			sum := 0.0
			for _, v := range row {
				sum += v
			}
			loss, count = append(loss, sum), append(count, float64(len(row)))
		}

		progress(tokens * headLayers(m))
	}

	h := meanOf(loss, count)
	if math.IsNaN(h.NLL) || math.IsInf(h.NLL, 0) {
		return HeldOut{}, fmt.Errorf("%s: the loss on %s is %g: %w", m.Path(), w.Source, h.NLL, errLoss)
	}
	return h, nil
}

// meanOf is the loss per token, with the standard error of a ratio of two sums over windows, which for windows of equal
// length is the standard error of their means.
func meanOf(loss, count []float64) (h HeldOut) {
	sum, n := 0.0, 0.0
	for i, v := range loss {
		sum += v
		n += count[i]
		h.Windows = append(h.Windows, v/max(count[i], 1))
	}

	h.Tokens = int64(n)
	h.NLL = sum / n
	h.Perplexity = math.Exp(h.NLL)
	if len(loss) < 2 {
		return h
	}

	square := 0.0
	for i, v := range loss {
		d := v - h.NLL*count[i]
		square += d * d
	}

	k := float64(len(loss))
	stderr := math.Sqrt(square*k/(k-1)) / n * h.Perplexity
	h.Stderr = &stderr
	return h
}

// lossWork is what measuring takes, in passes of a token through a decoder layer.
func lossWork(m *lm.Model, w corpus.Windows) int64 {
	return tokensOf(w.IDs) * (int64(m.Blocks()) + headLayers(m))
}

// headLayers is how many decoder layers have the work of a model's head, at least one.
func headLayers(m *lm.Model) int64 {
	head := int64(m.Config().Vocab) * int64(m.Config().Hidden)
	layers := max(1, m.NumParameters()-head)
	return max(1, head*int64(m.Blocks())/layers)
}

func tokensOf(ids [][]int32) (n int64) {
	for _, row := range ids {
		n += int64(len(row))
	}
	return n
}
