package editevalcmd

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/internal/report"
)

// html is the page of a report.
func html(r *editeval.Report) ([]byte, error) {
	var text bytes.Buffer
	err := page(r).HTML(&text)
	return text.Bytes(), err
}

// page shows a report.
func page(r *editeval.Report) *report.Page {
	p := &report.Page{
		Title: "What editing does to a model",
		Subtitle: fmt.Sprintf("up to %d of %d edits, %d editors, seeds %s; version %s", r.Counts[len(r.Counts)-1],
			r.Records, len(r.Plan.Editors), spaced(r.Plan.Seeds), r.Contract),
	}

	p.Sections = append(p.Sections,
		report.Section{Title: "In words", Text: append(slices.Clone(r.Summary), r.Remarks...)})
	for i := range r.Models {
		m := &r.Models[i]
		name := ""
		if len(r.Models) > 1 {
			name = m.Name + ": "
		}

		p.Sections = append(p.Sections, retention(name, r, m), abilities(name, r, m), drifts(name, r, m))
		if s := collapse(name, m); len(s.Tables) > 0 {
			p.Sections = append(p.Sections, s)
		}
	}

	if len(r.Models) > 1 {
		p.Sections = append(p.Sections, beside(r))
	}

	p.Sections = append(p.Sections, made(r))
	return p
}

// floats are values as the charts want them.
func floats(rows []editeval.Row, of func(r *editeval.Row) float64) []float64 {
	out := make([]float64, len(rows))
	for i := range rows {
		out[i] = of(&rows[i])
	}
	return out
}

// of are the rows of an editor, by count.
func of(m *editeval.ModelReport, editor string) []editeval.Row {
	return slices.DeleteFunc(slices.Clone(m.Rows), func(r editeval.Row) bool { return r.Editor != editor })
}

// curves is a chart with a line for every editor over the numbers of edits, and one for the unedited model.
func curves(title, axis string, r *editeval.Report, m *editeval.ModelReport,
	value func(r *editeval.Row) (v, low, high float64),
) *report.Chart {
	c := &report.Chart{
		Title: title, Kind: report.Line, X: report.Axis{Label: "edits", Log: len(r.Counts) > 2},
		Y: report.Axis{Label: axis},
	}
	for _, ed := range r.Plan.Editors {
		// Before its first batch an editor has written nothing: that is no edit that fails.
		rows := slices.DeleteFunc(of(m, ed.Name), func(r editeval.Row) bool { return r.Edits < ed.Batch })
		c.Series = append(c.Series, report.Series{
			Name: ed.Name,
			X:    floats(rows, func(r *editeval.Row) float64 { return float64(r.Edits) }),
			Y:    floats(rows, func(r *editeval.Row) float64 { v, _, _ := value(r); return v }),
			Low:  floats(rows, func(r *editeval.Row) float64 { _, v, _ := value(r); return v }),
			High: floats(rows, func(r *editeval.Row) float64 { _, _, v := value(r); return v }),
		})
	}

	if v, _, _ := value(&m.Rows[0]); !math.IsNaN(v) {
		first, last := float64(r.Counts[0]), float64(r.Counts[len(r.Counts)-1])
		if first == last {
			first = max(1, last/2)
		}
		c.Series = append(c.Series, report.Series{Name: "unedited", X: []float64{first, last}, Y: []float64{v, v}})
	}

	return c
}

// plain is a value without an interval.
func plain(v editeval.Value) (float64, float64, float64) {
	return float64(v), math.NaN(), math.NaN()
}

