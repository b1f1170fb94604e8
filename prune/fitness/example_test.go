package fitness_test

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
)

// Whether magnitude ranks the weights of a few blocks worse than Wanda: the cheapest rung.
func ExampleJudge() {
	ctx := context.Background()
	const nano = "../../testdata/nano"
	dev := cpu.New(cpu.Options{})
	tok := must(tokenizer.Load(nano + "/base"))
	calib := must(corpus.Sample(ctx, nano+"/text/calib.txt", tok, corpus.SampleOptions{Samples: 4, SeqLen: 64}))
	heldout := must(corpus.Sample(ctx, nano+"/text/valid.txt", tok, corpus.SampleOptions{Samples: 12, SeqLen: 64}))
	sets := must(fitness.Divide(heldout, 6, 2, 4, 0))

	judge := must(fitness.NewJudge(ctx, []fitness.Subject{{
		Name: "nano", Calib: calib, Search: sets[0], Select: sets[1], Test: sets[2],
		Open: func(ctx context.Context) (*lm.Model, error) { return lm.Load(ctx, nano+"/base", dev, lm.Options{}) },
	}}, fitness.Options{Settings: []fitness.Setting{{Sparsity: 0.6}}, Windows: 4}))
	defer judge.Close()

	var errors []float64
	for _, formula := range []string{"W", "W * sqrt(X)"} {
		m := must(judge.Measure(ctx, fitness.Task{
			Judge: judge.ID(), Rung: fitness.Layers, Metric: prune.FormulaPrefix + formula,
		}))
		errors = append(errors, m.Values[0])
	}
	fmt.Println("Wanda changes the outputs less than magnitude:", errors[1] < errors[0])
	// Output: Wanda changes the outputs less than magnitude: true
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
