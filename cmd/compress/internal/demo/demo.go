// Package demo prunes and measures the model that comes with the program.
package demo

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/measure"
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/testdata"
)

// Report is what the demo measured.
type Report struct {
	Command string `json:"command"`
	Model   string `json:"model"`
	SeqLen  int    `json:"seqlen"`
	Tokens  int64  `json:"tokens"`
	Data    string `json:"data_hash"`
	Rows    []Row  `json:"rows"`
}

// Row is one version of the model.
type Row struct {
	Name       string   `json:"name"`
	Method     string   `json:"method"`
	Pattern    string   `json:"pattern"`
	Sparsity   float64  `json:"sparsity"` // zeros of the blocks' matrices
	Perplexity float64  `json:"ppl"`
	Stderr     *float64 `json:"stderr"`
	NLL        float64  `json:"nll"`
	Seconds    float64  `json:"prune_seconds"`
}

// runs are the versions that the demo makes.
var runs = []struct{ name, method, pattern string }{
	{"magnitude-50", "magnitude", prune.Unstructured},
	{"wanda-50", "wanda", prune.Unstructured},
	{"pruner-zero-50", "pruner-zero", prune.Unstructured},
	{"sparsegpt-50", "sparsegpt", prune.Unstructured},
	{"magnitude-2-4", "magnitude", "2:4"},
	{"wanda-2-4", "wanda", "2:4"},
	{"pruner-zero-2-4", "pruner-zero", "2:4"},
	{"sparsegpt-2-4", "sparsegpt", "2:4"},
}

// command marks the report of a demo, so that a later demo knows the folder as its own.
const command = "compress demo"

// Run writes the demo to a folder: models, texts, report.json and report.html.
func Run(j *shell.Job, out string) (any, error) {
	s, err := checkpoint.Stage(out, oldDemo)
	if err != nil {
		return nil, err
	}
	r, err := fill(j, s.Dir)
	if err != nil {
		s.Abandon()
		return nil, err
	}
	if err := s.Commit(); err != nil {
		return nil, err
	}
	j.Table(r.table())
	j.Printf("\nEverything is in %s: the models, report.json, and report.html to look at. Try next:\n", out)
	for _, next := range []string{
		"compress inspect " + filepath.Join(out, "wanda-50"),
		fmt.Sprintf("compress generate %s --prompt 'Wanda Thorne works as a' --max-tokens 16", filepath.Join(out, "wanda-50")),
		fmt.Sprintf("compress prune %s --calib %s --seqlen 256 --sparsity 0.6 --out my-model", filepath.Join(out, "base"), filepath.Join(out, "text", "calib.txt")),
	} {
		j.Printf("  %s\n", next)
	}
	return r, nil
}

// oldDemo tells whether a folder may be replaced: it is that of a demo, and nothing was added.
func oldDemo(dir string) error {
	if !isDemo(dir) {
		return fmt.Errorf("%w: it holds something else than is written here, and is not replaced (HINT: choose another --out)", checkpoint.ErrTarget)
	}
	made := map[string]bool{"report.json": true, "report.html": true}
	for _, run := range runs {
		made[run.name] = true
	}
	shipped, err := testdata.Nano.ReadDir("nano")
	if err != nil {
		return err
	}
	for _, e := range shipped {
		made[e.Name()] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var foreign []string
	for _, e := range entries {
		if !made[e.Name()] {
			foreign = append(foreign, e.Name())
		}
	}
	if len(foreign) > 0 {
		return checkpoint.Foreign(foreign)
	}
	return nil
}

// isDemo tells whether a folder was written by a demo.
func isDemo(path string) bool {
	data, err := os.ReadFile(filepath.Join(path, "report.json"))
	var r struct {
		Command string `json:"command"`
	}
	return err == nil && json.Unmarshal(data, &r) == nil && r.Command == command
}

func (r *Report) table() *report.Table {
	t := &report.Table{
		Title:   "0.5M-parameter Llama, perplexity on held-out text",
		Columns: report.Columns("model", "zeros %|%.1f", "perplexity|%.3f", "±|%.3f", "times dense|%.2f"),
		Note:    fmt.Sprintf("windows of %d tokens, %d predicted tokens, zeros in the matrices of the blocks", r.SeqLen, r.Tokens),
	}
	for _, row := range r.Rows {
		t.Add(row.Name, 100*row.Sparsity, row.Perplexity, measure.OrNone(row.Stderr), row.Perplexity/r.Rows[0].Perplexity)
	}
	return t
}
