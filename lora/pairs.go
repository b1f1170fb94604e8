package lora

import (
	"context"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/peft"
	"github.com/modelcompress/compress/safetensors"
)

// Pairs are low-rank factors that were made elsewhere, such as those that pruning takes out of matrices.
type Pairs struct {
	Ranks map[string]int // by the name of the weight in the base; the adapter changes these alone
	// Pair gives A [rank, in] and B [out, rank] of a weight, F32 in host memory without gaps, when they are written,
	// one weight after the other. What is added to the weight's output for an input x is B·A·x.
	Pair      func(tensor string) (a, b kernels.Mat, err error)
	DType     safetensors.DType // of the factors in the file; 0: F32
	Overwrite bool              // replace an adapter that is there
}

// errPairs: factors do not fit the base.
var errPairs = failure.Misuse("factors that do not fit the base", "")

// WritePairs writes factors as the LoRA of a base in a folder, as PEFT's folders are, to the folder out. Every weight's
// alpha is its rank, so that the scale is 1. In a mixture of experts all have the largest rank, those that have less
// with zeros: PEFT does not follow ranks of single experts. notes say what others may not read. The errors wrap
// ErrExists, those of package safetensors, or say which factors do not fit.
func WritePairs(ctx context.Context, base, out string, p Pairs) (notes []string, err error) {
	b, err := adapter.OpenCheckpoint(ctx, base)
	if err != nil {
		return nil, err
	}
	defer b.Close()

	a, err := p.adapter(b)
	if err != nil {
		return nil, err
	}
	if a.Config.BaseHash, err = lm.Fingerprint(ctx, base); err != nil {
		return nil, err
	}

	err = peft.Write(out, a, peft.WriteOptions{
		DType: p.DType, Overwrite: p.Overwrite,
		Pair: func(l *adapter.Low) (x, y kernels.Mat, err error) {
			if err := ctx.Err(); err != nil {
				return x, y, err
			}
			if x, y, err = p.Pair(l.Module.Tensor); err != nil {
				return x, y, err
			}
			rank := p.Ranks[l.Module.Tensor]
			if x.Rows != rank || x.Cols != l.Module.In || y.Rows != l.Module.Out || y.Cols != rank {
				return x, y, fmt.Errorf("%w: %s: A [%d, %d] and B [%d, %d], rank %d", errPairs, l.Module.Tensor, x.Rows,
					x.Cols, y.Rows, y.Cols, rank)
			}
			return padded(x, l.Rank, x.Cols), padded(y, y.Rows, l.Rank), nil
		},
	})
	if err != nil {
		return nil, err
	}
	return lostOn(b.Config.Arch, modulesOf(a)).note(nil), nil
}

// padded is a matrix with zeros below and to the right, or itself where it has the size.
func padded(m kernels.Mat, rows, cols int) kernels.Mat {
	if m.Rows == rows && m.Cols == cols {
		return m
	}
	to := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	for i := range m.Rows {
		copy(to.RowF32(i), m.RowF32(i))
	}
	return to
}

// adapter is the adapter without its values.
func (p Pairs) adapter(b *adapter.Checkpoint) (*adapter.Adapter, error) {
	a := &adapter.Adapter{Config: adapter.Config{Kind: adapter.LoRA, Base: baseName(b.Dir), Biases: adapter.NoBias}}
	all := true
	for _, m := range b.Modules {
		rank := p.Ranks[m.Tensor]
		switch {
		case m.Tied || rank == 0:
			all = all && !m.Linear()
			continue
		case rank < 0 || !m.Linear():
			return nil, fmt.Errorf("%w: %s: rank %d", errPairs, m.Tensor, rank)
		}
		a.Low = append(a.Low, &adapter.Low{Module: m, Rank: rank, Alpha: float64(rank), Scale: 1})
		a.Config.Rank = max(a.Config.Rank, rank)
	}

	for name := range p.Ranks {
		if !slices.ContainsFunc(a.Low, func(l *adapter.Low) bool { return l.Module.Tensor == name }) {
			return nil, fmt.Errorf("%w: %s is no matrix of it", errPairs, name)
		}
	}
	if len(a.Low) == 0 {
		return nil, fmt.Errorf("%w: there are none", errPairs)
	}

	if slices.ContainsFunc(a.Low, func(l *adapter.Low) bool { return l.Module.Expert >= 0 }) {
		for _, l := range a.Low {
			l.Rank, l.Alpha = a.Config.Rank, float64(a.Config.Rank)
		}
	}

	a.Config.Alpha = float64(a.Config.Rank)
	a.Config.Targets.All = all
	return a, nil
}
