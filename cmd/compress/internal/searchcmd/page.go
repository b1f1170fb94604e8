package searchcmd

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/prune/fitness"
)

// Page shows a search.
func (r *Report) Page() *report.Page {
	p := &report.Page{
		Title:    "Search for a pruning metric",
		Subtitle: fmt.Sprintf("seed %d, journal %.16s, version %s", r.Seed, r.JournalHash, r.Version),
	}
	p.Sections = append(p.Sections, r.outcome(), r.tested(), r.course(), r.trees(), r.common(), r.rungsOf(),
		r.effort(), r.data())
	return p
}

func (r *Report) outcome() report.Section {
	s := report.Section{Title: "Outcome", Text: []string{
		"The cost of a formula is the loss that pruning with it adds, as a multiple of what " + yardstick(r.Structure) +
			" adds on the same data: 1 is as good, below 1 is better, 0 would be as good as the dense model. It is " +
			"averaged over " + counted(len(r.Cases), "case") +
			". The winner was chosen on the selection data; the test data was measured once, for the metrics below.",
	}}

	s.Text = append(s.Text, r.Remarks...)
	s.Facts = []report.Fact{
		{Name: "winner", Value: r.Winner.Formula},
		{Name: "cost on the search data", Value: fmt.Sprintf("%.4f", r.Winner.Search)},
		{Name: "cost on the selection data", Value: fmt.Sprintf("%.4f", r.Winner.Selection)},
	}

	for _, rival := range rivals(r.Structure, r.Grammar) {
		b, n, w := r.verdicts(rival)
		s.Facts = append(s.Facts,
			report.Fact{
				Name:  "against " + r.metricName(rival),
				Value: fmt.Sprintf("better %d, not significantly different %d, worse %d", b, n, w),
			})
	}

	return s
}

func (r *Report) tested() report.Section {
	how := "Each metric prunes as it was published: Wanda, Pruner-Zero's tree and the formulas that were found " +
		"compare the weights of a neuron, RIA and magnitude those of a matrix."
	if r.Structure != "" {
		how = "Each formula takes the same share out of the dense model, and nothing is fitted afterwards."
	}
	s := report.Section{Title: "On data that nothing was chosen by", Text: []string{how}}

	bars := &report.Chart{
		Title: "Loss above the dense model's", Kind: report.Bar, X: report.Axis{Label: "nats a token"}, Labels: r.Cases,
		Note: "shorter is better",
	}

	for _, name := range append([]string{"expr:" + r.Winner.Formula}, rivals(r.Structure, r.Grammar)...) {
		series := report.Series{Name: r.metricName(name)}
		for _, c := range r.Test {
			dense, own := 0.0, 0.0
			for _, m := range c.Metrics {
				switch m.Metric {
				case fitness.Dense:
					dense = m.Loss
				case name:
					own = m.Loss
				}
			}

			series.Y = append(series.Y, own-dense)
		}

		bars.Series = append(bars.Series, series)
	}

	s.Charts, s.Tables = []*report.Chart{bars}, r.tables()
	return s
}

// cost is the axis of it.
func (r *Report) cost() report.Axis {
	return report.Axis{Label: "added loss, " + yardstick(r.Structure) + " = 1 (lower is better)"}
}

func (r *Report) course() report.Section {
	best, median := report.Series{Name: "best so far"}, report.Series{Name: "median of the generation"}
	evaluated, distinct := report.Series{Name: "evaluated"}, report.Series{Name: "generated"}
	low, high := report.Series{Name: "layers – few"}, report.Series{Name: "few – full"}
	for _, g := range r.History {
		x := float64(g.Number)
		best.X, best.Y = append(best.X, x), append(best.Y, g.BestQuality)

		median.X, median.Y = append(median.X, x), append(median.Y, g.Median)
		evaluated.X, evaluated.Y = append(evaluated.X, x), append(evaluated.Y, float64(g.Counts.Evaluated))
		distinct.X, distinct.Y = append(distinct.X, x), append(distinct.Y, float64(g.Counts.Generated))
		for i, to := range []*report.Series{&low, &high} {
			if a := g.Agreement[i]; a.Spearman != nil {
				to.X, to.Y = append(to.X, x), append(to.Y, *a.Spearman)
			}
		}
	}

	return report.Section{Title: "Course of the search", Charts: []*report.Chart{
		{
			Title: "Best cost over generations", Kind: report.Line, X: report.Axis{Label: "generation"},
			Y: r.cost(), Series: []report.Series{best, median},
		},
		{
			Title: "Candidates", Kind: report.Line, X: report.Axis{Label: "generation"},
			Y: report.Axis{Label: "candidates so far"}, Series: []report.Series{evaluated, distinct},
		},
		{
			Title: "How well a cheaper measurement orders candidates", Kind: report.Line,
			X: report.Axis{Label: "generation"}, Y: report.Axis{Label: "Spearman's rank correlation"},
			Series: []report.Series{low, high}, Note: "with the next dearer one, over the candidates of a generation " +
				"that reached both, which are its best",
		},
	}}
}

