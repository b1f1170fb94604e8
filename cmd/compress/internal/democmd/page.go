package democmd

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// write writes the two reports.
func (d *demo) write(r *Report, stages []stage) error {
	data, err := d.job.Record(r)
	if err != nil {
		return err
	}

	var page bytes.Buffer
	if err := r.page(stages, d.job.Seed).HTML(&page); err != nil {
		return err
	}
	if err := cli.WriteFile(filepath.Join(d.o.Out, pageFile), page.Bytes()); err != nil {
		return err
	}

	return cli.WriteFile(filepath.Join(d.o.Out, reportFile), data)
}

// page is the whole story, without anything that another run would not repeat.
func (r *Report) page(stages []stage, seed uint64) *report.Page {
	p := &report.Page{
		Title: "compress demo: one small model, every tool",
		Subtitle: fmt.Sprintf("Llama of 480,096 parameters and four fine-tunes of it, made for this project · seed "+
			"%d · version %s", seed, compress.Version()),
	}

	first := report.Section{Title: "At a glance", Text: []string{
		"A search found a formula that says which weights can go, the base was pruned with it and with known " +
			"methods, and stored in few bits, four fine-tuned models were merged and mediated, an adapter was " +
			"trained, facts were edited, " +
			"and every model that came of it was scored on the same tasks. ± is a standard error; the models and " +
			"tasks are small, so look at the errors before the figures.",
	}}

	if r.Quick {
		first.Text = append(first.Text, "This is a quick demo: a few candidates, steps and documents. Its figures "+
			"show what is measured, not how good anything is.")
	}

	for _, f := range r.figures() {
		first.Facts = append(first.Facts, report.Fact{Name: f.name, Value: f.value, Note: f.note})
	}

	p.Sections = []report.Section{
		first, r.scored(), r.pruned(), r.quantised(), r.searched(), r.conflicts(), r.merged(), r.adapted(), r.edits(),
		r.tested(),
	}
	for i, s := range stages {
		commands := report.Section{Text: []string{fmt.Sprintf("%d. To %s:", i+1, s.title)}}
		if i == 0 {
			commands.Title = "The commands"
		}
		for _, step := range s.steps {
			commands.Code = append(commands.Code, step.line())
		}

		p.Sections = append(p.Sections, commands)
	}

	return p
}

// fact is a figure of the summary.
type fact struct{ name, value, note string }

// figures are those that matter.
func (r *Report) figures() []fact {
	return []fact{
		r.searchFact(), r.pruneFact(), r.quantiseFact(), r.conflictFact(), r.mergeFact(), r.adaptFact(), r.editFact(),
	}
}

// summary is the same for a terminal.
func (r *Report) summary() string {
	var b strings.Builder
	for _, f := range r.figures() {
		fmt.Fprintf(&b, "%-37s%s\n", f.name, f.value)
		line := "   "
		for _, w := range strings.Fields(f.note) {
			if utf8.RuneCountInString(line+" "+w) > summaryWidth {
				b.WriteString(line + "\n")
				line = "   "
			}
			line += " " + w
		}

		b.WriteString(line + "\n")
	}

	return b.String()
}

// summaryWidth is the longest line of the summary, in letters.
const summaryWidth = 110

// next are command lines to go on with.
func (r *Report) next(out string) []string {
	b := builder{dir: out}
	return []string{
		b.step(0, "inspect @/prune/found-50").line(),
		b.step(0, "generate @/merge/"+mediated).line() + " --prompt 'Long ago a proud crow' --max-tokens 24",
		b.step(0, "prune @/nano/base --calib @/nano/text/calib.txt --seqlen 256 --sparsity 0.6 --out my-model").line(),
	}
}

// isWinner tells the winner among the metrics of a report.
func (s *Search) isWinner(metric string) bool { return metric == "expr:"+s.Winner.Formula }

func (r *Report) searchFact() fact {
	f := fact{name: "Search: found and Wanda, 60 % zeros"}
	var own, wanda *Metric
	for i, m := range r.Search.Test[0].Metrics {
		switch {
		case r.Search.isWinner(m.Name):
			own = &r.Search.Test[0].Metrics[i]
		case m.Name == "wanda":
			wanda = &r.Search.Test[0].Metrics[i]
		}
	}

	if own == nil || wanda == nil {
		f.value, f.note = r.Search.Winner.Formula, "the winner"
		return f
	}

	f.value = fmt.Sprintf("%.2f and %.2f", own.Perplexity, wanda.Perplexity)
	f.note = fmt.Sprintf("perplexity on unseen text; %s is %s", r.Search.Winner.Formula, wanda.Winner)
	if wanda.Low != nil && wanda.High != nil {
		f.note += fmt.Sprintf(" (Wanda's loss is %+.3f to %+.3f nats above, 95 %%)", *wanda.Low, *wanda.High)
	}

	return f
}

