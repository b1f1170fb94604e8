package lm

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/lm/internal/layer"
)

// Part is one of the two branches of a block.
type Part int

// The branches.
const (
	AttentionPart Part = iota
	MLPPart            // the feed-forward network, or the mixture of them
)

// RunPart computes a branch of block l alone: src is what its matrices read, behind the norm that comes before them,
// and dst gets what the branch gives, before a norm that comes behind it and without the residual stream. Both are F32
// [ΣLens, hidden] and may not overlap; the sequences of src start at position 0.
func (m *Model) RunPart(ctx context.Context, l int, part Part, dst, src *Hidden) error {
	if dst.X.Rows != src.X.Rows || dst.X.Cols != m.config.Hidden || src.X.Cols != m.config.Hidden {
		return fmt.Errorf("%w: a branch of block %d from [%d, %d] to [%d, %d]", ErrInput, l, src.X.Rows, src.X.Cols,
			dst.X.Rows, dst.X.Cols)
	}

	run := (*layer.Pass).RunMLP
	if part == AttentionPart {
		run = (*layer.Pass).RunAttention
	}
	return m.within(src.Lens, nil, func(p *pass) error {
		return p.with(ctx, l, func(b *block) error { return run(p.Pass, b.Block, dst.X, src.X) })
	})
}
