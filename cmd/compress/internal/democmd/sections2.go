package democmd

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/report"
)

// accuracies are the tasks of the experts whose mean is taken; that of the tales is in other units.
var accuracies = []string{"subtract", "news", "rumours"}

// mean is the mean accuracy of a model over the experts' tasks.
func (r *Report) mean(model string) Figure {
	return average(func(task string) Figure { return r.score(model).Tasks[task] })
}

// expertMean is the same where each expert does its own task.
func (r *Report) expertMean() Figure {
	return average(func(task string) Figure { return r.own(task) })
}

// own is what a task's own expert reaches.
func (r *Report) own(task string) Figure {
	for _, e := range experts {
		if e.task == task {
			return r.score(e.name).Tasks[task]
		}
	}
	return Figure{}
}

func average(of func(task string) Figure) Figure {
	sum, variance := 0.0, 0.0
	for _, task := range accuracies {
		f := of(task)
		sum += f.Value
		if f.Stderr != nil {
			variance += *f.Stderr * *f.Stderr
		}
	}

	n := float64(len(accuracies))
	e := math.Sqrt(variance) / n
	return Figure{Value: sum / n, Stderr: &e}
}

// bestStatic is the static merge with the highest mean.
func (r *Report) bestStatic() string {
	best := ""
	for _, s := range r.Scores {
		if s.What == "merged" && (best == "" || r.mean(s.Model).Value > r.mean(best).Value) {
			best = s.Model
		}
	}
	return best
}

func (r *Report) merged() report.Section {
	s := report.Section{Title: "Merging and mediating", Text: []string{
		"Static methods average four experts into one model of the base's size. Mediate keeps their differences at " +
			"three bits an element and lets a router send each request to one of them.",
		"Longer bars are better; the first row of the table is what was there before, the second what the experts " +
			"reach, each on its own task alone. News and rumours ask in the same words and differ in the names " +
			"only, which is where the router errs.",
	}}

	bars := &report.Chart{
		Title: "Mean accuracy of subtraction, news and rumours", Kind: report.Bar,
		X: report.Axis{Label: "accuracy"}, Format: "%.2f", Series: []report.Series{{Name: "accuracy"}},
	}
	t := &report.Table{
		Title: "Merges on the experts' tasks",
		Columns: report.Columns("model", "subtraction|%.2f", "news|%.2f", "rumours|%.2f", "mean|%.2f",
			"tales, bits/byte ↓|%.3f", "kB|%.0f"),
		Note: "One fixed setting for each method, not tuned; the best static merge of the summary is chosen by this " +
			"table itself, which flatters it.",
	}

	add := func(name string, of func(task string) Figure, mean Figure, bytes int64) {
		bars.Labels, bars.Series[0].Y = append(bars.Labels, name), append(bars.Series[0].Y, mean.Value)
		t.Add(name, of("subtract").cell(), of("news").cell(), of("rumours").cell(), mean.cell(), of("tales").cell(),
			float64(bytes)/1000)
	}

	for _, m := range r.Scores {
		switch m.What {
		case "merged", "mediated":
			add(m.Model, func(task string) Figure { return m.Tasks[task] }, r.mean(m.Model), m.Bytes)
		case "base":
			add(m.Model, func(task string) Figure { return m.Tasks[task] }, r.mean(m.Model), m.Bytes)
			add("each expert, own task", r.own, r.expertMean(), 4*r.score("news").Bytes)
		}
	}

	s.Charts, s.Tables = []*report.Chart{bars}, []*report.Table{t}
	return s
}

func (r *Report) adapted() report.Section {
	s := report.Section{Title: "Training an adapter", Text: []string{
		"A Mixture of Shards shares pools of vectors between the decoder layers, here with the parameters of a LoRA " +
			"of rank 2 and the rank of one of 8. Both are trained on retold tales with the same batches and learning " +
			"rate, one seed each. The curves are the training loss of each step, averaged over ten; lower is better.",
	}}

	curve := &report.Chart{Title: "Training loss", X: report.Axis{Label: "step"}, Y: report.Axis{Label: "nats a token"}}
	t := &report.Table{
		Title: "Adapters", Columns: report.Columns("adapter", "trained parameters", "file, kB|%.0f", "last loss|%.3f",
			"tales, bits/byte ↓|%.3f"),
		Note: fmt.Sprintf("Base: %.3f bits a byte on %d new tales; full fine-tune: %.3f. The paired test of the two "+
			"adapters is in the table of tests.",
			r.score("base").Tasks["tales"].Value, r.score("base").Tasks["tales"].N,
			r.score("tales").Tasks["tales"].Value),
	}

	for _, a := range r.Adapt {
		name := map[string]string{"lora": "LoRA, rank 8", "mos": "Mixture of Shards"}[a.Kind]
		line := report.Series{Name: name}
		for i := range a.Steps {
			from := max(0, i-9)
			sum := 0.0
			for _, step := range a.Steps[from : i+1] {
				sum += step.Loss
			}
			line.X, line.Y = append(line.X, float64(i+1)), append(line.Y, sum/float64(i+1-from))
		}

		curve.Series = append(curve.Series, line)
		t.Add(name, a.Trainable, float64(a.Bytes)/1000, line.Y[len(line.Y)-1], r.score(a.Kind).Tasks["tales"].cell())
	}

	curve.Y.Log = report.Spans(curve.Series...)
	s.Charts, s.Tables = []*report.Chart{curve}, []*report.Table{t}
	return s
}