func (r *Report) pruneFact() fact {
	best := r.best("0.5")
	dense := r.score("base").Bytes
	return fact{
		"Prune: half of the weights", fmt.Sprintf("%.2f %s", best.Perplexity, pm("%.2f", best.Stderr)),
		fmt.Sprintf("perplexity with %s, dense %.2f; packed %s instead of %s", methodName(best.Method),
			r.Prune.Dense.Perplexity, kilo(r.Prune.Sizes["0.5"]), kilo(dense)),
	}
}

// best is the run with the lowest perplexity at a target.
func (r *Report) best(target string) *Pruned {
	var best *Pruned
	for i := range r.Prune.Runs {
		if p := &r.Prune.Runs[i]; p.Target == target && (best == nil || p.Perplexity < best.Perplexity) {
			best = p
		}
	}
	return best
}

func (r *Report) quantiseFact() fact {
	q := r.score("mixed")
	return fact{
		"Quantise: 4 to 8 bits a weight", fmt.Sprintf("%s of %s", kilo(q.Bytes), kilo(r.score("base").Bytes)),
		fmt.Sprintf("a GGUF file with 5 bits a weight, each matrix as many as it needs: %.4f nats from the base's "+
			"predictions, the same top token for %.1f %%", q.Divergence.KL, 100*q.Divergence.Same),
	}
}

func (r *Report) conflictFact() fact {
	most, least := &r.Conflict[1], &r.Conflict[1]
	for i := range r.Conflict[1:] {
		c := &r.Conflict[i+1]
		if c.Whole.Excess.Disagree > most.Whole.Excess.Disagree {
			most = c
		}
		if c.Whole.Excess.Disagree < least.Whole.Excess.Disagree {
			least = c
		}
	}

	return fact{
		"Conflict: " + strings.Join(most.Models, " and "),
		fmt.Sprintf("%.2f × random signs", most.Whole.Excess.Disagree),
		fmt.Sprintf("the pair that disagrees most; least: %s, %.2f", strings.Join(least.Models, " and "),
			least.Whole.Excess.Disagree),
	}
}

func (r *Report) mergeFact() fact {
	static := r.bestStatic()
	own := r.mean(mediated)
	each := r.expertMean()
	return fact{
		"Mediate: mean of three tasks", fmt.Sprintf("%.2f %s", own.Value, pm("%.2f", own.Stderr)),
		fmt.Sprintf("best static merge, %s: %.2f %s; each expert on its own task: %.2f %s; storage %.0f %% of "+
			"four experts", static,
			r.mean(static).Value, pm("%.2f", r.mean(static).Stderr), each.Value, pm("%.2f", each.Stderr),
			100*float64(r.score(mediated).Bytes)/float64(4*r.score("news").Bytes)),
	}
}

func (r *Report) adaptFact() fact {
	lora, mos := r.Adapt[0], r.Adapt[1]
	bits := func(model string) float64 { return r.score(model).Tasks["tales"].Value }
	return fact{
		"Adapt: Mixture of Shards and LoRA", fmt.Sprintf("%.3f and %.3f bits a byte", bits("mos"), bits("lora")),
		fmt.Sprintf("on new tales, with %s and %s trained parameters; base %.3f, full fine-tune %.3f",
			cli.Thousands(mos.Trainable), cli.Thousands(lora.Trainable),
			bits("base"), bits("tales")),
	}
}

func (r *Report) editFact() fact {
	last := 0
	for _, e := range r.Edit {
		last = max(last, e.Edits)
	}

	var parts []string
	value := ""
	for _, e := range r.Edit {
		if e.Edits != last || e.Editor == "" {
			continue
		}
		if e.Editor == "ft" {
			value = fmt.Sprintf("%.0f %% hold", 100*e.Held.Mean)
		}

		parts = append(parts,
			fmt.Sprintf("%s %.0f %% (sums %.2f)", e.Editor, 100*e.Held.Mean, e.Abilities["add"].Value))
	}

	return fact{
		fmt.Sprintf("Edit: %d facts by fine-tuning", last), value,
		fmt.Sprintf("and by each editor, with the accuracy of sums, %.2f before: %s", r.Edit[0].Abilities["add"].Value,
			strings.Join(parts, ", ")),
	}
}

// pm is a standard error as it follows a figure.
func pm(format string, e *float64) string {
	if e == nil {
		return ""
	}
	return "± " + fmt.Sprintf(format, *e)
}

// kilo is a size in kB.
func kilo(n int64) string { return fmt.Sprintf("%.0f kB", float64(n)/1000) }

// methodName names a method of prune for people.
func methodName(method string) string {
	if strings.HasPrefix(method, "tree:") {
		if i := strings.LastIndex(method, ".json"); i >= 0 { // folders may have the ending too
			return "found" + method[i+len(".json"):]
		}
		return "found"
	}
	return method
}
