package perplexity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm/corpus"
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

// Tell adds the figures and the text that they are of to a card; nothing for nil.
func (p *BeforeAfter) Tell(c *card.Card) {
	if p == nil {
		return
	}

	name := "perplexity on " + filepath.Base(p.Before.Data.Source)
	c.Before = true
	c.Figures = append(c.Figures, card.Row{Name: name, Values: []string{
		fmt.Sprintf("%.4f", p.Before.Perplexity), fmt.Sprintf("%.4f", p.After.Perplexity),
	}})
	c.Data = append(c.Data, DataRow(&p.Before.Data))
}

// DataRow is a text as a card names it: by its file and the hash of the tokens that were taken of it.
func DataRow(w *corpus.Windows) card.Row {
	return card.Row{Name: filepath.Base(w.Source), Values: []string{
		"`" + w.Hash + "`", fmt.Sprintf("%d sequences of %d tokens (%s)", w.Count, w.SeqLen, w.Mode),
	}}
}

// maxRecord bounds the record that is read back.
const maxRecord = 256 << 20

// figure is a perplexity in the record of a model.
type figure struct {
	PPL    float64  `json:"ppl"`
	Stderr *float64 `json:"stderr"`
	NLL    float64  `json:"nll"`
}

// Keep notes the figures in the JSON file that says how the model was made, in the place of those of an earlier run;
// nothing for nil.
func (p *BeforeAfter) Keep(file string) error {
	if p == nil {
		return nil
	}

	text, err := safefile.ReadFile(file, maxRecord)
	if err != nil {
		return err
	}
	record, err := orderedjson.Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}

	kept := func(r *Report) figure { return figure{r.Perplexity, r.Stderr, r.NLL} }
	w := p.Before.Data
	if err := record.Put("perplexity", struct {
		Data    string `json:"data"`
		Hash    string `json:"hash"` // of the tokens of the model before
		Windows int    `json:"windows"`
		SeqLen  int    `json:"seqlen"`
		Tokens  int64  `json:"tokens"` // predicted
		Before  figure `json:"before"`
		After   figure `json:"after"`
	}{filepath.Base(w.Source), w.Hash, w.Count, w.SeqLen, p.Before.Tokens, kept(p.Before), kept(p.After)}); err != nil {
		return err
	}
	if text, err = record.Compact(); err != nil {
		return err
	}

	var b bytes.Buffer
	if err := json.Indent(&b, text, "", " "); err != nil { // as the record is written
		return err
	}
	b.WriteByte('\n')
	return cli.WriteFile(file, b.Bytes())
}
