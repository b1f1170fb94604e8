package task_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

const nano = "../../testdata/nano"

// A model is evaluated on the first documents of a task.
func ExampleRun() {
	ctx := context.Background()
	model := must(lm.Load(ctx, nano+"/base", cpu.New(cpu.Options{}), lm.Options{}))
	defer model.Close()

	tok := must(tokenizer.Load(nano + "/base"))
	suite := must(task.Load([]string{nano + "/tasks/tales.yaml"}))
	results := must(task.Run(ctx, model, tok, suite, task.Options{Limit: 20}))

	fmt.Printf("%.1f bits per byte on %d documents\n", results.Results["tales"]["bits_per_byte,none"],
		results.Audits["tales"].Documents)
	// Output: 1.2 bits per byte on 20 documents
}

// The results, the answers and a sample of every document are written into a folder.
func ExampleOpenFolder() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)

	model := must(lm.Load(ctx, nano+"/base", cpu.New(cpu.Options{}), lm.Options{}))
	defer model.Close()

	tok := must(tokenizer.Load(nano + "/base"))
	suite := must(task.Load([]string{nano + "/tasks/base.yaml"}))
	folder := must(task.OpenFolder(filepath.Join(dir, "run"), task.FolderOptions{Samples: true}))
	defer folder.Close()

	must(folder.Run(ctx, model, tok, suite, task.Options{Limit: 5}))
	for _, e := range must(os.ReadDir(filepath.Join(dir, "run"))) {
		fmt.Println(e.Name())
	}
	// Output:
	// answers.jsonl
	// results.json
	// samples_base.jsonl
}

// Two models on one task; what was found is compared, and lies in a folder.
func ExampleRunBatch() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)

	plan := must(task.ParsePlan("plan.yaml", []byte("models: ["+nano+"/base, "+nano+"/tales]\n"+
		"tasks: ["+nano+"/tasks/tales.yaml]\nlimit: 10\n")))
	open := func(ctx context.Context, m task.PlanModel) (*task.BatchModel, error) {
		model, err := lm.Load(ctx, m.Path, cpu.New(cpu.Options{}), lm.Options{})
		if err != nil {
			return nil, err
		}
		tok := must(tokenizer.Load(m.Path))
		return &task.BatchModel{Model: model, Tokenizer: tok, Identity: must(model.Fingerprint(ctx))}, nil
	}
	closed := func(m *task.BatchModel) error { return m.Model.Close() }

	report := must(task.RunBatch(ctx, plan, filepath.Join(dir, "runs"), open, closed, task.BatchOptions{}))
	for _, row := range report.Against["tales"] {
		fmt.Println(row.Task, row.Metric, "improves:", row.Difference < 0)
	}
	// Output:
	// tales bits_per_byte improves: true
	// tales byte_perplexity improves: true
	// tales word_perplexity improves: true
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
