package editeval_test

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
)

// Facts are edited with fine-tuning of one matrix and with a codebook, and general ability is measured beside them.
func ExampleRun() {
	const nano = "../testdata/nano/"
	model, err := lm.Load(context.Background(), nano+"base", cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		panic(err)
	}
	defer model.Close()

	plan := editeval.Plan{
		Editors: []editeval.Editor{{Method: "ft"}, {Method: "grace"}}, Counts: []int{1, 4},
		Edits: []string{nano + "edits.json"},
		Tasks: []editeval.Task{{Entry: nano + "tasks/base.yaml", Limit: 20}}, Near: 2,
	}

	report, err := editeval.Run(context.Background(), model, plan, editeval.Options{})
	if err != nil {
		panic(err)
	}

	for _, row := range report.Models[0].Rows {
		if row.Edits == 4 {
			fmt.Printf("%s: %.0f of %d edits hold\n", row.Editor, 4*row.Held.Mean, row.Held.N)
		}
	}
	// Output:
	// ft: 4 of 4 edits hold
	// grace: 4 of 4 edits hold
}