// retention shows which edits hold.
func retention(name string, r *editeval.Report, m *editeval.ModelReport) report.Section {
	s := report.Section{Title: name + "Which edits hold", Text: []string{
		"An edit holds where its new answer is likelier than the old one. Each row of a map is the model after so " +
			"many edits, each column the edits that were written at that place in the order: where a column gets " +
			"paler downwards, those edits fade as later ones arrive. The palest is 0 and the strongest 1 in every " +
			"map. Bars, in the first picture, are 95 % intervals.",
	}}

	s.Charts = append(s.Charts,
		curves("All edits so far that hold", "fraction", r, m,
			func(r *editeval.Row) (float64, float64, float64) { return r.Held.Mean, r.Held.Low, r.Held.High }),
		curves("The new answer is the top-1 token", "fraction", r, m,
			func(r *editeval.Row) (float64, float64, float64) { return plain(r.Exact) }),
	)

	for _, f := range []struct {
		title string
		of    func(r *editeval.Row) editeval.Value
	}{
		{"The first ten edits that hold", func(r *editeval.Row) editeval.Value { return r.First }},
		{"The new answer in other words", func(r *editeval.Row) editeval.Value { return r.Paraphrase }},
		{"Other subjects keep their answers", func(r *editeval.Row) editeval.Value { return r.Neighborhood }},
	} {
		if v := float64(f.of(&m.Rows[len(m.Rows)-1])); !math.IsNaN(v) {
			s.Charts = append(s.Charts,
				curves(f.title, "fraction", r, m, func(r *editeval.Row) (float64, float64, float64) {
					return plain(
						f.of(r))
				}))
		}
	}

	for _, ed := range r.Plan.Editors {
		s.Charts = append(s.Charts, heat(ed.Name, m))
	}

	// One table would be wider than a page.
	all, names := Table(r, m), tasks(m)
	about := func(col int) bool { return slices.Contains(names, all.Columns[col].Name) }
	edits := all.Pick(func(col int) bool { return !about(col) })
	edits.Title, edits.Note = "Edits", strings.TrimPrefix(edits.Note, worse)
	s.Tables = append(s.Tables, edits)
	if len(names) > 0 {
		abilities := all.Pick(func(col int) bool { return col < 2 || about(col) })
		abilities.Title, abilities.Note = "Abilities", strings.TrimSpace(worse)
		s.Tables = append(s.Tables, abilities)
	}
	return s
}

// heat is the retention matrix of an editor: the mean over seeds.
func heat(editor string, m *editeval.ModelReport) *report.Chart {
	c := &report.Chart{
		Title: editor + ": edits that hold", Kind: report.Heat,
		X: report.Axis{Label: "place of the edit"}, Scale: [2]float64{0, 1},
	}
	for i := range m.Sequences {
		q := &m.Sequences[i]
		if q.Editor != editor {
			continue
		}

		for k := range q.Checkpoints {
			cp := &q.Checkpoints[k]
			if k == len(c.Series) {
				c.Series = append(c.Series,
					report.Series{Name: fmt.Sprintf("after %d", cp.Edits), Y: make([]float64, len(cp.Retention))})
			}

			for b, bin := range cp.Retention {
				c.Series[k].Y[b] += bin.Held
				if k == len(q.Checkpoints)-1 && len(c.Labels) < len(cp.Retention) {
					c.Labels = append(c.Labels, span(bin))
				}
			}
		}
	}

	n := seeds(editor, m)
	for k := range c.Series {
		for b := range c.Series[k].Y {
			c.Series[k].Y[b] = math.Round(100*c.Series[k].Y[b]/float64(n)) / 100
		}
	}

	return c
}

func seeds(editor string, m *editeval.ModelReport) int {
	n := 0
	for i := range m.Sequences {
		if m.Sequences[i].Editor == editor {
			n++
		}
	}
	return max(n, 1)
}

// span names the edits of a bin.
func span(b editeval.Bin) string {
	if b.From == b.To {
		return fmt.Sprint(b.From)
	}
	return fmt.Sprintf("%d–%d", b.From, b.To)
}

// tasks are those of a model, by name.
func tasks(m *editeval.ModelReport) []string {
	return slices.Sorted(maps.Keys(m.Rows[0].Abilities))
}