func (r *Report) trees() report.Section {
	all, front := report.Series{Name: "measured in full"}, report.Series{Name: "front on the selection data"}
	for _, c := range r.Climbs {
		if c.Full != nil {
			all.X, all.Y = append(all.X, float64(c.Size)), append(all.Y, *c.Full)
		}
	}

	t := &report.Table{
		Title:   "Finalists, best first",
		Columns: report.Columns("formula", "nodes", "selection|%.4f", "search|%.4f", "front", "origin", "generation"),
	}

	for _, f := range r.Finalists {
		mark := ""
		if f.Front {
			mark = "yes"
			front.X, front.Y = append(front.X, float64(f.Size)), append(front.Y, f.Selection)
		}
		t.Add(f.Formula, f.Size, f.Selection, f.Search, mark, f.Origin, f.Generation)
	}

	// Far outliers would leave the chart nothing else to show.
	if sorted := slices.Sorted(slices.Values(all.Y)); len(sorted) > 0 {
		limit := 2 * max(1, sorted[len(sorted)/2])
		var kept report.Series
		for i, y := range all.Y {
			if y <= limit {
				kept.X, kept.Y = append(kept.X, all.X[i]), append(kept.Y, y)
			}
		}

		all.X, all.Y = kept.X, kept.Y
	}

	return report.Section{Title: "Best formulas", Charts: []*report.Chart{{
		Title: "Cost against size of the formula", Kind: report.Scatter, X: report.Axis{Label: "nodes"},
		Y:      r.cost(),
		Series: []report.Series{all, front}, Note: "candidates of more than twice the median cost are left out",
	}}, Tables: []*report.Table{t}}
}

func (r *Report) rungsOf() report.Section {
	t := &report.Table{
		Title:   "Rank correlation of a cheaper measurement with the next dearer one, over the whole search",
		Columns: report.Columns("cheaper", "dearer", "candidates", "Spearman ρ|%.3f", "Kendall τ-b|%.3f"),
	}
	for _, a := range r.Agreement {
		row := []any{string(a.Lower), string(a.Upper), a.N, nil, nil}
		if a.Spearman != nil && a.Kendall != nil {
			row[3], row[4] = *a.Spearman, *a.Kendall
		}
		t.Add(row...)
	}

	return report.Section{Title: "How candidates are measured", Tables: []*report.Table{t}, Text: []string{
		"Every candidate is measured by the error of a few blocks' outputs (layers); the best of a generation by the " +
			"loss on a few windows (few); the best of those in full, as pruning would do it. A correlation is over " +
			"those that reached both: being the better ones, they differ less than all would. Corrected for that, it " +
			"decides how many of the next generation go on.",
	}}
}

func (r *Report) effort() report.Section {
	t := &report.Table{
		Title:   "What kept candidates from being measured in full",
		Columns: report.Columns("step", "candidates", "% of all|%.1f"), Note: fmt.Sprintf(
			"%d candidates were generated; %d of them got shorter by simplification", r.Counts.Generated,
			r.Counts.Simplified),
	}
	for _, s := range r.Saved {
		t.Add(s.Name, s.Stopped, 100*s.Share)
	}
	return report.Section{Title: "Effort", Tables: []*report.Table{t}}
}

func (r *Report) data() report.Section {
	sets := &report.Table{
		Title:   "Sets of data",
		Columns: report.Columns("model", "use", "windows", "tokens each", "source", "SHA-256 of the ids"),
	}
	share := &report.Table{
		Title:   "What sets have in common",
		Columns: report.Columns("model", "set", "in", "share of token runs, %|%.3f", "run", "whole windows"),
	}

	for _, m := range r.Models {
		for _, d := range m.Data {
			sets.Add(m.Name, d.Use, d.Windows, d.SeqLen, d.Source, d.Hash[:16])
		}
		for _, o := range m.Overlap {
			share.Add(m.Name, o.A, o.B, 100*o.Share, o.Run, o.Windows)
		}
	}

	return report.Section{Title: "Data", Tables: []*report.Table{sets, share}}
}