func (r *Report) edits() report.Section {
	s := report.Section{Title: "Editing facts", Text: []string{
		"Each editor writes new facts, one after the other or all at once, into the base. An edit holds where its " +
			"new answer is likelier than the old one. Paraphrases ask for the edit in other words, neighbours for " +
			"the same relation of other people, whose answers should stay; sums and the base's facts are tasks that " +
			"no edit is about.",
		"In the map a row is an editor after all edits and a strong cell is a good one: edits hold, carry over, or " +
			"leave alone. The first row is the base before any edit. The curves: how many edits hold as more " +
			"are written.",
	}}

	var counts []int
	var editors []string
	for _, e := range r.Edit {
		if !slices.Contains(counts, e.Edits) && e.Editor != "" {
			counts = append(counts, e.Edits)
		}
		if !slices.Contains(editors, e.Editor) && e.Editor != "" {
			editors = append(editors, e.Editor)
		}
	}

	last := slices.Max(counts)
	lines := &report.Chart{
		Title: "Edits that hold, by number of edits", X: report.Axis{Label: "edits"}, Y: report.Axis{Label: "fraction"},
		Note: "Bars are 95 % intervals.",
	}

	heat := &report.Chart{
		Title: fmt.Sprintf("What is left after %d edits", last), Kind: report.Heat, X: report.Axis{Label: "editor"},
		Format: "%.2f", Scale: [2]float64{0, 1},
		Labels: []string{"holds", "paraphrase", "neighbours", "sums", "facts"},
	}

	t := &report.Table{
		Title: "Editors",
		Columns: report.Columns("editor", "edits", "hold (95 %)", "top-1|%.2f", "paraphrases|%.2f",
			"neighbours|%.2f", "sums|%.3f", "base's facts|%.3f", "text, perplexity ↓", "‖ΔW‖/‖W‖|%.2f"),
		Note: "* significantly worse than before any edit (paired, Holm). Top-1: the new answer is the first " +
			"of all tokens. grace keeps a codebook beside the weights and changes none of them.",
	}

	for i, name := range editors {
		line := report.Series{Name: name}
		for _, e := range r.Edit {
			if e.Editor == name {
				line.X, line.Y = append(line.X, float64(e.Edits)+0.06*float64(i)), append(line.Y, e.Held.Mean)
				line.Low, line.High = append(line.Low, e.Held.Low), append(line.High, e.Held.High)
			}
		}

		lines.Series = append(lines.Series, line)
	}

	for _, e := range r.Edit {
		name := e.Editor
		if name == "" {
			name = "none"
		}

		if e.Edits == last || e.Editor == "" {
			heat.Series = append(heat.Series,
				report.Series{
					Name: name,
					Y: []float64{
						e.Held.Mean, e.Paraphrase, e.Neighborhood, e.Abilities["add"].Value,
						e.Abilities["base"].Value,
					},
				})
		}

		t.Add(name, e.Edits, fmt.Sprintf("%.2f (%.2f–%.2f)", e.Held.Mean, e.Held.Low, e.Held.High), e.Exact,
			e.Paraphrase,
			e.Neighborhood, e.ability("add"), e.ability("base"),
			e.text(), e.Weights)
	}

	s.Charts, s.Tables = []*report.Chart{lines, heat}, []*report.Table{t}
	return s
}

// ability is a task's figure, marked where it is significantly worse than before.
func (e *Edited) ability(task string) report.Estimate {
	a := e.Abilities[task]
	cell := report.Estimate{Value: a.Value}
	if a.Lost > 0 {
		cell.Mark = "*"
	}
	return cell
}

// text is the perplexity on text, which a collapsed model has in the thousands.
func (e *Edited) text() string {
	a := e.Abilities["text_text"]
	text := fmt.Sprintf("%.2f", a.Value)
	if a.Value >= 1e4 {
		text = fmt.Sprintf("%.1e", a.Value)
	}
	if a.Lost > 0 {
		text += " *"
	}
	return text
}

func (r *Report) tested() report.Section {
	s := report.Section{Title: "Paired tests", Text: []string{
		"The same documents, answered by two models: McNemar's exact test for accuracies, a paired bootstrap for " +
			"bits a byte. An interval (95 %, of B less A) that leaves out 0 is a difference that the documents " +
			"alone do not explain; with this many rows, some will do so by chance. Better and worse are said of B, " +
			"at p below 0.001.",
	}}

	t := &report.Table{
		Title:   "B against A",
		Columns: report.Columns("A", "B", "task", "n", "A's|%.3f", "B's|%.3f", "B − A|%+.3f", "95 %", "p", "B is"),
	}
	for _, c := range r.Tests {
		p, verdict := "", ""
		if c.P != nil {
			p = fmt.Sprintf("%.2g", *c.P)
			better := (c.Difference > 0) == (c.Metric != "bits_per_byte")
			if *c.P < 0.001 && c.Difference != 0 {
				verdict = map[bool]string{true: "better", false: "worse"}[better]
			}
		}

		title := c.Task
		if i := slices.IndexFunc(tasks, func(t struct{ name, title string }) bool { return t.name == c.Task }); i >= 0 {
			title = tasks[i].title
		}

		t.Add(c.A, c.B, title, c.N, c.ValueA, c.ValueB, c.Difference, fmt.Sprintf("%+.3f to %+.3f", c.Low, c.High), p,
			verdict)
	}

	s.Tables = []*report.Table{t}
	return s
}