// worse explains the asterisks of tables.
const worse = "* significantly worse than unedited (in most seeds): adjusted p below 0.05. "

// Table is the table of a model: a row for every editor and count. Columns that no fact has a value for are left out.
func Table(r *editeval.Report, m *editeval.ModelReport) *report.Table {
	columns := []string{
		"editor", "edits", "hold|%.2f", "95 %", "top-1|%.2f", "in other words|%.2f",
		"trained words|%.2f", "neighbours|%.2f", "first 10|%.2f",
	}
	names := tasks(m)
	for _, t := range names {
		columns = append(columns, t+"|%.3f")
	}

	columns = append(columns, "weights|%.3g")
	note := worse + "Weights: the largest relative change of a matrix."

	failed := slices.ContainsFunc(m.Rows, func(r editeval.Row) bool { return r.Failed > 0 })
	if failed {
		columns = append(columns, "left out")
		note += " Left out: edits that diverged, in all seeds; they were not written, and count as edits that " +
			"do not hold."
	}

	t := &report.Table{Title: "Edits and abilities", Columns: report.Columns(columns...), Note: note}
	for i := range m.Rows {
		row := &m.Rows[i]
		name := row.Editor
		if name == "" {
			name = "none"
		}

		cells := []any{
			name, row.Edits, row.Held.Mean, fmt.Sprintf("%.2f–%.2f", row.Held.Low, row.Held.High),
			cell(row.Exact), cell(row.Paraphrase), cell(row.Trained), cell(row.Neighborhood), cell(row.First),
		}
		for _, task := range names {
			a := row.Abilities[task]
			text := fmt.Sprintf("%.3f", float64(a.Value))
			if math.Abs(float64(a.Value)) >= 1e5 { // the perplexity of a model that has collapsed
				text = fmt.Sprintf("%.3g", float64(a.Value))
			}
			if 2*a.Lost > row.Seeds {
				text += " *"
			}

			cells = append(cells, text)
		}

		cells = append(cells, row.Weights)
		if failed {
			cells = append(cells, row.Failed)
		}

		t.Add(cells...)
	}

	return t.Pick(t.Filled)
}

// cell is a value, or nothing.
func cell(v editeval.Value) any {
	if f := float64(v); !math.IsNaN(f) {
		return f
	}
	return nil
}

