package mergecmd

import (
	"bytes"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
)

// ConflictOptions are the flags of conflict.
type ConflictOptions struct {
	Density                   float64
	Granularity, Memory, HTML string
	NonFinite                 bool
}

// checkFile refuses the path of a file beside the report, if there is to be one, where something else lies that would
// be lost, or the report goes. own knows what an earlier run has left.
func checkFile(j *cli.Job, flag, path, what string, own func(path string) bool) error {
	if path == "" {
		return nil
	}

	if err := (cli.Place{Flag: flag, Path: path, What: what, Own: own, Inputs: j.Inputs}).Check(); err != nil {
		return err
	}
	return cli.Apart([2]string{flag, path}, [2]string{"report", j.ReportTo()})
}

// Conflict measures, prints and writes the page.
func Conflict(j *cli.Job, path string, o ConflictOptions) (any, error) {
	threads, err := j.Threads()
	if err != nil {
		return nil, err
	}

	memory, err := cli.Bytes("memory", o.Memory)
	if err != nil {
		return nil, err
	}

	if err := checkFile(j, "html", o.HTML, "a page", report.IsPage); err != nil {
		return nil, err
	}

	r, err := merge.Read(path)
	if err != nil {
		return nil, j.Excerpted(err)
	}

	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	bar := j.ByteBars()
	result, err := mediate.Conflict(j.Ctx, r, mediate.ConflictOptions{
		Workers: threads, Memory: memory, Density: o.Density, Granularity: o.Granularity, AllowNonFinite: o.NonFinite,
		Device:   dev,
		Progress: func(p merge.Progress) { bar.Show("comparing", p.Done, p.Total) },
	})

	bar.End()
	if err != nil {
		return nil, j.Excerpted(err)
	}

	for _, w := range result.Warnings {
		j.Note("warning: %s", w)
	}

	j.Table(measures(result, result.Groups))
	j.Printf("\n%s\n", result.Advice.Sentence())
	if o.HTML == "" {
		return result, nil
	}

	var page bytes.Buffer
	if err := conflictPage(result).HTML(&page); err != nil {
		return nil, err
	}

	return result, j.Write(o.HTML, page.Bytes())
}

// measures is a row per group, the baseline last.
func measures(r *mediate.ConflictReport, groups []mediate.ConflictGroup) *report.Table {
	t := &report.Table{Columns: report.Columns("group", "elements", "active", "conflicting", "disagree|%.4f",
		"any|%.4f", "coactive|%.4f",
		"total|%.4f", "mass|%.4f", "cosine|%.4f", "excess|%.3f")}
	for _, g := range append(groups[:len(groups):len(groups)], r.Whole) {
		name := g.Name
		if name == "" {
			name = "all"
		}
		t.Add(name, g.Elements, g.Active, g.Both, g.Disagree, g.Any, g.Coactive, g.Total, g.Mass, g.Cosine,
			g.Excess.Disagree)
	}

	b, one := r.Baseline, any(1.0)
	if b.Disagree == 0 { // a single model contradicts nobody
		one = nil
	}

	t.Add("random signs", nil, nil, nil, b.Disagree, b.Any, b.Coactive, b.Total, b.Mass, b.Cosine, one)
	t.Note = "excess is disagree divided by that of random signs"
	return t
}

// manyGroups is how many columns of groups have room for their names and values.
const manyGroups = 12

// conflictPage shows the metrics as multiples of their baselines: a row per metric, a column per group; the
// other way round where there are many groups.
func conflictPage(r *mediate.ConflictReport) *report.Page {
	heat := func(title string, value func(m mediate.Measures, metric string) float64) *report.Chart {
		at := func(g mediate.ConflictGroup, metric string) float64 {
			if title != excessTitle {
				return value(g.Measures, metric)
			}
			return value(g.Excess, metric)
		}

		c := &report.Chart{Title: title, Kind: report.Heat, X: report.Axis{Label: "group"}}
		if len(r.Groups) > manyGroups {
			c.X.Label, c.Labels = "metric", mediate.Metrics()
			before, after := shared(r.Groups)
			for _, g := range r.Groups {
				s := report.Series{Name: g.Name}
				if g.Layer >= 0 {
					s.Name = strings.TrimSuffix(strings.TrimPrefix(g.Name, before), after)
				}
				for _, name := range c.Labels {
					s.Y = append(s.Y, at(g, name))
				}

				c.Series = append(c.Series, s)
			}

			return c
		}

		for _, g := range r.Groups {
			c.Labels = append(c.Labels, g.Name)
		}

		for _, name := range mediate.Metrics() {
			s := report.Series{Name: name}
			for _, g := range r.Groups {
				s.Y = append(s.Y, at(g, name))
			}
			c.Series = append(c.Series, s)
		}

		return c
	}

	value := func(m mediate.Measures, metric string) float64 {
		v, _ := m.Of(metric)
		return v
	}
	subtitle := strings.Join(r.Models, ", ") + " against " + r.Base
	if r.Advice != nil {
		subtitle += ". " + r.Advice.Sentence()
	}
	return &report.Page{
		Title: "Conflict between models", Subtitle: subtitle,
		Sections: []report.Section{
			{
				Title: "By group", Charts: []*report.Chart{heat(excessTitle, value), heat("Conflict", value)},
				Tables: []*report.Table{measures(r, r.Groups)},
			},
			{Title: "By tensor", Tables: []*report.Table{measures(r, r.Tensors)}},
		},
	}
}

// shared are the first and the last parts that all names of groups in layers have, as far as dots and no
// further than leaves something.
func shared(groups []mediate.ConflictGroup) (before, after string) {
	first := true
	for _, g := range groups {
		if g.Layer < 0 {
			continue
		}

		if first {
			first = false
			before = g.Name[:strings.LastIndexByte(g.Name, '.')+1]
			after = g.Name[max(0, strings.LastIndexByte(g.Name, '.')):]
		}

		for !strings.HasPrefix(g.Name, before) {
			before = before[:strings.LastIndexByte(before[:len(before)-1], '.')+1]
		}
		if !strings.HasSuffix(g.Name, after) {
			after = ""
		}
	}

	return before, after
}

const excessTitle = "Conflict as a multiple of random signs'"
