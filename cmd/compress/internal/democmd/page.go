package democmd

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// write writes the two reports.
func (d *demo) write(r outcome, stages []stage) error {
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
		Date: today(),
		Links: []report.Link{
			{Text: "The search", To: "search/report.html"},
			{Text: "All prunings", To: "prune/compared/report.html"},
			{Text: "The conflict", To: "conflict/all.html"},
			{
				Text: "Training of the LoRA",
				To:   "adapt/lora/training.html",
			},
			{Text: "Training of the Mixture of Shards", To: "adapt/mos/training.html"},
			{Text: "The editing study", To: "edit/study/report.html"},
		},
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

	editors := &report.Table{
		Title:   fmt.Sprintf("Editors after %d facts", r.lastEdits()[0].Edits),
		Columns: report.Columns("editor", "edits that hold", "accuracy of sums|%.2f"),
		Note:    fmt.Sprintf("Sums before any edit: %.2f.", r.Edit[0].Abilities["add"].Value),
	}
	for _, e := range r.lastEdits() {
		editors.Add(e.Editor, fmt.Sprintf("%.0f %%", 100*e.Held.Mean), e.Abilities["add"].Value)
	}
	first.Tables = []*report.Table{editors}

	p.Sections = []report.Section{
		first, r.scored(), r.pruned(), r.quantised(), r.searched(), r.conflicts(), r.merged(), r.adapted(), r.edits(),
		r.tested(),
	}
	p.Sections = append(p.Sections, commands(stages)...)
	return p
}

// commands are the command lines of the stages.
func commands(stages []stage) (list []report.Section) {
	for i, s := range stages {
		one := report.Section{Text: []string{fmt.Sprintf("%d. To %s:", i+1, s.title)}}
		if i == 0 {
			one.Title = "The commands"
			one.Text = append([]string{"A click on a line selects all of it."}, one.Text...)
		}
		for _, step := range s.steps {
			one.Code = append(one.Code, step.line())
		}
		list = append(list, one)
	}
	return list
}

// today is the date that a page shows: that of SOURCE_DATE_EPOCH where a build asks for the same bytes every day.
func today() string {
	now := time.Now()
	if n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		now = time.Unix(n, 0)
	}
	return now.UTC().Format(time.DateOnly)
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
func (r *Report) summary() string { return lines(r.figures()) + r.editors() }

