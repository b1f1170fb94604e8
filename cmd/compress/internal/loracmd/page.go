package loracmd

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// Page is the HTML page of a run on a base: what was trained, what a reader has to know of the base, and how loss,
// learning rate
// and gradients went.
func Page(r *Report, base string, remarks []string) ([]byte, error) {
	var x, loss, rate, norm []float64
	for _, s := range r.Steps {
		x, loss, rate, norm = append(x, float64(s.Step)), append(loss, s.Loss), append(rate, 1000*s.LR),
			append(norm, s.GradNorm)
	}

	curves := []report.Series{{Name: "training", X: x, Y: loss}}
	if len(r.Evals) > 0 {
		held := report.Series{Name: "held out"}
		for _, e := range r.Evals {
			held.X, held.Y = append(held.X, float64(e.Step)), append(held.Y, e.Loss)
		}
		curves = append(curves, held)
	}

	facts := []report.Fact{
		{Name: "kind", Value: r.Options.Kind},
		{Name: "trained parameters", Value: cli.Thousands(r.Trainable)},
		{Name: "steps", Value: fmt.Sprint(len(r.Steps))},
		{Name: "tokens", Value: cli.Thousands(r.Tokens)},
		{Name: "tokens per second", Value: fmt.Sprintf("%.0f", r.PerSecond)},
		{Name: "last loss", Value: fmt.Sprintf("%.4f", loss[len(loss)-1])},
	}
	for i, u := range r.Sets {
		facts = append(facts, report.Fact{Name: "epochs of " + r.source(i), Value: fmt.Sprintf("%.2f", u.Epochs)})
	}

	step := report.Axis{Label: "step"}
	page := report.Page{Title: "Training of an adapter", Subtitle: r.Out, Sections: []report.Section{{
		Title: "Run", Text: remarks,
		Facts: facts,
		Charts: []*report.Chart{
			{
				Title: "Loss", Note: "mean over the tokens that count, before each update", X: step,
				Y: report.Axis{Label: "nats a token", Log: report.Spans(curves...)}, Series: curves,
			},
			{
				Title: "Norm of the gradients", Note: "before clipping", X: step, Y: report.Axis{Label: "norm"},
				Series: []report.Series{{Name: "norm", X: x, Y: norm}},
			},
			{
				Title: "Learning rate, thousandths", X: step,
				Series: []report.Series{{Name: "rate", X: x, Y: rate}},
			},
		},
		Tables: []*report.Table{settings(r, base)},
	}}}
	if r.Options.Kind == "full" {
		page.Title = "Training of all weights"
	}

	var text bytes.Buffer
	err := page.HTML(&text)
	return text.Bytes(), err
}

// settings says what was trained with which data and how.
func settings(r *Report, base string) *report.Table {
	t := &report.Table{Title: "Settings and data", Columns: report.Columns("what", "value")}
	o := r.Options
	add := func(name string, value any) {
		if text := fmt.Sprint(value); text != "" && text != "0" && text != "[]" {
			t.Add(name, text)
		}
	}

	add("base model", base)
	add("parameters of the base", cli.Thousands(r.Report.Base))
	add("data", r.Data.Source)
	add("sequences", cli.Thousands(int64(r.Data.Count)))
	add("tokens of a sequence, at most", r.Data.SeqLen)
	add("rank", o.Rank)
	add("alpha", o.Alpha)
	add("dropout", o.Dropout)
	add("matrices", strings.Join(o.Targets, ", "))
	add("learning rate", o.LR)
	add("schedule", o.Schedule)
	add("warm-up steps", o.Warmup)
	add("sequences of a step", o.Batch)
	add("optimizer", o.Optimizer)
	add("weight decay", o.WeightDecay)
	add("gradients clipped at", o.Clip)
	add("seed", o.Seed)
	add("device", r.Device.Name)
	return t
}
