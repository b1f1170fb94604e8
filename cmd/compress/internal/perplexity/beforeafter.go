package perplexity

import (
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// BeforeAfter is the perplexity on the same text of a model and of what was made of it.
type BeforeAfter struct {
	Before *Report `json:"before"`
	After  *Report `json:"after"`
}

// Print shows it; a nil receiver is where nothing was measured.
func (p *BeforeAfter) Print(j *cli.Job) {
	if p == nil {
		return
	}
	t := &report.Table{
		Columns: report.Columns("perplexity", "before|%.4f", "after|%.4f", "ratio|%.4f", "seqlen", "tokens"),
	}
	t.Add(p.Before.Data.Source, p.Before.Perplexity, p.After.Perplexity, p.After.Perplexity/p.Before.Perplexity,
		p.After.SeqLen, p.After.Tokens)
	j.Table(t)
}
