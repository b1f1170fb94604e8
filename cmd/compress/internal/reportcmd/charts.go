package reportcmd

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/report"
)

// SideBySide compares the figures of runs, one row a run.
func SideBySide(runs []*Run) *report.Table {
	t := &report.Table{Columns: report.Columns("run")}
	paths := []string{}
	for _, f := range figures {
		for _, r := range runs {
			for _, l := range r.leaves {
				name, _, ok := known(l.path)
				if _, isNumber := l.value.(float64); isNumber && ok && name == f.name &&
					!slices.Contains(paths, l.path) {
					paths = append(paths, l.path)
				}
			}
		}
	}

	for _, p := range paths {
		t.Columns = append(t.Columns, report.Column{Name: label(p), Format: "%.5g"})
	}

	for _, r := range runs {
		row := []any{r.name}
		for _, p := range paths {
			var v any
			for _, l := range r.leaves {
				if l.path == p {
					v = whole(l.value)
				}
			}

			row = append(row, v)
		}

		t.Add(row...)
	}

	return t
}

// whole makes a whole number of a float that is one, so that it is printed with all its digits.
func whole(v any) any {
	if f, ok := v.(float64); ok && f == float64(int64(f)) && math.Abs(f) < 1<<53 {
		return int64(f)
	}
	return v
}

// InWords is the comparison with names for people, and without columns that say again what one before them says.
func InWords(side *report.Table) *report.Table {
	t := &report.Table{Columns: side.Columns[:1:1], Rows: make([][]any, len(side.Rows)), Note: side.Note}
	for r := range side.Rows {
		t.Rows[r] = []any{side.Rows[r][0]}
	}

	for _, c := range once(side) {
		label := side.Columns[c].Name
		name := inWords(label)
		if slices.ContainsFunc(t.Columns, func(o report.Column) bool { return o.Name == name }) {
			name += " (" + words(label) + ")"
		}
		t.Columns = append(t.Columns, report.Column{Name: name, Format: side.Columns[c].Format})
		for r := range side.Rows {
			t.Rows[r] = append(t.Rows[r], separated(label, side.Rows[r][c]))
		}
	}
	return t
}

// once are the columns of figures that do not repeat one of the same kind.
func once(side *report.Table) (keep []int) {
	kind := func(c int) string {
		name, _, _ := known(strings.ReplaceAll(side.Columns[c].Name, " ", "."))
		return name
	}
	for c := 1; c < len(side.Columns); c++ {
		again := slices.ContainsFunc(keep, func(k int) bool {
			if kind(k) != kind(c) {
				return false
			}
			return !slices.ContainsFunc(side.Rows, func(row []any) bool { return row[k] != row[c] })
		})
		if !again {
			keep = append(keep, c)
		}
	}
	return keep
}

// Upright is the comparison with a column for every run, which fits a terminal.
func Upright(side *report.Table) *report.Table {
	t := &report.Table{Columns: report.Columns("figure")}
	for r := range side.Rows {
		t.Columns = append(t.Columns, report.Column{Name: side.Cell(r, 0), Format: "%.5g"})
	}

	for c := 1; c < len(side.Columns); c++ {
		row := []any{side.Columns[c].Name}
		for r := range side.Rows {
			row = append(row, side.Rows[r][c])
		}
		t.Add(row...)
	}

	return t
}

// compareCharts draws a bar for every run and every figure that several runs have.
func compareCharts(side *report.Table) []*report.Chart {
	var out []*report.Chart
	for _, c := range once(side) {
		name := side.Columns[c].Name
		axis, plot, _ := known(strings.ReplaceAll(name, " ", "."))
		chart := &report.Chart{
			Title: inWords(name), Kind: report.Bar, X: report.Axis{Label: axis},
			Series: []report.Series{{Name: name}},
		}

		for _, row := range side.Rows {
			if row[c] != nil {
				chart.Labels = append(chart.Labels, fmt.Sprint(row[0]))
				chart.Series[0].Y = append(chart.Series[0].Y, toFloat(row[c]))
			}
		}

		if plot && len(chart.Labels) > 1 {
			out = append(out, chart)
		}
	}

	return out
}

