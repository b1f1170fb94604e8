package edit_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// A fact goes in, and comes out again.
func Example() {
	ctx := context.Background()
	dir := "../../testdata/nano/base"
	model := must(lm.Load(ctx, dir, cpu.New(cpu.Options{}), lm.Options{}))
	defer model.Close()

	set := must(edit.Read("../../testdata/nano/edits.json"))
	hp := must(edit.Defaults("ft-m", model.Config()))
	x := &edit.Encoder{Tokenizer: must(tokenizer.Load(dir)), Templates: hp.Templates}

	e := must(edit.New(model, edit.Options{Method: "ft-m", HParams: &hp}))
	defer e.Close()

	first := set.Records[:1]
	must(e.Apply(ctx, []edit.Encoded{must(x.Record(&first[0]))}, nil))
	fmt.Println("edited:", must(e.Judge(ctx, x, first)).Stats["efficacy_success"].Mean)
	if err := e.Undo(0); err != nil {
		panic(err)
	}

	fmt.Println("undone:", must(e.Judge(ctx, x, first)).Stats["efficacy_success"].Mean)
	// Output:
	// edited: 1
	// undone: 0
}

// A journal keeps what Open goes on from.
func ExampleOpen() {
	ctx := context.Background()
	dir := "../../testdata/nano/base"
	model := must(lm.Load(ctx, dir, cpu.New(cpu.Options{}), lm.Options{}))
	defer model.Close()

	set := must(edit.Read("../../testdata/nano/edits.json"))
	x := &edit.Encoder{Tokenizer: must(tokenizer.Load(dir)), Templates: [][]string{{"{}"}}}
	e := must(edit.New(model, edit.Options{Method: "ft-l"}))
	must(e.Apply(ctx, []edit.Encoded{must(x.Record(&set.Records[0]))}, []string{"first"}))
	var journal bytes.Buffer
	if err := e.WriteJournal(&journal, "", ""); err != nil {
		panic(err)
	}

	again := must(edit.Open(model, must(edit.ReadJournal(&journal)), true, edit.Options{Method: "ft-l"}))
	fmt.Println(again.Steps()[0].Edits, again.Steps()[0].Method)
	// Output: [first] ft-l
}

// How a text repeats itself: the entropy of its pairs and triples of words.
func ExampleFluency() {
	fmt.Printf("%.2f\n", edit.Fluency("the cat sat on the mat and the cat slept"))
	// Output: 2.98
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
