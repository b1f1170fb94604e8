package task_test

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// A model is evaluated on the first documents of a task.
func ExampleRun() {
	ctx, folder := context.Background(), "../../testdata/nano/base"
	model, err := lm.Load(ctx, folder, cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		panic(err)
	}
	defer model.Close()

	tok, err := tokenizer.Load(folder)
	if err != nil {
		panic(err)
	}

	suite, err := task.Load([]string{"../../testdata/nano/tasks/tales.yaml"})
	if err != nil {
		panic(err)
	}

	results, err := task.Run(ctx, model, tok, suite, task.Options{Limit: 20})
	if err != nil {
		panic(err)
	}

	fmt.Printf("%.1f bits per byte on %d documents\n", results.Results["tales"]["bits_per_byte,none"],
		results.Audits["tales"].Documents)
	// Output: 1.2 bits per byte on 20 documents
}