// front draws what models lose over what they take, where several runs say both: the size of the weights and the
// divergence from one baseline on one text, those of which there are most. Models that no other beats in both are
// joined. nil: there are fewer than three; left are the runs that are not in it for another baseline or text.
func front(runs []*Run) (c *report.Chart, left []string) {
	type point struct {
		name     string
		size, kl float64
		low, top float64
	}
	groups := map[string][]point{}
	var order []string
	for _, r := range runs {
		find := func(path string) any {
			i := slices.IndexFunc(r.leaves, func(l leaf) bool { return l.path == path })
			if i < 0 {
				return nil
			}
			return r.leaves[i].value
		}
		size, kl := toFloat(find("model_bytes")), toFloat(find("against.kl"))
		if size > 0 && kl > 0 && !math.IsInf(kl, 0) {
			half := 1.96 * toFloat(find("against.kl_stderr"))
			key := fmt.Sprint(find("against.model"), "\x00", find("data.hash"), "\x00", find("tokens"))
			if groups[key] == nil {
				order = append(order, key)
			}
			groups[key] = append(groups[key], point{r.name, size / 1e6, kl, kl - half, kl + half})
		}
	}

	most := ""
	for _, key := range order {
		if len(groups[key]) > len(groups[most]) {
			most = key
		}
	}
	points := groups[most]
	if len(points) < 3 {
		return nil, nil
	}
	for _, key := range order {
		for _, p := range groups[key] {
			if key != most {
				left = append(left, p.name)
			}
		}
	}
	baseline, _, _ := strings.Cut(most, "\x00")
	baseline = strings.TrimRight(baseline, `/\`)
	baseline = baseline[strings.LastIndexAny(baseline, `/\`)+1:] // where it lies is nothing to those who see the picture

	slices.SortStableFunc(points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.kl, b.kl))
	})
	x, y := make([]float64, len(points)), make([]float64, len(points))
	for i, p := range points {
		x[i], y[i] = p.size, p.kl
	}
	on := report.Front(x, y)

	all := report.Series{Name: "models"}
	best := report.Series{Name: "the front: none is smaller and nearer", Joined: true}
	for i, p := range points {
		to := &all
		if slices.Contains(on, i) {
			to = &best
		}
		to.X, to.Y = append(to.X, p.size), append(to.Y, p.kl)
		to.Low, to.High = append(to.Low, p.low), append(to.High, p.top)
		to.Names = append(to.Names, p.name)
	}
	return &report.Chart{
		Title: "Size and divergence from " + baseline, Kind: report.Scatter, Wide: true,
		X: report.Axis{Label: "MB of weights"}, Y: report.Axis{Label: "KL, nats a token", Log: true},
		Series: []report.Series{best, all},
	}, left
}

// chartsOf draws what a table's columns allow: values over blocks and roles as a heat map, a loss over steps as a line,
// figures of named rows as bars.
func chartsOf(t *report.Table) []*report.Chart {
	block := column(t, "block")
	role := column(t, "role")
	value := column(t, "sparsity")
	if block >= 0 && role >= 0 && value >= 0 {
		return []*report.Chart{heat(t, role, block, value)}
	}

	if step, loss := column(t, "step"), column(t, "loss"); step >= 0 && loss >= 0 {
		s := report.Series{Name: "loss"}
		for _, row := range t.Rows {
			s.X, s.Y = append(s.X, toFloat(row[step])), append(s.Y, toFloat(row[loss]))
		}
		return []*report.Chart{{
			Title: "loss", Kind: report.Line, X: report.Axis{Label: "step"},
			Y: report.Axis{Label: "loss", Log: report.Spans(s)}, Series: []report.Series{s},
		}}
	}

	name := column(t, "name")
	var out []*report.Chart
	for _, key := range []string{"ppl", "of_peak", "of_bandwidth"} {
		c := column(t, key)
		if name < 0 || c < 0 || len(t.Rows) > 40 {
			continue
		}

		chart := &report.Chart{
			Title: words(t.Title + ": " + key), Kind: report.Bar, X: report.Axis{Label: words(key)},
			Series: []report.Series{{Name: words(key)}},
		}
		for _, row := range t.Rows {
			if v := toFloat(row[c]); v != 0 {
				chart.Labels = append(chart.Labels, fmt.Sprint(row[name]))
				chart.Series[0].Y = append(chart.Series[0].Y, v)
			}
		}

		if len(chart.Labels) > 1 {
			out = append(out, chart)
		}
	}

	return out
}

func column(t *report.Table, name string) int {
	return slices.IndexFunc(t.Columns, func(c report.Column) bool { return c.Name == name })
}

func toFloat(v any) float64 {
	switch x := v.(type) {
	case float64:
		return x
	case int64:
		return float64(x)
	}
	return 0
}

// heat is a map of roles over blocks; of several values for a cell (experts) it shows the mean.
func heat(t *report.Table, role, block, value int) *report.Chart {
	c := &report.Chart{Title: t.Title + ": zeros", Kind: report.Heat, X: report.Axis{Label: "block"}}
	type cell struct{ role, block string }

	sum, n := map[cell]float64{}, map[cell]float64{}
	var roles []string
	for _, row := range t.Rows {
		k := cell{fmt.Sprint(row[role]), fmt.Sprint(row[block])}
		sum[k] += toFloat(row[value])
		n[k]++
		if !slices.Contains(roles, k.role) {
			roles = append(roles, k.role)
		}
		if !slices.Contains(c.Labels, k.block) {
			c.Labels = append(c.Labels, k.block)
		}
	}

	for _, r := range roles {
		s := report.Series{Name: r}
		for _, b := range c.Labels {
			k := cell{r, b}
			s.Y = append(s.Y, sum[k]/n[k])
		}
		c.Series = append(c.Series, s)
	}

	return c
}
