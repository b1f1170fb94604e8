package benchcmd

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/safetensors"
)

// pruneCases score and mask one large matrix, and prune a small model.
func pruneCases(ctx context.Context, dev kernels.Device, b *bed, _ Options) ([]timed, error) {
	cases, err := maskCases(dev)
	if err != nil {
		return nil, err
	}
	whole, err := wholeCases(ctx, dev, b)
	return append(cases, whole...), err
}

// maskCases score and mask.
func maskCases(dev kernels.Device) ([]timed, error) {
	const n = 4096
	b, ops := newMats(dev), dev.Ops()

	col := b.mat(kernels.F32, 1, n)
	mask := b.zero(kernels.U8, n, n)
	var cases []timed
	for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
		w := b.ring(d, n, n)
		read := float64(n * n * (d.Size() + 1))
		cases = append(
			cases,
			timed{name: fmt.Sprintf("wanda 50%% of every row %s", d), bytes: read, run: do(func() {
				ops.SelectRows(mask,
					kernels.Score{X: w(), Col: col}, n/2)
			})},
			timed{name: fmt.Sprintf("magnitude 50%% of the matrix %s", d), bytes: read, run: do(func() {
				ops.SelectAll(
					mask, kernels.Score{X: w()}, n*n/2)
			})},
			timed{name: fmt.Sprintf("wanda 2:4 %s", d), bytes: read, run: do(func() {
				ops.SelectNM(mask,
					kernels.Score{X: w(), Col: col}, 2, 4)
			})},
			timed{
				name: fmt.Sprintf("apply mask %s", d), bytes: read + float64(n*n*d.Size()),
				run: do(func() { ops.ApplyMask(w(), mask) }),
			},
		)
	}

	x, acc := b.ring(kernels.F32, n, n), b.zero(kernels.F64, 1, n)
	cases = append(cases, timed{
		name: "column sums of squares", flops: 2 * n * n, bytes: 4 * n * n,
		run: do(func() { ops.ColSumSq(acc, x()) }),
	})
	return cases, b.err
}

// block is a Llama of one block, 3.3 million parameters of which are pruned.
var block = shape{vocab: 512, hidden: 512, inner: 1408, blocks: 1, heads: 8, kv: 4, positions: 512}

// wholeCases prune a model of one block, calibration included.
func wholeCases(ctx context.Context, dev kernels.Device, b *bed) (cases []timed, err error) {
	const windows, length = 16, 128
	dir, err := b.random(block, safetensors.F32, 0)
	if err != nil {
		return nil, err
	}

	m, err := b.load(ctx, dir, dev, lm.Options{})
	if err != nil {
		return nil, err
	}

	calib := corpus.New(numbers(m.Config(), windows, length), "random")
	weights, _ := multiplied(m)

	passes := 4 * weights * windows * length // the block runs dense and pruned
	for _, c := range []struct {
		name   string
		metric prune.Metric
		flops  float64
	}{
		{"prune one block wanda", prune.Wanda(), passes},
		{"prune one block sparsegpt", prune.SparseGPT(), passes + sweep(m, windows*length)},
	} {
		cases = append(cases, timed{name: c.name, flops: c.flops, run: func() error {
			fresh, err := lm.Load(ctx, dir, dev, lm.Options{})
			if err != nil {
				return err
			}
			defer fresh.Close()
			_, err = prune.Model(ctx, fresh, calib, prune.Options{Metric: c.metric, Sparsity: 0.5})
			return err
		}})
	}

	return cases, nil
}

// sweep counts SparseGPT's operations beyond the passes, for a matrix of r rows and n inputs: the Hessian
// 2·tokens·n², its factor, inverse and the inverse's factor n³/3 + 2n³/3 + n³/3, and r·n² for the sweep.
// Matrices with the same inputs share a Hessian.
func sweep(m *lm.Model, tokens float64) (flops float64) {
	for i, l := range m.Linears(0) {
		n := float64(l.In)
		flops += float64(l.Out) * n * n
		if i == 0 || l.Role == "o" || l.Role == "gate" || l.Role == "down" {
			flops += 2*tokens*n*n + 4*n*n*n/3
		}
	}
	return flops
}
