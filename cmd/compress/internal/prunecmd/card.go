package prunecmd

import (
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/prune"
)

// card is what the README.md of the pruned model says, without what the command line adds.
func (r *Report) card(base string) card.Card {
	c := card.Card{
		Base: []string{base}, Library: card.Transformers, Tags: []string{"compress", "pruned", "sparse"},
		Title: "Pruned model",
		Text: fmt.Sprintf("A language model in which %.2f %% of the weights of %d matrices are zero, made with "+
			"compress.\n\n"+
			"`%s` says what became of each matrix.", 100*r.Total.Sparsity, r.Total.Matrices, prune.ManifestFile),
		Settings: []card.Row{{Name: "method", Values: []string{r.method()}}},
		Figures: []card.Row{
			{Name: "zeros of the pruned matrices", Values: []string{"", percent(r.Total.Sparsity)}},
			{Name: "zeros of all parameters", Values: []string{"", percent(r.Total.Overall)}},
		},
		Before: true,
	}

	add := func(name, value string) {
		if value != "" {
			c.Settings = append(c.Settings, card.Row{Name: name, Values: []string{value}})
		}
	}
	switch o := r.Options; {
	case o.MasksFrom != "":
	case o.Pattern.Sparsity() > 0:
		add("pattern", r.Meaning)
	default:
		add("sparsity asked for", percent(o.Sparsity))
	}
	if r.LowRank != nil {
		c.Remarks = append(c.Remarks, "It is not complete without its low-rank parts, which are an adapter of "+
			"their own.")
	}

	if r.Calibration != nil {
		c.Data = append(c.Data, perplexity.DataRow(r.Calibration))
	}
	r.Perplexity.Tell(&c)
	return c
}

func percent(x float64) string { return fmt.Sprintf("%.2f %%", 100*x) }

// card is what the README.md of a model with fewer tokens says.
func (r *VocabularyReport) card(base string) card.Card {
	c := card.Card{
		Base: []string{base}, Library: card.Transformers, Tags: []string{"compress", "pruned", "vocabulary"},
		Title: "Model with a smaller vocabulary",
		Text: fmt.Sprintf("A language model with the tokens that a text needs, %d of %d, made with compress. "+
			"Text that "+
			"needs no others is encoded as before.", r.After, r.Before),
		Figures: []card.Row{
			{Name: "tokens", Values: []string{fmt.Sprint(r.Before), fmt.Sprint(r.After)}},
			{Name: "weights", Values: []string{cli.Size(r.Bytes), cli.Size(r.BytesAfter)}},
		},
		Before: true,
	}
	if p := r.Perplexity; p != nil {
		p.Tell(&c)
		c.Figures = append(c.Figures, card.Row{Name: "bits a byte on the same text", Values: []string{
			fmt.Sprintf("%.4f", p.BitsBefore), fmt.Sprintf("%.4f", p.BitsAfter),
		}})
	}
	return c
}
