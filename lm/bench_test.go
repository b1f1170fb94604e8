package lm

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/cputime"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/safetensors"
)

// benchLlama is a Llama of 21.9 million parameters.
func benchLlama(b *testing.B, dtype safetensors.DType) string {
	r := recipe{dtype: dtype, std: 0.02, config: map[string]any{
		"model_type": "llama", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1408,
		"num_hidden_layers":   6,
		"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
	}}
	return r.write(b, b.TempDir())
}

// cpuTime is the processor time of the whole process so far.
func cpuTime() time.Duration {
	return cputime.Process()
}

func benchModel(b *testing.B, dtype safetensors.DType, o Options, threads int) *Model {
	dev, err := device.Open("cpu", device.Options{Threads: threads})
	if err != nil {
		b.Fatal(err)
	}
	return load(b, benchLlama(b, dtype), dev, o)
}

// BenchmarkForward runs 4 sequences of 256 tokens with all logits' losses and reports the processor time of a pass.
func BenchmarkForward(b *testing.B) {
	for _, c := range []struct {
		name  string
		dtype safetensors.DType
		o     Options
	}{
		{"f32", safetensors.F32, Options{}},
		{"bf16", safetensors.BF16, Options{}},
		{"bf16-fast", safetensors.BF16, Options{Precision: kernels.Fast}},
	} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/%d", c.name, threads), func(b *testing.B) {
				m := benchModel(b, c.dtype, c.o, threads)
				ids := tokens(1, 4096, 256, 256, 256, 256)
				pass := func() {
					if _, err := m.Forward(context.Background(), ids, ForwardOptions{}); err != nil {
						b.Fatal(err)
					}
				}

				pass()
				busy, wall := time.Hour, time.Hour
				b.ReportAllocs()

				for b.Loop() {
					before, start := cpuTime(), time.Now()
					pass()
					busy, wall = min(busy, cpuTime()-before), min(wall, time.Since(start))
				}

				b.ReportMetric(busy.Seconds(), "min-cpu-s")
				b.ReportMetric(wall.Seconds(), "min-s")
			})
		}
	}
}

// BenchmarkDecode generates token by token and reports how many bytes of weights a second it reads.
func BenchmarkDecode(b *testing.B) {
	for _, dtype := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/%d", dtype, threads), func(b *testing.B) {
				m := benchModel(b, dtype, Options{}, threads)
				s, err := m.NewSession(SessionOptions{})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()

				ctx := context.Background()
				if _, err := s.Append(ctx, tokens(1, 4096, 64)[0]); err != nil {
					b.Fatal(err)
				}

				id := []int32{5}
				b.ReportAllocs()

				for b.Loop() {
					if _, err := s.Append(ctx, id); err != nil {
						b.Fatal(err)
					}
					if err := s.Truncate(64); err != nil {
						b.Fatal(err)
					}
				}

				read := m.NumParameters() - 4096*512 // the token table is not read
				b.ReportMetric(float64(read)*float64(dtype.Bits()/8)/b.Elapsed().Seconds()*float64(b.N)/1e9, "GB/s")
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}

// BenchmarkBackward computes all gradients of 4 sequences of 256 tokens, with every block computed again and
// with all of them kept, beside the forward pass alone; each twice in a row, because the second one finds its
// memory. The ratio is that of the processor times of backward alone (the whole less a forward pass) and
// forward.
func BenchmarkBackward(b *testing.B) {
	for _, c := range []struct {
		name  string
		dtype safetensors.DType
		o     Options
	}{
		{"f32", safetensors.F32, Options{}},
		{"bf16", safetensors.BF16, Options{}},
		{"bf16-fast", safetensors.BF16, Options{Precision: kernels.Fast}},
	} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/%d", c.name, threads), func(b *testing.B) {
				m := benchModel(b, c.dtype, c.o, threads)
				ids := tokens(1, 4096, 256, 256, 256, 256)
				ctx := context.Background()
				hooks := &Hooks{WeightGrad: func(string, kernels.Mat) error { return nil }}
				best := [3]time.Duration{time.Hour, time.Hour, time.Hour}
				b.ReportAllocs()

				for b.Loop() {
					for i, f := range []func() (*Result, error){
						func() (*Result, error) { return m.Forward(ctx, ids, ForwardOptions{}) },
						func() (*Result, error) { return m.Backward(ctx, ids, BackwardOptions{Hooks: hooks}) },
						func() (*Result, error) {
							return m.Backward(ctx, ids,
								BackwardOptions{Hooks: hooks, Keep: 1 << 40})
						},
					} {
						for range 2 {
							before := cpuTime()
							if _, err := f(); err != nil {
								b.Fatal(err)
							}
							best[i] = min(best[i], cpuTime()-before)
						}
					}
				}

				f := best[0].Seconds()
				b.ReportMetric(f, "forward-cpu-s")
				b.ReportMetric(best[1].Seconds(), "again-cpu-s")
				b.ReportMetric(best[2].Seconds(), "kept-cpu-s")
				b.ReportMetric((best[1].Seconds()-f)/f, "again/forward")
				b.ReportMetric((best[2].Seconds()-f)/f, "kept/forward")
			})
		}
	}
}