// abilities shows what else the model can do.
func abilities(name string, r *editeval.Report, m *editeval.ModelReport) report.Section {
	s := report.Section{Title: name + "What else the model can do", Text: []string{
		"Tasks that no edit is about. Bars are 95 % intervals of the figure; tests compare with the unedited model " +
			"on the same documents, with probabilities adjusted for the number of tests.",
	}}

	t := &report.Table{
		Title: "Against the unedited model",
		Columns: report.Columns("editor", "seed", "edits", "task", "unedited|%.3f", "edited|%.3f",
			"difference|%+.3f", "95 %", "n", "p, adjusted|%.2g", "lost"),
		Note: "results.json has the probabilities as they were before, too.",
	}
	tests := map[string]string{} // of each task, the figure and how it is tested

	for _, task := range tasks(m) {
		a := m.Rows[0].Abilities[task]
		axis := a.Metric
		if !a.HigherIsBetter {
			axis += " (lower is better)"
		}

		c := curves(task, axis, r, m, func(r *editeval.Row) (float64, float64, float64) {
			a := r.Abilities[task]
			return float64(a.Value), float64(a.Low), float64(a.High)
		})

		c.Y.Log = !a.HigherIsBetter && report.Spans(c.Series...)
		s.Charts = append(s.Charts, c)
	}

	for i := range m.Sequences {
		q := &m.Sequences[i]
		for k := range q.Checkpoints {
			for _, a := range q.Checkpoints[k].Abilities {
				if a.Main {
					tests[a.Task] = a.Task + " " + a.Metric
					if a.Test != "" {
						tests[a.Task] += " (" + a.Test + ")"
					}
					t.Add(q.Editor, int(q.Seed), q.Checkpoints[k].Edits, a.Task, cell(a.Base), cell(a.Value),
						cell(a.Difference), fmt.Sprintf("%+.3f to %+.3f", float64(a.Low), float64(a.High)), a.N,
						a.Adjusted, yes(a.Lost))
				}
			}
		}
	}

	if len(t.Rows) > 0 {
		told := slices.Sorted(maps.Values(tests))
		t.Note = "Figures and their tests: " + strings.Join(told, ", ") + ". " + t.Note
		s.Tables = append(s.Tables, t.Pick(func(col int) bool {
			return t.Columns[col].Name != "seed" || len(r.Plan.Seeds) > 1
		}))
	} else {
		s.Text = []string{"The plan names no tasks, texts or safety prompts."}
	}

	return s
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

// drifts shows how far the model has moved.
func drifts(name string, r *editeval.Report, m *editeval.ModelReport) report.Section {
	s := report.Section{Title: name + "How far the model has moved"}
	s.Charts = []*report.Chart{
		curves("Divergence of the next token, at prompts that no edit is about", "nats", r, m,
			func(r *editeval.Row) (float64, float64, float64) { return plain(r.KL) }),
		curves("The top-1 token there is the same", "fraction", r, m,
			func(r *editeval.Row) (float64, float64, float64) { return plain(r.Agreement) }),
		curves("Largest relative change of a matrix", "‖ΔW‖/‖W‖", r, m,
			func(r *editeval.Row) (float64, float64, float64) { return r.Weights, math.NaN(), math.NaN() }),
	}

	t := &report.Table{
		Title: "Sequences",
		Columns: report.Columns("editor", "seed", "edits", "failed", "KL|%.4g", "same token|%.3f", "fluency|%.3f",
			"matrix", "‖ΔW‖/‖W‖|%.4g", "spectral|%.4g", "effective rank|%.1f"),
	}
	check := &report.Table{
		Title: "Checks", Columns: report.Columns("editor", "seed", "forgetting|%.3f", "sum of deltas|%.2g", "restored",
			"tasks were answered by"),
		Note: "Forgetting: the mean over edits of the best an edit was, minus what it is at last. Sum of deltas: " +
			"‖final − base − Σ deltas‖/‖Σ deltas‖, what rounding to the stored type leaves. Restored: byte for byte " +
			"what it was, once every edit was taken out.",
	}

	for i := range m.Sequences {
		q := &m.Sequences[i]
		check.Add(q.Editor, int(q.Seed), q.Forgetting, q.SumError, fmt.Sprint(q.Restored), q.TasksAs)

		for k := range q.Checkpoints {
			c := &q.Checkpoints[k]
			var fluency any
			if c.Fluency != nil {
				fluency = *c.Fluency
			}

			head := []any{q.Editor, int(q.Seed), c.Edits, len(c.Failed), c.Drift.KL, c.Drift.Agreement, fluency}
			names := slices.Sorted(maps.Keys(c.Norms))
			if len(names) == 0 {
				t.Add(append(head, nil, nil, nil, nil)...)
			}

			for j, n := range names {
				if j > 0 {
					head = []any{q.Editor, int(q.Seed), c.Edits, nil, nil, nil, nil}
				}
				w := c.Norms[n]
				t.Add(append(head, n, w.Relative, w.Spectral, w.Rank)...)
			}
		}
	}

	s.Tables = []*report.Table{t, check}
	return s
}

// collapse lists signs of a collapsed model.
func collapse(name string, m *editeval.ModelReport) report.Section {
	s := report.Section{Title: name + "Signs of a collapse"}
	t := &report.Table{Columns: report.Columns("editor", "edits", "task", "signs")}
	for i := range m.Rows {
		row := &m.Rows[i]
		for _, task := range slices.Sorted(maps.Keys(row.Signs)) {
			name := row.Editor
			if name == "" {
				name = "none"
			}
			t.Add(name, row.Edits, task, strings.Join(row.Signs[task], "; "))
		}
	}

	if len(t.Rows) > 0 {
		s.Tables = append(s.Tables, t)
	}

	return s
}

// beside puts the models beside each other.
func beside(r *editeval.Report) report.Section {
	s := report.Section{Title: "Model by model"}
	for _, ed := range r.Plan.Editors {
		c := &report.Chart{
			Title: ed.Name + ": edits that hold", Kind: report.Line,
			X: report.Axis{Label: "edits", Log: len(r.Counts) > 2}, Y: report.Axis{Label: "fraction"},
		}
		for i := range r.Models {
			rows := slices.DeleteFunc(of(&r.Models[i], ed.Name),
				func(r editeval.Row) bool { return r.Edits < ed.Batch })
			c.Series = append(c.Series, report.Series{
				Name: r.Models[i].Name,
				X:    floats(rows, func(r *editeval.Row) float64 { return float64(r.Edits) }),
				Y:    floats(rows, func(r *editeval.Row) float64 { return r.Held.Mean }),
				Low:  floats(rows, func(r *editeval.Row) float64 { return r.Held.Low }),
				High: floats(rows, func(r *editeval.Row) float64 { return r.Held.High }),
			})
		}

		s.Charts = append(s.Charts, c)
	}

	return s
}

// cost shows the times of a run. They stand on no page: another run would not repeat them.
func cost(r *editeval.Report) *report.Table {
	t := &report.Table{Note: "what an edit costs; the processor time of sequences that ran at once in one process " +
		"is divided evenly among them", Columns: report.Columns("model", "editor", "seed", "edits", "s/edit|%.3g",
		"processor s/edit|%.3g", "s to measure|%.3g", "interruptions")}
	for _, u := range r.Timings {
		edits := 0
		wall := 0.0

		cpu := 0.0
		measured := 0.0
		whole := true
		for _, c := range u.Timings {
			edits, wall, measured = edits+c.Edits, wall+c.Seconds, measured+c.Measured
			if whole = whole && c.CPU != nil; whole {
				cpu += *c.CPU
			}
		}

		if edits == 0 {
			continue
		}

		var per any
		if whole {
			per = cpu / float64(edits)
		}

		t.Add(u.Model, u.EditorName, int(u.Seed), edits, wall/float64(edits), per, measured, u.Restarts)
	}

	return t
}

// made says what the results depend on.
func made(r *editeval.Report) report.Section {
	s := report.Section{
		Title: "How this was made",
		Text: []string{
			"How long it took stands in " + editeval.TimingsFile + ", the only file here that another run " +
				"would not repeat.",
		},
	}

	models := &report.Table{
		Title:   "Models",
		Columns: report.Columns("model", "parameters", "device", "identity", "text of the covariance"),
	}
	for i := range r.Models {
		m := &r.Models[i]
		models.Add(m.Name, m.Parameters, m.Device, short(m.Identity), short(m.Statistics))
	}

	editors := &report.Table{
		Title: "Editors", Columns: report.Columns("editor", "method", "batch", "hyper-parameters of the first model",
			"layers", "steps", "rate|%.3g", "clamp|%.3g", "λ|%.3g"),
		Note: "Data: " + short(r.Data) + " (records of edits).",
	}

	for _, q := range r.Models[0].Sequences {
		if q.Seed == r.Plan.Seeds[0] {
			editors.Add(q.Editor, q.Method, batch(q.Batch), q.HParams.Source, spaced(q.HParams.Layers), q.HParams.Steps,
				q.HParams.LearningRate, q.HParams.Clamp, q.HParams.Lambda)
		}
	}

	s.Tables = append(s.Tables, models, editors)
	return s
}

// short is the beginning of a hash.
func short(hash string) string { return hash[:min(16, len(hash))] }
