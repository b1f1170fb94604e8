package quantize_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/quantize"
)

// A model's matrices in 8 bits, as vLLM and transformers read them, and what is left of the bytes.
func ExampleModel() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "quantize"))
	defer os.RemoveAll(dir)

	model := must(lm.Load(ctx, "../testdata/nano/base", cpu.New(cpu.Options{}), lm.Options{}))
	defer model.Close()

	calib := must(model.Sample(ctx, "../testdata/nano/text/calib.txt", corpus.SampleOptions{Samples: 4, SeqLen: 64}))
	o := quantize.Options{
		Scheme: must(quantize.SchemeByName("w8a16")), Method: quantize.GPTQ, Out: filepath.Join(dir, "small"),
	}

	report := must(quantize.Model(ctx, model, calib, o))
	fmt.Printf("%d matrices, %.2f bits a weight\n", report.Total.Matrices, report.Total.BitsPerWeight)
	// Output:
	// 28 matrices, 8.15 bits a weight
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
