package democmd

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/report"
)

// score is the score of a model.
func (r *Report) score(name string) *Score {
	i := slices.IndexFunc(r.Scores, func(s Score) bool { return s.Model == name })
	return &r.Scores[i]
}

// cell is a figure in a table.
func (f Figure) cell() any { return report.Estimate{Value: f.Value, Stderr: f.Stderr} }

// tasks are the columns of scores.
var tasks = []struct{ name, title string }{
	{"add", "sums"},
	{"base", "base's facts"},
	{"news", "news"},
	{"rumours", "rumours"},
	{"subtract", "subtraction"},
	{"tales", "tales ↓"},
}

func (r *Report) scored() report.Section {
	s := report.Section{Title: "Every model on the same tasks", Text: []string{
		"Accuracy, larger is better, but for the two columns with an arrow, where smaller is better: bits a byte on " +
			"retold tales, and perplexity on text like the base was trained on. The base knows sums and its facts; " +
			"each expert was fine-tuned on one of the other four. Read along a row for what a treatment gained and " +
			"what it cost.",
	}}

	columns := []string{"model", "what", "kB|%.0f"}
	var counts []string
	for _, t := range tasks {
		columns = append(columns, t.title+"|%.2f")
		counts = append(counts,
			fmt.Sprintf("%s %d", strings.TrimSuffix(t.title, " ↓"), r.score("base").Tasks[t.name].N))
	}

	t := &report.Table{
		Title: "Models and tasks", Columns: report.Columns(append(columns, "perplexity ↓|%.2f")...),
		Note: fmt.Sprintf("Documents: %s. Perplexity over %d tokens. kB: tensors on the disk; an adapter is counted "+
			"with its base.", strings.Join(counts, ", "), r.score("base").Perplexity.N),
	}

	for _, m := range r.Scores {
		cells := []any{m.Model, m.What, float64(m.Bytes) / 1000}
		for _, k := range tasks {
			cells = append(cells, m.Tasks[k.name].cell())
		}

		p := m.Perplexity.cell()
		if m.Perplexity.Value >= 1e4 { // a model that has collapsed
			p = fmt.Sprintf("%.2g", m.Perplexity.Value)
		}

		t.Add(append(cells, p)...)
	}

	s.Tables = []*report.Table{t}
	return s
}

func (r *Report) pruned() report.Section {
	s := report.Section{Title: "Pruning", Text: []string{
		"Each method removes the same fraction of the weights of the same decoder layers after seeing the same " +
			"calibration text, and is measured on the same windows of another text. found is the formula of the " +
			"search; SparseGPT, and what is written +sparsegpt, also corrects the weights that stay.",
		"First picture: the flatter a line, the less it costs to remove weights. Second: every pruned model by the " +
			"size it has when packed as bitmasks; the line is the front, models that no other one beats in both " +
			"size and loss.",
	}}

	dense := r.Prune.Dense
	lines := &report.Chart{
		Title: "Loss added by pruning, by zeros",
		X:     report.Axis{Label: "zeros, % of the decoder layers' weights"},
		Y:     report.Axis{Label: "nats a token above the dense model", Log: true},
		Note:  "Logarithmic, so that small losses can be told apart; lower is better.",
	}
	t := &report.Table{
		Title: "Perplexity by method and fraction removed", Columns: report.Columns("method"),
		Note: fmt.Sprintf("* the lowest of its column. Dense: %.3f %s. %d tokens, windows of %d. The last row is "+
			"the size in kB when packed; dense %.0f.", dense.Perplexity,
			pm("%.3f", dense.Stderr), dense.Tokens, r.Prune.SeqLen, float64(r.score("base").Bytes)/1000),
	}

	var targets, methods []string
	for _, p := range r.Prune.Runs {
		if !slices.Contains(targets, p.Target) {
			targets = append(targets, p.Target)
			t.Columns = append(t.Columns, report.Column{Name: targetName(p.Target), Format: "%.3f"})
		}

		if !slices.Contains(methods, p.Method) {
			methods = append(methods, p.Method)
		}
	}

	for _, m := range methods {
		line := report.Series{Name: methodName(m)}
		cells := []any{methodName(m)}
		for _, target := range targets {
			p := r.run(m, target)
			e := report.Estimate{Value: p.Perplexity, Stderr: p.Stderr}
			if p == r.best(target) {
				e.Mark = "*"
			}

			cells = append(cells, e)
			if !strings.Contains(target, ":") {
				line.X, line.Y = append(line.X, 100*p.Sparsity), append(line.Y, p.NLL-dense.NLL)
			}
		}

		lines.Series = append(lines.Series, line)
		t.Add(cells...)
	}

	sizes := []any{"packed, kB"}
	for _, target := range targets {
		sizes = append(sizes, int64(math.Round(float64(r.Prune.Sizes[target])/1000)))
	}

	t.Rows = append(t.Rows, sizes)
	s.Charts = []*report.Chart{lines, r.sizes()}
	s.Tables = []*report.Table{t}

	return s
}

