package demo

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/measure"
	"github.com/modelcompress/compress/cmd/compress/internal/pruning"
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/testdata"
)

const (
	seqlen  = 256
	samples = 32
)

// fill fills dir.
func fill(j *shell.Job, dir string) (*Report, error) {
	files, err := fs.Sub(testdata.Nano, "nano")
	if err == nil {
		err = os.CopyFS(dir, files)
	}
	if err != nil {
		return nil, err
	}
	base, test := filepath.Join(dir, "base"), filepath.Join(dir, "text", "test.txt")
	dense, err := measure.Folder(j, base, test, corpus.CutOptions{SeqLen: seqlen})
	if err != nil {
		return nil, err
	}
	r := &Report{Command: command, Model: "nano/base", SeqLen: seqlen, Tokens: dense.Tokens, Data: dense.Data.Hash}
	r.Rows = append(r.Rows, Row{Name: "dense", Method: "none", Pattern: "none", Perplexity: dense.Perplexity, Stderr: dense.Stderr, NLL: dense.NLL})
	for _, run := range runs {
		o := pruning.Options{
			Out: filepath.Join(dir, run.name), Method: run.method, Pattern: run.pattern, Save: "dense",
			Calib: filepath.Join(dir, "text", "calib.txt"), Samples: samples, SeqLen: seqlen, PPL: test,
		}
		if run.pattern == prune.Unstructured {
			o.Sparsity = 0.5
		}
		p, err := pruning.Into(j, base, o)
		if err != nil {
			return nil, err
		}
		after := p.Perplexity.After
		r.Rows = append(r.Rows, Row{
			Name: run.name, Method: run.method, Pattern: run.pattern, Sparsity: p.Total.Sparsity,
			Perplexity: after.Perplexity, Stderr: after.Stderr, NLL: after.NLL, Seconds: p.Times.Total,
		})
	}
	return r, write(j, dir, r)
}

// write writes the two reports.
func write(j *shell.Job, dir string, r *Report) error {
	data, err := j.Record(r)
	if err != nil {
		return err
	}
	if err := shell.WriteFile(filepath.Join(dir, "report.json"), data); err != nil {
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
		Title: "compress demo", Subtitle: "A 0.5M-parameter Llama, pruned eight ways",
		Sections: []report.Section{{
			Title: "What pruning cost",
			Text: []string{"Half of the weights of every matrix are set to zero: the smallest ones (magnitude), or those that matter least for " +
				"the outputs on calibration text (Wanda), or for the loss as its gradient says (Pruner-Zero); SparseGPT also corrects the weights that stay. 2:4 zeroes two of every four neighbours, the pattern that hardware can use."},
			Charts: []*report.Chart{chart}, Tables: []*report.Table{r.table()},
		}},
	}
	if err := page.HTML(&b); err != nil {
		return err
	}
	return shell.WriteFile(filepath.Join(dir, "report.html"), b.Bytes())
}
