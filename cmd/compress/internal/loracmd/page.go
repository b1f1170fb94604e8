package loracmd

import (
	"bytes"
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// Page is the HTML page of a run: what was trained, what a reader has to know of the base, and how loss, learning rate
// and gradients went.
func Page(r *Report, remarks []string) ([]byte, error) {
	var x, loss, rate, norm []float64
	for _, s := range r.Steps {
		x, loss, rate, norm = append(x, float64(s.Step)), append(loss, s.Loss), append(rate, s.LR),
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
	page := report.Page{Title: "Training", Subtitle: r.Out, Sections: []report.Section{{
		Title: "Run", Text: remarks,
		Facts: facts,
		Charts: []*report.Chart{
			{
				Title: "Loss", Note: "mean over the tokens that count, before each update", X: step,
				Y: report.Axis{Label: "loss"}, Series: curves,
			},
			{
				Title: "Norm of the gradients", Note: "before clipping", X: step, Y: report.Axis{Label: "norm"},
				Series: []report.Series{{Name: "norm", X: x, Y: norm}},
			},
			{
				Title: "Learning rate", X: step, Y: report.Axis{Label: "rate"},
				Series: []report.Series{{Name: "rate", X: x, Y: rate}},
			},
		},
	}}}

	var text bytes.Buffer
	err := page.HTML(&text)
	return text.Bytes(), err
}
