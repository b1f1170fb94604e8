package lm_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

const nano = "../testdata/nano/base"

// open loads the model that the examples run.
func open() *lm.Model {
	m, err := lm.Load(context.Background(), nano, cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return m
}

func ExampleLoad() {
	m, err := lm.Load(context.Background(), nano, cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	c := m.Config()
	fmt.Println(c.ModelType, m.Blocks(), "blocks,", m.NumParameters(), "parameters")
	for _, l := range m.Linears(0)[:2] {
		fmt.Println(l.Name, l.Role, l.Out, "×", l.In)
	}
	// Output:
	// llama 4 blocks, 480096 parameters
	// model.layers.0.self_attn.q_proj.weight q 96 × 96
	// model.layers.0.self_attn.k_proj.weight k 48 × 96
}

func ExampleModel_Forward() {
	m := open()
	defer m.Close()
	ids := [][]int32{{10, 20, 30, 40}, {7, 8}}
	r, err := m.Forward(context.Background(), ids, lm.ForwardOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Counted, "tokens predicted; of the first sequence", len(r.LossPerToken[0]))
	// Output: 4 tokens predicted; of the first sequence 3
}

func ExampleModel_Backward() {
	m := open()
	defer m.Close()

	ids := [][]int32{{10, 20, 30, 40}, {7, 8}}
	hooks := &lm.Hooks{WeightGrad: func(name string, g kernels.Mat) error {
		fmt.Println(name, g.Rows, "×", g.Cols) // g is only good during the call
		return nil
	}}

	want := func(name string) bool { return strings.HasSuffix(name, "v_proj.weight") }
	if _, err := m.Backward(context.Background(), ids, lm.BackwardOptions{Hooks: hooks, Want: want}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// model.layers.3.self_attn.v_proj.weight 48 × 96
	// model.layers.2.self_attn.v_proj.weight 48 × 96
	// model.layers.1.self_attn.v_proj.weight 48 × 96
	// model.layers.0.self_attn.v_proj.weight 48 × 96
}

func ExampleModel_BackwardBlock() {
	m := open()
	defer m.Close()

	ctx := context.Background()
	h, err := m.Embed([][]int32{{10, 20, 30, 40}})
	if err != nil {
		log.Fatal(err)
	}
	defer h.Free()

	for l := range 2 {
		count := 0
		hooks := &lm.Hooks{WeightGrad: func(string, kernels.Mat) error { count++; return nil }}
		if _, err := m.BackwardBlock(ctx, l, h, m.OutputRMS, lm.BackwardOptions{Hooks: hooks}); err != nil {
			log.Fatal(err)
		}

		fmt.Println("block", l, "has", count, "gradients")
		if err := m.RunBlock(ctx, l, h, nil); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// block 0 has 9 gradients
	// block 1 has 9 gradients
}

// The perplexity of a model folder on a text file, as compress ppl prints it.
func ExamplePerplexity() {
	text := "../testdata/nano/text/test.txt"
	o := lm.PerplexityOptions{Cut: corpus.CutOptions{SeqLen: 256, Limit: 8}}
	r, err := lm.Perplexity(context.Background(), nano, text, cpu.New(cpu.Options{}), o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f ± %.2f over %d tokens in %d sequences\n", r.Perplexity, *r.Stderr, r.Tokens, r.Windows)
	// Output: 1.85 ± 0.06 over 2040 tokens in 8 sequences
}

// Text in, text out: the model and the tokenizer in a folder continue a prompt.
func ExampleGenerate() {
	o := lm.TextOptions{GenerateOptions: lm.GenerateOptions{MaxTokens: 8}}
	r, err := lm.Generate(context.Background(), nano, "Question: 14 + 6 =", cpu.New(cpu.Options{}), o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d tokens: %q\n", len(r.IDs), r.Text)
	// Output: 8 tokens: " instrument of Felix Farrow is the oboe."
}

func ExampleModel_Generate() {
	m := open()
	defer m.Close()
	out, err := m.Generate(context.Background(), []int32{10, 20, 30}, lm.GenerateOptions{MaxTokens: 5, Stop: []int32{}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(out), "new tokens")
	// Output: 5 new tokens
}

// Sequences take steps together, and those that begin alike share what their beginning computes.
func ExampleBatch() {
	m := open()
	defer m.Close()

	b, err := m.NewBatch(lm.BatchOptions{Memory: 16 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()

	first := b.Add("")
	show := func(i, at int, logits []float32) error {
		fmt.Println("sequence", i, "has", len(logits) > 0, "logits after its new token", at)
		return nil
	}
	if err := b.Step(context.Background(), []lm.Work{
		{Sequence: first, IDs: []int32{1, 2, 3}, Prompt: true},
	}, show); err != nil {
		log.Fatal(err)
	}

	second := first.Fork()
	if err := b.Step(context.Background(), []lm.Work{
		{Sequence: first, IDs: []int32{4}}, {Sequence: second, IDs: []int32{5}},
	}, show); err != nil {
		log.Fatal(err)
	}
	// Output:
	// sequence 0 has true logits after its new token 2
	// sequence 0 has true logits after its new token 0
	// sequence 1 has true logits after its new token 0
}

// Hooks see what every matrix multiplies, for example to collect statistics for pruning.
func ExampleHooks() {
	m := open()
	defer m.Close()
	inputs := 0
	hooks := &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) { inputs += x.Rows * x.Cols }}
	if _, err := m.Forward(context.Background(), [][]int32{{1, 2, 3}}, lm.ForwardOptions{Hooks: hooks}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(inputs > 0)
	// Output: true
}

// A changed model is saved under its name only when it is complete.
func ExampleSaver() {
	m := open()
	defer m.Close()

	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	name := m.Linears(0)[0].Name
	w, err := m.MutableParam(name)
	if err != nil {
		log.Fatal(err)
	}

	w.Buf.U16()[0] = 0 // the first weight, BF16
	w.Buf.Changed()
	s, err := m.NewSaver(filepath.Join(dir, "changed"), lm.SaveOptions{})
	if err != nil {
		log.Fatal(err)
	}

	if err := s.Save(name); err != nil {
		log.Fatal(err)
	}
	if err := s.Finish(context.Background()); err != nil {
		log.Fatal(err)
	}

	fmt.Println("saved:", s.Complete())
	// Output: saved: true
}
