package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/testdata"
)

const (
	demoLength  = 256
	demoSamples = 32
)

// runDemo fills dir.
func runDemo(j *job, dir string) (*demoReport, error) {
	files, err := fs.Sub(testdata.Nano, "nano")
	if err == nil {
		err = os.CopyFS(dir, files)
	}
	if err != nil {
		return nil, err
	}
	base, test := filepath.Join(dir, "base"), filepath.Join(dir, "text", "test.txt")
	dense, err := measureFolder(j, base, test, corpus.CutOptions{SeqLen: demoLength})
	if err != nil {
		return nil, err
	}
	r := &demoReport{Command: demoCommand, Model: "nano/base", SeqLen: demoLength, Tokens: dense.Tokens, Data: dense.Data.Hash}
	r.Rows = append(r.Rows, demoRow{Name: "dense", Method: "none", Pattern: "none", Perplexity: dense.Perplexity, Stderr: dense.Stderr, NLL: dense.NLL})
	for _, run := range demoRuns {
		o := pruneFlags{
			out: filepath.Join(dir, run.name), method: run.method, pattern: run.pattern, save: "dense",
			calib: filepath.Join(dir, "text", "calib.txt"), samples: demoSamples, seqlen: demoLength, ppl: test,
		}
		if run.pattern == prune.Unstructured {
			o.sparsity = 0.5
		}
		opts, err := o.options()
		if err != nil {
			return nil, err
		}
		p, err := pruneInto(j, base, o, opts)
		if err != nil {
			return nil, err
		}
		after := p.Perplexity.After
		r.Rows = append(r.Rows, demoRow{
			Name: run.name, Method: run.method, Pattern: run.pattern, Sparsity: p.Total.Sparsity,
			Perplexity: after.Perplexity, Stderr: after.Stderr, NLL: after.NLL, Seconds: p.Times.Total,
		})
	}
	return r, writeDemo(j, dir, r)
}

// writeDemo writes the two reports.
func writeDemo(j *job, dir string, r *demoReport) error {
	data, err := j.record(r)
	if err != nil {
		return err
	}
	if err := writeWhole(filepath.Join(dir, "report.json"), data); err != nil {
		return err
	}
	chart := &report.Chart{
		Title: "Perplexity on held-out text", Kind: report.Bar, X: report.Axis{Label: "perplexity (lower is better)"}, Series: []report.Series{{Name: "perplexity"}},
		Note: "± of the table: standard error over windows.",
	}
	for _, row := range r.Rows {
		chart.Labels = append(chart.Labels, row.Name)
		chart.Series[0].Y = append(chart.Series[0].Y, row.Perplexity)
	}
	var b bytes.Buffer
	page := &report.Page{
		Title: "compress demo", Subtitle: "A 0.5M-parameter Llama, pruned four ways",
		Sections: []report.Section{{
			Title: "What pruning cost",
			Text: []string{"Half of the weights of every matrix are set to zero: the smallest ones (magnitude), or those that matter least for " +
				"the outputs on calibration text (Wanda). 2:4 zeroes two of every four neighbours, the pattern that hardware can use."},
			Charts: []*report.Chart{chart}, Tables: []*report.Table{r.table()},
		}},
	}
	if err := page.HTML(&b); err != nil {
		return err
	}
	return writeWhole(filepath.Join(dir, "report.html"), b.Bytes())
}
