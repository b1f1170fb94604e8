package edit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// Facts are written into a checkpoint in a folder, which is checked, and restored.
func ExampleApplyFolder() {
	ctx := context.Background()
	base := "../../testdata/nano/base"
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)

	dev := cpu.New(cpu.Options{})
	model := must(lm.Load(ctx, base, dev, lm.Options{}))
	defer model.Close()

	set := must(edit.ReadSome("../../testdata/nano/edits.json", edit.ReadOptions{Count: 2}))
	o := edit.FolderOptions{Options: edit.Options{Method: "ft-m"}, Out: filepath.Join(dir, "edited")}
	report := must(edit.ApplyFolder(ctx, model, set, o))
	fmt.Println("answered:", report.Before["efficacy_success"], "before,", report.Metrics["efficacy_success"], "after")

	verified := must(edit.VerifyFolder(ctx, o.Out, base, dev))
	fmt.Println("verified:", verified.Steps, "step,", verified.Matrices, "matrix")

	undone := must(edit.UndoFolder(ctx, o.Out, dev, 0))
	fmt.Println("restored:", undone.Tensors)
	// Output:
	// answered: 0 before, 1 after
	// verified: 1 step, 1 matrix
	// restored: [model.layers.2.mlp.down_proj.weight]
}

// The first step of two is kept: the folder is that of the first batch.
func ExampleUndoFolder() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)

	dev := cpu.New(cpu.Options{})
	model := must(lm.Load(ctx, "../../testdata/nano/base", dev, lm.Options{}))
	defer model.Close()

	set := must(edit.ReadSome("../../testdata/nano/edits.json", edit.ReadOptions{Count: 2}))
	o := edit.FolderOptions{Options: edit.Options{Method: "ft-m"}, Batch: 1, Out: filepath.Join(dir, "edited")}
	must(edit.ApplyFolder(ctx, model, set, o))

	undone := must(edit.UndoFolder(ctx, o.Out, dev, 1))
	fmt.Println(undone.From, "steps before,", undone.To, "after,", len(undone.Removed), "edit taken out")
	// Output: 2 steps before, 1 after, 1 edit taken out
}

// A folder whose weights are not what its journal says is no edited model.
func ExampleVerifyFolder() {
	_, err := edit.VerifyFolder(context.Background(), "../../testdata/nano/base", "", cpu.New(cpu.Options{}))
	fmt.Println(errors.Is(err, edit.ErrNotEdited))
	// Output: true
}
