package lora_test

import (
	"context"
	"fmt"
	"log"
	"path/filepath"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// A Mixture of Shards learns a sequence with a quarter of the parameters of a LoRA of its rank.
func ExampleTrain() {
	ctx := context.Background()
	dev, err := device.Open("cpu", device.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	m, err := lm.Load(ctx, filepath.Join("..", "testdata", "nano", "base"), dev, lm.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	data := corpus.New([][]int32{{7, 21, 9, 40, 7, 21, 9, 40, 7, 21, 9, 40}}, "example")
	a, err := lora.Train(ctx, m, data, lora.Options{
		Kind: "mos", Rank: 8, EquivalentRank: 2, Private: -1, Shards: 2,
		Steps: 60, LR: 0.01, Schedule: "cosine",
	})
	if err != nil {
		log.Fatal(err)
	}

	r := a.Report()
	fmt.Println("steps:", len(r.Steps))
	plain, err := lora.Count(m, lora.Options{Kind: "lora", Rank: 8})
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println("share of a LoRA's parameters:", float64(a.Trainable())/float64(plain))
	fmt.Println("learned:", r.Steps[len(r.Steps)-1].Loss < r.Steps[0].Loss/2)

	undo, err := a.Attach(m)
	if err != nil {
		log.Fatal(err)
	}
	defer undo()

	next, err := m.Generate(ctx, []int32{7, 21, 9, 40, 7, 21}, lm.GenerateOptions{MaxTokens: 4, Stop: []int32{}})
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println("continues:", next)
	// Output:
	// steps: 60
	// share of a LoRA's parameters: 0.25
	// learned: true
	// continues: [9 40 7 21]
}
