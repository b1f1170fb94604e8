// Package mediating runs the verbs about models that conflict: conflict and experts.
package mediating

import (
	"bytes"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/merge"
)

// ConflictOptions are the flags of conflict.
type ConflictOptions struct {
	Density                   float64
	Granularity, Memory, HTML string
	NonFinite                 bool
}

// Conflict measures, prints and writes the page.
func Conflict(j *shell.Job, path string, o ConflictOptions) (any, error) {
	threads, err := j.Threads()
	if err != nil {
		return nil, err
	}
	memory, err := shell.Bytes("memory", o.Memory)
	if err != nil {
		return nil, err
	}
	if o.HTML != "" {
		own := func(file string) bool { return strings.HasSuffix(file, ".html") }
		if err := (shell.Place{Flag: "html", Path: o.HTML, What: "a page", Own: own, Inputs: j.Inputs}).Check(); err != nil {
			return nil, err
		}
		if err := shell.Apart([2]string{"html", o.HTML}, [2]string{"report", j.ReportTo()}); err != nil {
			return nil, err
		}
	}
	r, err := merge.Read(path)
	if err != nil {
		return nil, excerpted(j, err)
	}
	bar := j.ByteBars()
	result, err := merge.Conflict(j.Ctx, r, merge.ConflictOptions{
		Workers: threads, Memory: memory, Density: o.Density, Granularity: o.Granularity, AllowNonFinite: o.NonFinite,
		Progress: func(p merge.Progress) { bar.Show("comparing", p.Done, p.Total) },
	})
	bar.End()
	if err != nil {
		return nil, excerpted(j, err)
	}
	for _, w := range result.Warnings {
		j.Note("warning: %s", w)
	}
	j.Table(measures(result, result.Groups))
	if o.HTML == "" {
		return result, nil
	}
	var page bytes.Buffer
	if err := conflictPage(result).HTML(&page); err != nil {
		return nil, err
	}
	return result, shell.WriteFile(o.HTML, page.Bytes())
}

// excerpted shows the lines that a fault of the recipe is about before it is reported.
func excerpted(j *shell.Job, err error) error {
	if text := merge.Excerpts(err); text != "" && !j.Quiet {
		j.Note("%s", strings.TrimRight(text, "\n"))
	}
	return err
}

// measures is a row per group, the baseline last.
func measures(r *merge.ConflictReport, groups []merge.ConflictGroup) *report.Table {
	t := &report.Table{Columns: report.Columns("group", "elements", "active", "conflicting", "disagree|%.4f", "any|%.4f", "coactive|%.4f",
		"total|%.4f", "mass|%.4f", "cosine|%.4f", "excess|%.3f")}
	for _, g := range append(groups[:len(groups):len(groups)], r.Whole) {
		name := g.Name
		if name == "" {
			name = "all"
		}
		t.Add(name, g.Elements, g.Active, g.Both, g.Disagree, g.Any, g.Coactive, g.Total, g.Mass, g.Cosine, g.Excess.Disagree)
	}
	b := r.Baseline
	t.Add("random signs", nil, nil, nil, b.Disagree, b.Any, b.Coactive, b.Total, b.Mass, b.Cosine, 1.0)
	t.Note = "excess is disagree divided by that of random signs"
	return t
}

// conflictPage shows the metrics as multiples of their baselines: a row per metric, a column per group.
func conflictPage(r *merge.ConflictReport) *report.Page {
	heat := func(title string, value func(m merge.Measures, metric string) float64) *report.Chart {
		c := &report.Chart{Title: title, Kind: report.Heat, X: report.Axis{Label: "group"}}
		for _, g := range r.Groups {
			c.Labels = append(c.Labels, g.Name)
		}
		for _, name := range merge.Metrics() {
			s := report.Series{Name: name}
			for _, g := range r.Groups {
				m := g.Excess
				if title != excessTitle {
					m = g.Measures
				}
				s.Y = append(s.Y, value(m, name))
			}
			c.Series = append(c.Series, s)
		}
		return c
	}
	value := func(m merge.Measures, metric string) float64 {
		v, _ := m.Of(metric)
		return v
	}
	return &report.Page{
		Title: "Conflict between models", Subtitle: strings.Join(r.Models, ", ") + " against " + r.Base,
		Sections: []report.Section{
			{Title: "By group", Charts: []*report.Chart{heat(excessTitle, value), heat("Conflict", value)}, Tables: []*report.Table{measures(r, r.Groups)}},
			{Title: "By tensor", Tables: []*report.Table{measures(r, r.Tensors)}},
		},
	}
}

const excessTitle = "Conflict as a multiple of random signs'"