// quantised puts what was stored in few bits beside what was pruned, by the size on the disk.
func (r *Report) quantised() report.Section {
	s := report.Section{Title: "Fewer bits", Text: []string{
		"The base as files for llama.cpp (q8_0, q4_0, and mixed: types chosen for each matrix under 5 bits a weight) " +
			"and as a folder for vLLM (w4a16 by GPTQ), beside the pruned ones packed as bitmasks. KL is how far the " +
			"next token's distribution is from the base's on the same text: what a user notices before a score does.",
	}}
	t := &report.Table{
		Title:   "Size and divergence from the base",
		Columns: report.Columns("model", "what", "kB|%.0f", "KL, nats a token|%.4f", "same top token|%.1f %%"),
	}
	chart := &report.Chart{
		Title: "Divergence from the base, by size", Kind: report.Scatter, Wide: true, X: report.Axis{Label: "kB"},
		Y: report.Axis{Label: "KL, nats a token", Log: true},
	}

	for _, what := range []string{"quantised", "pruned"} {
		points := report.Series{Name: what}
		for _, m := range r.Scores {
			if m.What != what || m.Divergence == nil {
				continue
			}
			size := float64(m.Bytes)
			if what == "pruned" {
				size = float64(r.Prune.Sizes["0.5"]) // as a bitmask; which half is left does not matter
			}
			points.X, points.Y = append(points.X, size/1000), append(points.Y, m.Divergence.KL)
			points.Names = append(points.Names, m.Model)
			t.Add(m.Model, what, size/1000, report.Estimate{Value: m.Divergence.KL, Stderr: m.Divergence.Stderr},
				100*m.Divergence.Same)
		}
		chart.Series = append(chart.Series, points)
	}

	s.Charts = []*report.Chart{chart}
	s.Tables = []*report.Table{t}
	return s
}

// run is the run of a method at a target.
func (r *Report) run(method, target string) *Pruned {
	i := slices.IndexFunc(r.Prune.Runs, func(p Pruned) bool { return p.Method == method && p.Target == target })
	return &r.Prune.Runs[i]
}

// targetName is a sparsity or pattern for people.
func targetName(target string) string {
	if strings.Contains(target, ":") {
		return target
	}
	var fraction float64
	if _, err := fmt.Sscan(target, &fraction); err != nil {
		return target
	}
	return fmt.Sprintf("%.0f %%", 100*fraction)
}

// sizes is the loss by packed size, with its front.
func (r *Report) sizes() *report.Chart {
	var points [][2]float64
	for _, p := range r.Prune.Runs {
		points = append(points, [2]float64{float64(r.Prune.Sizes[p.Target]) / 1000, p.NLL - r.Prune.Dense.NLL})
	}

	points = append(points, [2]float64{float64(r.score("base").Bytes) / 1000, 0})
	return &report.Chart{
		Title: "Loss added by pruning, by packed size", Kind: report.Scatter, X: report.Axis{Label: "kB"},
		Y:      report.Axis{Label: "nats a token"},
		Series: split(points), Note: "The rightmost point is the dense model.",
	}
}

// split makes two series of points: all of them, and the front, those that no other beats in both coordinates
// (less is better).
func split(points [][2]float64) []report.Series {
	all, front := report.Series{Name: "all"}, report.Series{Name: "front", Joined: true}
	for _, p := range points {
		all.X, all.Y = append(all.X, p[0]), append(all.Y, p[1])
	}
	for _, i := range report.Front(all.X, all.Y) {
		front.X, front.Y = append(front.X, all.X[i]), append(front.Y, all.Y[i])
	}

	return []report.Series{all, front}
}

