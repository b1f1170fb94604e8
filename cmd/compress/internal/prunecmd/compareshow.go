package prunecmd

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/prune"
)

// table has one row for every run, the dense model first.
func table(r *prune.Comparison) *report.Table {
	t := &report.Table{
		Title: r.Model + ": perplexity after pruning",
		Columns: report.Columns("target", "method", "zeros %|%.2f", "perplexity|%.3f", "±|%.3f", "times dense|%.3f",
			"nll - best|%.4f", "95 %", "p",
			"seconds|%.1f", "processor s|%.1f"),
		Note: fmt.Sprintf("%s, windows of %d tokens, %d predicted tokens; ±: standard error over windows; 95 %%: "+
			"interval of nll - best; p: paired t test against the best of the target over %d windows, adjusted for "+
			"their number after Holm", r.Source, r.SeqLen, r.Dense.Tokens, len(r.Dense.Windows)),
	}

	if shared := shared(r); shared > 0 {
		t.Note += fmt.Sprintf("; seconds leave out %.1f for gradients and allocations, which runs share; processor "+
			"time has them where they were made", shared)
	}

	t.Add("dense", "", 0.0, r.Dense.Perplexity, perplexity.OrNone(r.Dense.Stderr), 1.0, nil, nil, nil, nil, nil)

	for _, target := range r.Targets() {
		for _, run := range r.Of(target) {
			var difference, interval, p, cpu any = "best", nil, nil, nil
			switch v := run.Versus; {
			case v != nil:
				difference, p = v.Difference, chance(v.Adjusted)
				interval = fmt.Sprintf("%.4f to %.4f", run.Interval[0], run.Interval[1])
			case len(run.Windows) < 2:
				difference = "n/a"
			}

			if run.CPU > 0 { // journals of earlier versions have none
				cpu = run.CPU
			}

			t.Add(target, run.Method, 100*run.Sparsity, run.Perplexity, perplexity.OrNone(run.Stderr),
				run.Perplexity/r.Dense.Perplexity,
				difference, interval, p, run.Seconds, cpu)
		}

		for _, one := range r.Impossible {
			if one.Target == target {
				t.Add(target, one.Method, nil, nil, nil, nil, "impossible", nil, nil, nil, nil)
			}
		}
	}

	for _, one := range r.Impossible {
		t.Note += fmt.Sprintf("; %s, %s: impossible: %s", one.Target, one.Method, one.Reason)
	}

	return t
}

// shared is the time of what runs share.
func shared(r *prune.Comparison) (seconds float64) {
	for i := range r.Runs {
		seconds += r.Runs[i].Shared
	}
	return seconds
}

// chance is a table's cell for a p value.
func chance(p float64) string {
	switch {
	case math.IsNaN(p):
		return "n/a"
	case p < 1e-4:
		return "<0.0001"
	}
	return strconv.FormatFloat(p, 'f', 4, 64)
}

// page is the comparison for a browser, with what a reader has to know of the model.
func page(r *prune.Comparison, remarks []string) *report.Page {
	return &report.Page{
		Title: "Ways of pruning " + r.Model, Subtitle: r.Command,
		Sections: []report.Section{{
			Title: "Perplexity",
			Text: append([]string{
				"All runs had the same calibration ids and were measured on the same windows. Lower is better; the " +
					"dense model has " + strconv.FormatFloat(r.Dense.Perplexity, 'g', 5, 64) + ".",
			}, remarks...),
			Charts: charts(r), Tables: []*report.Table{table(r)},
		}},
	}
}

// charts draws perplexity against sparsity for the targets without a pattern, and bars for every pattern.
func charts(r *prune.Comparison) []*report.Chart {
	curve := &report.Chart{
		Title: "Perplexity against sparsity", Kind: report.Line,
		X: report.Axis{Label: "zeros in the pruned matrices, %"}, Y: report.Axis{Label: "perplexity"},
	}
	names := shortNames(r)
	var out []*report.Chart
	for _, target := range r.Targets() {
		runs := r.Of(target)
		if len(runs) == 0 {
			continue
		}
		if _, err := strconv.ParseFloat(target, 64); err == nil {
			for _, run := range runs {
				put(curve, run)
			}
			continue
		}

		bars := &report.Chart{
			Title: "Perplexity with " + target, Kind: report.Bar, X: report.Axis{Label: "perplexity"},
			Series: []report.Series{{Name: "perplexity"}},
		}
		for _, run := range runs {
			bars.Labels = append(bars.Labels, names[run.Method])
			bars.Series[0].Y = append(bars.Series[0].Y, run.Perplexity)
		}

		out = append(out, bars)
	}

	if len(curve.Series) == 0 {
		return out
	}

	for i := range curve.Series {
		s := &curve.Series[i]
		s.X, s.Y = append([]float64{0}, s.X...), append([]float64{r.Dense.Perplexity}, s.Y...)
	}

	for i := range curve.Series {
		curve.Series[i].Name = names[curve.Series[i].Name]
	}
	curve.Y.Log = report.Spans(curve.Series...)
	return append([]*report.Chart{curve}, out...)
}

// shortNames are the methods as a chart has room for them: of a formula in a file the file's name, with its folder
// where two would be the same.
func shortNames(r *prune.Comparison) map[string]string {
	names := map[string]string{}
	for parts := 1; parts <= 4; parts++ {
		names = map[string]string{}
		taken := map[string]string{}
		clash := false
		for i := range r.Runs {
			method := r.Runs[i].Method
			short := method
			if path, ok := strings.CutPrefix(method, "tree:"); ok {
				at := strings.Split(path, "/")
				short = strings.Join(at[max(0, len(at)-parts):], "/")
			}
			clash = clash || taken[short] != "" && taken[short] != method
			names[method], taken[short] = short, method
		}
		if !clash {
			return names
		}
	}

	for method := range names {
		names[method] = method
	}
	return names
}

// put adds a run to its method's line, in order of sparsity.
func put(c *report.Chart, run *prune.Outcome) {
	i := slices.IndexFunc(c.Series, func(s report.Series) bool { return s.Name == run.Method })
	if i < 0 {
		i = len(c.Series)
		c.Series = append(c.Series, report.Series{Name: run.Method})
	}
	s := &c.Series[i]
	x := 100 * run.Sparsity
	at, _ := slices.BinarySearch(s.X, x)
	s.X, s.Y = slices.Insert(s.X, at, x), slices.Insert(s.Y, at, run.Perplexity)
}
