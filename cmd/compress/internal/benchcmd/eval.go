package benchcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// people and cities are those that the program's small model knows: what questions and edits are about.
var (
	people = []string{
		"Wanda Brandt", "Conrad Lindt", "Leon Pryce", "Jonas Keller", "Jonas Farrow", "Mira Yates",
		"Zeno Jarvis", "Wanda Thorne",
	}
	cities = []string{"Leeds", "Seville", "Tampere", "Bergen"}
)

// Tasks of the eval suite: many questions with short answers, and texts that are generated.
const (
	choiceTask = `task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}]
num_fewshot: 0
`
	writingTask = `task: writing
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["<none>"], max_gen_toks: 32, do_sample: false}
metric_list: [{metric: exact_match}]
num_fewshot: 0
`
)

// evalCases answer questions with the program's small model: 96 documents with four choices, and 24 texts of 32 tokens.
func evalCases(ctx context.Context, dev kernels.Device, b *bed, _ Options) (cases []timed, err error) {
	m, tok, err := b.small(ctx, dev)
	if err != nil {
		return nil, err
	}

	for _, t := range []struct {
		name, text string
		documents  int
	}{{"eval 96 questions, 4 choices", choiceTask, 96}, {"eval 24 texts of 32 tokens", writingTask, 24}} {
		path, err := b.task(t.text, t.documents)
		if err != nil {
			return nil, err
		}

		suite, err := task.Load([]string{path})
		if err != nil {
			return nil, err
		}

		var tokens int64
		run := func() error {
			o := task.Options{Bootstrap: -1, Progress: func(_ string, _, total int64) { tokens = total }}
			_, err := task.Run(ctx, m, tok, suite, o)
			return err
		}

		if err := run(); err != nil {
			return nil, err
		}

		weights, _ := multiplied(m)
		cases = append(cases, timed{name: t.name, flops: 2 * weights * float64(tokens), run: run})
	}

	return cases, nil
}

// small opens the program's own small model with its tokenizer.
func (b *bed) small(ctx context.Context, dev kernels.Device) (*lm.Model, *tokenizer.Tokenizer, error) {
	dir, err := b.nano()
	if err != nil {
		return nil, nil, err
	}

	dir = filepath.Join(dir, "base")
	m, err := b.load(ctx, dir, dev, lm.Options{})
	if err != nil {
		return nil, nil, err
	}

	tok, err := tokenizer.Load(dir)
	return m, tok, err
}

// task writes a task file with its documents.
func (b *bed) task(text string, documents int) (path string, err error) {
	root, err := b.folder()
	if err != nil {
		return "", err
	}

	var lines []byte
	for i := range documents {
		line, err := json.Marshal(map[string]any{
			"prompt":  fmt.Sprintf("%s met %s. The birthplace of %s is", people[i/8%8], people[i%8], people[(i+i/8)%8]),
			"choices": cities, "label": i % len(cities),
		})
		if err != nil {
			return "", err
		}
		lines = append(append(lines, line...), '\n')
	}

	name := strings.Fields(text)[1]
	data := filepath.Join(root, name+".jsonl")
	if err := os.WriteFile(data, lines, 0o666); err != nil {
		return "", err
	}

	path = filepath.Join(root, name+".yaml")
	return path, os.WriteFile(path, []byte(strings.ReplaceAll(text, "DATA", strconv.Quote(data))), 0o666)
}
