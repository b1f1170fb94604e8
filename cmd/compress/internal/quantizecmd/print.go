package quantizecmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/quantize"
)

// print shows the result by role, and what it cost.
func (r *Report) print(j *cli.Job) {
	measured := slices.ContainsFunc(r.Matrices, func(m quantize.Matrix) bool { return m.OutputError != nil })
	columns := []string{"role", "matrices", "weights", "weight error %|%.3f"}
	if measured {
		columns = append(columns, "output error %|%.3f", "rounded alone %|%.3f")
	}

	t := &report.Table{Columns: report.Columns(columns...)}
	type sum struct {
		n, measured             int
		weights                 int64
		weight, output, rounded float64
	}

	roles := map[string]*sum{}
	var order []string
	all := &sum{}
	for _, m := range r.Matrices {
		s := roles[m.Role]
		if s == nil {
			s = &sum{}
			roles[m.Role], order = s, append(order, m.Role)
		}
		for _, s := range []*sum{s, all} {
			s.n++
			s.weights += int64(m.Shape[0]) * int64(m.Shape[1])
			s.weight += m.Error
			if m.OutputError != nil {
				s.measured++
				s.output += *m.OutputError
				s.rounded += *m.Rounded
			}
		}
	}

	add := func(role string, s *sum) {
		row := []any{role, s.n, s.weights, 100 * s.weight / float64(max(s.n, 1))}
		if measured {
			n := float64(max(s.measured, 1))
			row = append(row, 100*s.output/n, 100*s.rounded/n)
		}
		t.Add(row...)
	}
	for _, role := range order {
		add(role, roles[role])
	}
	add("all", all)

	t.Note = fmt.Sprintf("%s by %s: %.2f bits a weight; %s became %s", r.schemes(), r.Options.Method,
		r.Total.BitsPerWeight, cli.Size(r.Total.BytesIn), cli.Size(r.Total.BytesOut))
	j.Table(t)

	r.Perplexity.Print(j)

	j.Printf("written to %s in %.1f s, %.1f of them quantising\n", r.Out, j.Elapsed().Seconds(), r.Times.Total)
	for _, n := range r.Notes {
		j.Note("%s", n)
	}
}

// card is what the README.md of the quantised model says.
func (r *Report) card(base string) card.Card {
	c := card.Card{
		Base: []string{base}, Library: card.Transformers, Tags: []string{"compress", "quantized"},
		Title: "Quantised model",
		Text: fmt.Sprintf("A language model whose matrices have %.2f bits a weight, made with compress.\n\n`%s` "+
			"says what "+
			"became of each matrix.", r.Total.BitsPerWeight, quantize.RecordFile),
		Settings: []card.Row{
			{Name: "scheme", Values: []string{r.schemes()}}, {Name: "method", Values: []string{r.Options.Method}},
		},
		Figures: []card.Row{
			{Name: "weights", Values: []string{cli.Size(r.Total.BytesIn), cli.Size(r.Total.BytesOut)}},
		},
		Before: true,
	}
	if r.Calibration != nil {
		c.Data = append(c.Data, perplexity.DataRow(r.Calibration))
	}
	r.Perplexity.Tell(&c)
	return c
}

// schemes says what the matrices became: the scheme and what that is, or how many have which.
func (r *Report) schemes() string {
	count := map[string]int{}
	var order []string
	for _, m := range r.Matrices {
		if count[m.Scheme] == 0 {
			order = append(order, m.Scheme)
		}
		count[m.Scheme]++
	}
	if len(order) < 2 {
		return fmt.Sprintf("%s (%s)", r.Options.Scheme.Name, r.Options.Scheme.Meaning())
	}
	for i, name := range order {
		order[i] = fmt.Sprintf("%d %s", count[name], name)
	}
	return strings.Join(order, ", ")
}