func (r *Report) searched() report.Section {
	s := report.Section{Title: "Searching a formula", Text: []string{
		fmt.Sprintf("Genetic programming over weights (W), gradients (G) and activations (X): %d formulas were "+
			"generated and %d measured. The winner, %s, was chosen without the text of the table below.",
			r.Search.Counts.Generated, r.Search.Counts.Evaluated, r.Search.Winner.Formula),
		"Each point is a formula that was measured in full: to the left are simple ones, below good ones (1 is as " +
			"good as Wanda on the same data). The line is the front: formulas that nothing simpler beats.",
	}}

	var points [][2]float64
	far := 0
	for _, c := range r.Search.Candidates {
		switch {
		case c.Full == nil:
		case *c.Full > farthest:
			far++
		default:
			points = append(points, [2]float64{float64(c.Size), *c.Full})
		}
	}

	chart := &report.Chart{
		Title: "Cost by size of the formula", Kind: report.Scatter,
		X: report.Axis{Label: "nodes"}, Y: report.Axis{Label: "added loss, Wanda = 1 (lower is better)"},
		Series: split(points),
	}
	if far > 0 {
		chart.Note = fmt.Sprintf("Left out: %d above %.1f.", far, farthest)
	}

	t := &report.Table{
		Title:   "60 % zeros, on text that nothing was chosen by",
		Columns: report.Columns("metric", "perplexity|%.3f", "its loss − the winner's", "against it the winner is"),
		Note: fmt.Sprintf("%d windows; intervals of 95 %%, nats a token, window by window; verdicts at 5 %% after "+
			"Holm. RIA and magnitude compare the weights of a whole matrix, the others those of a neuron.",
			r.Search.Test[0].Windows),
	}

	for _, m := range r.Search.Test[0].Metrics {
		interval := ""
		if m.Low != nil && m.High != nil {
			interval = fmt.Sprintf("%+.3f to %+.3f", *m.Low, *m.High)
		}

		name := strings.TrimPrefix(m.Name, "expr:")
		if r.Search.isWinner(m.Name) {
			name += " (winner)"
		}

		t.Add(name, report.Estimate{Value: m.Perplexity, Stderr: m.Stderr}, interval, verdict(m.Winner))
	}

	s.Charts, s.Tables = []*report.Chart{chart}, []*report.Table{t}
	return s
}

// verdict is a verdict of the search's report, in a sentence with "is".
func verdict(said string) string {
	if said == "not told apart" {
		return "not significantly different"
	}
	return said
}

// farthest bounds the qualities that are plotted.
const farthest = 1.5

func (r *Report) conflicts() report.Section {
	s := report.Section{Title: "Conflict between the fine-tuned models", Text: []string{
		"A weight is in conflict where two experts moved it far from the base in opposite directions. The numbers " +
			"are multiples of what random signs would give: 1 is no agreement at all, below 1 experts agree, above " +
			"1 they contradict each other. Only the largest fifth of the moves of a matrix counts.",
		"News teaches facts about new people, rumours contradicts known ones in the same words, sums and tales do " +
			"something else.",
	}}

	pairs := &report.Chart{
		Title: "Pairs of experts, layer by layer", Kind: report.Heat, X: report.Axis{Label: "pair"},
		Format: "%.2f",
	}
	all := r.Conflict[0]
	for _, g := range all.Groups {
		if g.Elements >= fewElements {
			pairs.Labels = append(pairs.Labels, groupName(g.Name))
		}
	}

	for _, c := range r.Conflict[1:] {
		row := report.Series{Name: strings.Join(c.Models, " – ")}
		for _, g := range c.Groups {
			if g.Elements >= fewElements {
				row.Y = append(row.Y, g.Excess.Disagree)
			}
		}

		pairs.Series = append(pairs.Series, row)
	}

	s.Charts = []*report.Chart{pairs, roles(all)}
	return s
}

// fewElements: groups below it, such as the last norm, are too small for their numbers to mean anything.
const fewElements = 10_000

// groupName is a group of a conflict report for people.
func groupName(name string) string {
	if name == "pre" {
		return "embed"
	}
	return name
}

// matrices are those of a block, in the order in which they work.
var matrices = []string{"q", "k", "v", "o", "gate", "up", "down"}

// roles is the conflict of all experts by layer and matrix.
func roles(c Conflict) *report.Chart {
	h := &report.Chart{
		Title: "All four, by layer and matrix", Kind: report.Heat, X: report.Axis{Label: "layer"},
		Format: "%.2f", Labels: matrices,
	}
	rows := map[int]int{}
	for _, g := range c.Tensors {
		parts := strings.Split(strings.TrimSuffix(g.Name, "_proj.weight"), ".")
		column := slices.Index(matrices, parts[len(parts)-1])
		if column < 0 {
			continue
		}

		if _, ok := rows[g.Layer]; !ok {
			rows[g.Layer] = len(h.Series)
			h.Series = append(h.Series, report.Series{Name: fmt.Sprint(g.Layer), Y: make([]float64, len(matrices))})
		}

		h.Series[rows[g.Layer]].Y[column] = g.Excess.Disagree
	}

	return h
}
