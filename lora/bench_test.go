package lora

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/modelcompress/compress/internal/cputime"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// BenchmarkStep measures training steps of 4 × 256 tokens on the checkpoint that COMPRESS_BENCH_MODEL names.
func BenchmarkStep(b *testing.B) {
	dir := os.Getenv("COMPRESS_BENCH_MODEL")
	if dir == "" {
		b.Skip("COMPRESS_BENCH_MODEL names no checkpoint")
	}

	for _, o := range []Options{
		{Kind: "lora", Rank: 8},
		{Kind: "mos", Rank: 8, EquivalentRank: 4, Shards: 4},
		{Kind: "full"},
	} {
		for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
			b.Run(fmt.Sprintf("%s/%s", o.Kind, p), func(b *testing.B) {
				m := openModel(b, dir, "cpu", lm.Options{Precision: p})
				o.Steps = b.N + 1
				o.Batch = 4
				o.Clip = 1
				o.LR = 1e-3
				used := 0.0
				o.Each = func(s Step) {
					if s.Step == 0 {
						b.ResetTimer() // the first step packs weights and makes the memory
						used = processorSeconds()
					}
				}

				defer func() { b.ReportMetric((processorSeconds()-used)/float64(b.N), "cpu-s/op") }()

				ids := scattered(m.Config().Vocab, 256)

				var err error
				if o.Kind == "full" {
					_, err = Tune(context.Background(), m, corpus.New(ids, ""), o)
				} else {
					_, err = Train(context.Background(), m, corpus.New(ids, ""), o)
				}
				if err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// scattered makes four sequences of tokens from all over a vocabulary.
func scattered(vocab, length int) [][]int32 {
	ids := make([][]int32, 4)
	for i := range ids {
		for t := range length {
			ids[i] = append(ids[i], int32(3+(i*7919+t*104729)%(vocab-3)))
		}
	}
	return ids
}

// processorSeconds is the processor time of the process.
func processorSeconds() float64 {
	return cputime.Process().Seconds()
}