// lines are figures for a terminal, each with its note below it.
func lines(figures []fact) string {
	var b strings.Builder
	for _, f := range figures {
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

// searchFact says what a reader would decide by: the found formula beside the known ones in the table that the page
// has below.
func (r *Report) searchFact() fact {
	f := fact{name: "Search (60 % zeros)"}
	var own *Metric
	var better, worse []string
	list := r.Search.Test[0].Metrics
	for i, m := range list {
		if r.Search.isWinner(m.Name) {
			own = &list[i]
		}
	}
	if own == nil {
		f.value, f.note = r.Search.Winner.Formula, "the winner"
		return f
	}

	for _, m := range list {
		if m.Name == "dense" || strings.HasPrefix(m.Name, "expr:") { // the others that were found are in the table
			continue
		}
		said := fmt.Sprintf("%s %.2f", m.Name, m.Perplexity)
		if m.Perplexity <= own.Perplexity {
			better = append(better, said)
		} else {
			worse = append(worse, said)
		}
	}

	f.value = fmt.Sprintf("perplexity %.2f with the found formula", own.Perplexity)
	f.note = r.Search.Winner.Formula
	if len(better) > 0 {
		f.note += "; as good or better: " + strings.Join(better, ", ")
	}
	if len(worse) > 0 {
		f.note += "; worse: " + strings.Join(worse, ", ")
	}
	f.note += fmt.Sprintf(" (%d windows that nothing was chosen by)", r.Search.Test[0].Windows)
	return f
}

func (r *Report) pruneFact() fact {
	best := r.best("0.5")
	dense := r.score("base").Bytes
	return fact{
		fmt.Sprintf("Prune (%s, 50 %% zeros)", proper(methodName(best.Method))),
		fmt.Sprintf("perplexity %.2f → %.2f", r.Prune.Dense.Perplexity, best.Perplexity),
		fmt.Sprintf("%s on unseen text; packed %s instead of %s", pm("%.2f", best.Stderr), kilo(r.Prune.Sizes["0.5"]),
			kilo(dense)),
	}
}

// proper is how the literature writes a method.
func proper(method string) string {
	for _, name := range []string{"SparseGPT", "Wanda", "RIA"} {
		method = strings.ReplaceAll(method, strings.ToLower(name), name)
	}
	return method
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
		"Quantise (5 bits a weight, GGUF)", fmt.Sprintf("%s instead of %s", kilo(q.Bytes), kilo(r.score("base").Bytes)),
		fmt.Sprintf("%.1f %% of the next tokens stay the same (KL %.4f nats a token); each matrix has as many bits "+
			"as it "+
			"needs", 100*q.Divergence.Same, q.Divergence.KL),
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

	name := func(c *Conflict) string { return strings.Join(c.Models, " and ") }
	return fact{
		"Conflict (pairs of fine-tunes)", fmt.Sprintf("%s contradict each other most", name(most)),
		fmt.Sprintf("%s; least: %s, %s", timesChance(most.Whole.Excess.Disagree), name(least),
			timesChance(least.Whole.Excess.Disagree)),
	}
}

// timesChance says a multiple of chance, and what it means.
func timesChance(x float64) string {
	verdict := "a lot"
	switch {
	case x < 0.5:
		verdict = "hardly ever"
	case x < 0.95:
		verdict = "less than unrelated changes"
	case x <= 1.05:
		verdict = "as unrelated changes"
	case x < 1.5:
		verdict = "somewhat more than unrelated changes"
	}
	return fmt.Sprintf("%.2f times chance (%s)", x, verdict)
}

func (r *Report) mergeFact() fact {
	static := r.bestStatic()
	own := r.mean(mediated)
	each := r.expertMean()
	return fact{
		"Merge (four fine-tunes, one folder)",
		fmt.Sprintf("accuracy %.2f mediated, %.2f by the best merge", own.Value, r.mean(static).Value),
		fmt.Sprintf("mean of three tasks, %s and %s; the best merge is %s; each fine-tune on its own task reaches "+
			"%.2f; "+
			"the mediated folder has %.0f %% of the size of all four",
			pm("%.2f", own.Stderr), pm("%.2f", r.mean(static).Stderr), static, each.Value,
			100*float64(r.score(mediated).Bytes)/float64(4*r.score("news").Bytes)),
	}
}

func (r *Report) adaptFact() fact {
	lora, mos := r.Adapt[0], r.Adapt[1]
	bits := func(model string) float64 { return r.score(model).Tasks["tales"].Value }
	return fact{
		"Adapt (new tales, bits a byte ↓)",
		fmt.Sprintf("base %.3f → LoRA %.3f, Mixture of Shards %.3f", bits("base"), bits("lora"), bits("mos")),
		fmt.Sprintf("with %s and %s trained parameters; training all weights reaches %.3f",
			cli.Thousands(lora.Trainable),
			cli.Thousands(mos.Trainable), bits("tales")),
	}
}

// lastEdits are the states of the editors after the most edits.
func (r *Report) lastEdits() (list []Edited) {
	last := 0
	for _, e := range r.Edit {
		last = max(last, e.Edits)
	}
	for _, e := range r.Edit {
		if e.Edits == last && e.Editor != "" {
			list = append(list, e)
		}
	}
	return list
}

func (r *Report) editFact() fact {
	list := r.lastEdits()
	least, most := math.Inf(1), 0.0
	before := r.Edit[0].Abilities["add"].Value
	sums := fmt.Sprintf("the sums that the base can do stay at %.2f", before)
	for _, e := range list {
		least, most = min(least, e.Held.Mean), max(most, e.Held.Mean)
		if e.Abilities["add"].Value < before-0.005 { // as many figures are shown
			sums = fmt.Sprintf("the sums that the base can do fall from %.2f as well", before)
		}
	}
	value := fmt.Sprintf("%.0f to %.0f %% hold", 100*least, 100*most)
	if least == most {
		value = fmt.Sprintf("%.0f %% hold", 100*most)
	}
	return fact{
		fmt.Sprintf("Edit (%d facts)", list[0].Edits), value,
		"by the editor; " + sums + ", as the table of editors shows",
	}
}

// editors is the table of editors for a terminal.
func (r *Report) editors() string {
	var b strings.Builder
	fmt.Fprintf(&b, "    %-10s %10s %6s\n", "editor", "edits hold", "sums")
	for _, e := range r.lastEdits() {
		fmt.Fprintf(&b, "    %-10s %8.0f %% %6.2f\n", e.Editor, 100*e.Held.Mean, e.Abilities["add"].Value)
	}
	return b.String()
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
