package loracmd

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/lora"
)

// adapterTags are those of adapters of a kind.
func adapterTags(kind string) []string { return []string{"compress", kind} }

// row is a line of a card with one value.
func row(name string, value any) card.Row {
	return card.Row{Name: name, Values: []string{fmt.Sprint(value)}}
}

// card is what the README.md of a trained adapter or model says.
func (r *run) card() card.Card {
	d := r.done
	o := &d.Options
	c := card.Card{
		Base: []string{r.model.Path()}, Library: card.PEFT, Tags: adapterTags(string(o.Kind)), Title: "Adapter",
		Text: fmt.Sprintf("An adapter of kind %s, trained with compress: %s of %s "+
			"parameters.\n\n`training.json` holds all "+
			"settings and the loss of every step.", o.Kind, cli.Thousands(d.Trainable), cli.Thousands(d.Base)),
		Settings: []card.Row{
			row("steps", len(d.Steps)), row("sequences of a step", o.Batch), row("learning rate", o.LR),
			row("tokens of a sequence", d.Data.SeqLen),
		},
		Figures: []card.Row{row("loss of the last step", fmt.Sprintf("%.4f", d.Steps[len(d.Steps)-1].Loss))},
	}
	if o.Kind == "full" {
		c.Library, c.Title = card.Transformers, "Trained model"
		c.Tags = []string{"compress"}
		c.Text = "A language model of which all parameters were trained with compress.\n\n`training.json` holds all " +
			"settings and the loss of every step."
	} else if o.Rank > 0 {
		c.Settings = append(c.Settings, row("rank", o.Rank), row("alpha", o.Alpha))
	}
	if r.o.Teaching.Model != "" {
		c.Settings = append(c.Settings, row("teacher", r.Typed(r.o.Teaching.Model)))
	}

	data := perplexity.DataRow(&d.Data)
	var names []string
	for _, path := range r.o.Data {
		names = append(names, filepath.Base(path))
	}
	data.Name = strings.Join(names, ", ")
	c.Data = []card.Row{data}

	if n := len(d.Evals); n > 0 {
		first, last := d.Evals[0], d.Evals[n-1]
		c.Data = append(c.Data, row("held out: "+filepath.Base(r.o.Held), "`"+r.o.Eval.Hash+"`"))
		c.Figures = append(c.Figures, row(fmt.Sprintf("held-out loss after step %d", first.Step),
			fmt.Sprintf("%.4f", first.Loss)))
		if n > 1 {
			c.Figures = append(c.Figures, row(fmt.Sprintf("held-out loss after step %d", last.Step),
				fmt.Sprintf("%.4f", last.Loss)))
		}
		if d.Best > 0 {
			c.Settings = append(c.Settings, row("kept", fmt.Sprintf("the state after step %d", d.Best)))
		}
	}
	return c
}

// foldCard is what the README.md of a model with an adapter in its weights says.
func foldCard(j *cli.Job, model, adapter string, r *lora.FoldReport) card.Card {
	return card.Card{
		Base: []string{model}, Library: card.Transformers, Tags: []string{"compress"},
		Title: "Model with an adapter merged into it",
		Text: fmt.Sprintf("The adapter `%s` was merged into the weights of its base, with compress: it changes "+
			"%d tensors.",
			j.Typed(adapter), r.Edited),
	}
}

// combineCard is what the README.md of an adapter made of several says.
func combineCard(j *cli.Job, dirs []string, model string, r *lora.CombineReport) card.Card {
	c := card.Card{
		Library: card.PEFT, Tags: adapterTags("lora"), Title: "Adapter",
		Text:     "An adapter made of others, with compress:\n\n",
		Settings: []card.Row{row("method", r.Method), row("rank", r.Rank)},
	}
	if model != "" {
		c.Base = []string{model}
	}
	for i, dir := range dirs {
		c.Text += fmt.Sprintf("* `%s`", j.Typed(dir))
		if i < len(r.Weights) {
			c.Text += fmt.Sprintf(", weight %g", r.Weights[i])
		}
		c.Text += "\n"
	}
	return c
}

// exportCard is what the README.md of an exported adapter says.
func exportCard(j *cli.Job, dir, model string, r *lora.ExportReport) card.Card {
	c := card.Card{
		Library: card.PEFT, Tags: adapterTags("lora"), Title: "Adapter",
		Text: fmt.Sprintf("A LoRA of rank %d on %d modules, made with compress of the adapter `%s` of kind %s.", r.Rank,
			r.Modules, j.Typed(dir), r.Kind),
	}
	if model != "" {
		c.Base = []string{model}
	}
	return c
}

// extractCard is what the README.md of the difference between two models says.
func extractCard(j *cli.Job, base, tuned string, r *lora.ExtractReport) card.Card {
	return card.Card{
		Base: []string{base}, Library: card.PEFT, Tags: adapterTags("lora"), Title: "Adapter",
		Text: fmt.Sprintf("The difference between `%s` and its base as a LoRA, made with "+
			"compress.", j.Typed(tuned)),
		Settings: []card.Row{row("rank", r.Rank)},
		Figures:  []card.Row{row("energy of the differences that is kept", fmt.Sprintf("%.4f %%", 100*r.Energy))},
	}
}
