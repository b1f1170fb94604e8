package democmd

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// OwnReport is what a demo of the user's model measured.
type OwnReport struct {
	Command    string      `json:"command"`
	Model      string      `json:"model"`
	Quick      bool        `json:"quick"`
	Parameters int64       `json:"parameters"`
	Prune      Prune       `json:"prune"`
	Scores     []OwnScore  `json:"scores"`
	Heal       Adapter     `json:"heal"`
	Edits      []OwnEdit   `json:"edits"`
	Efficacy   OwnEfficacy `json:"efficacy"`
	Stages     []Stage     `json:"stages"`
}

// OwnScore is one form of the model.
type OwnScore struct {
	Name       string      `json:"name"`
	Bytes      int64       `json:"bytes"` // of weights
	Perplexity Figure      `json:"perplexity"`
	Divergence *Divergence `json:"divergence,omitempty"` // from the model as it came
	Questions  Figure      `json:"questions"`            // accuracy
}

// OwnEdit is a fact before and after it was written.
type OwnEdit struct {
	Prompt string `json:"prompt"`
	New    string `json:"new"`
	Before string `json:"before"` // what the model said
	After  string `json:"after"`
}

// OwnEfficacy are the fractions of an edit's report.
type OwnEfficacy struct {
	Written    float64 `json:"efficacy_success"`
	Paraphrase float64 `json:"paraphrase_success"`
	Neighbours float64 `json:"neighborhood_success"`
}

// forms are the forms of the model that are measured, by the folders of their stages.
var forms = []struct{ dir, name string }{
	{"dense", "as it came"},
	{"prune", "half of the weights removed (SparseGPT)"},
	{"heal", "the same, trained for a moment (LoRA)"},
	{"quantise", "4 bits a weight (Q4_0)"},
	{"edit", "three facts edited"},
}

// readOwn puts together what the steps wrote.
func readOwn(o Options) (*OwnReport, error) {
	in := &reader{dir: o.Out}
	r := &OwnReport{Command: command, Model: o.Model, Quick: o.Quick}
	var inspected struct {
		Parameters int64 `json:"parameters"`
	}
	in.json("dense/inspect.json", &inspected)
	r.Parameters = inspected.Parameters
	in.json("prune/compared/report.json", &r.Prune)
	in.json("heal/adapter/training.json", &r.Heal)

	for _, f := range forms {
		r.Scores = append(r.Scores, in.ownScore(f.dir, f.name))
	}

	for i, f := range ownFacts {
		var before, after struct {
			Text string `json:"text"`
		}
		in.json(fmt.Sprintf("dense/said-%d.json", i+1), &before)
		in.json(fmt.Sprintf("edit/said-%d.json", i+1), &after)
		r.Edits = append(r.Edits, OwnEdit{Prompt: f.prompt, New: f.new, Before: before.Text, After: after.Text})
	}

	var edited struct {
		Metrics OwnEfficacy `json:"metrics"`
	}
	in.json("edit/edits.json", &edited)
	r.Efficacy = edited.Metrics
	return r, in.err
}

// ownScore reads what a form of the model reached.
func (r *reader) ownScore(dir, name string) OwnScore {
	s := OwnScore{Name: name}
	var ppl struct {
		Value   float64     `json:"ppl"`
		Stderr  *float64    `json:"stderr"`
		Tokens  int         `json:"tokens"`
		Bytes   int64       `json:"model_bytes"`
		Against *Divergence `json:"against"`
	}
	r.json(dir+"/ppl.json", &ppl)
	s.Perplexity = Figure{ppl.Value, ppl.Stderr, ppl.Tokens}
	s.Bytes = ppl.Bytes
	s.Divergence = ppl.Against

	var results struct { // figures are named with a comma, which no tag of a field can hold
		Results map[string]map[string]json.RawMessage `json:"results"`
	}
	r.json(dir+"/questions/results.json", &results)
	q := results.Results["general"]
	field := func(name string, to any) {
		if text, ok := q[name]; ok && r.err == nil {
			r.err = json.Unmarshal(text, to)
		}
	}
	field("acc,none", &s.Questions.Value)
	field("acc_stderr,none", &s.Questions.Stderr)
	field("sample_len", &s.Questions.N)
	return s
}

// score is that of a form.
func (r *OwnReport) score(dir string) *OwnScore {
	for i, f := range forms {
		if f.dir == dir {
			return &r.Scores[i]
		}
	}
	return nil
}

// ppl is a perplexity in a sentence.
func ppl(v float64) string {
	if v >= 1e4 {
		return fmt.Sprintf("%.2g", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// figures are those that a reader would decide by.
func (r *OwnReport) figures() []fact {
	dense, healed := r.score("dense"), r.score("heal")
	pruned := r.score("prune")
	quantised, edited := r.score("quantise"), r.score("edit")
	from := "perplexity " + ppl(dense.Perplexity.Value) + " → "

	var others []string
	for _, p := range r.Prune.Runs {
		if p.Method != "sparsegpt" {
			others = append(others, methodName(p.Method)+" "+ppl(p.Perplexity))
		}
	}

	written := 0
	for _, e := range r.Edits {
		if strings.HasPrefix(strings.TrimSpace(e.After), e.New) {
			written++
		}
	}

	return []fact{
		{
			"Prune (SparseGPT, 50 % zeros)", from + ppl(pruned.Perplexity.Value),
			"the other methods at 50 %: " + strings.Join(others, ", ") + "; lower is better",
		},
		{
			fmt.Sprintf("Heal (LoRA, %d steps)", len(r.Heal.Steps)),
			"perplexity " + ppl(pruned.Perplexity.Value) + " → " + ppl(healed.Perplexity.Value),
			"the zeros stay; more steps and data of yours bring more back",
		},
		{
			"Quantise (4 bits a weight)", from + ppl(quantised.Perplexity.Value),
			fmt.Sprintf("%s instead of %s, %.0f %% of the next tokens stay the same; llama.cpp and Ollama open the "+
				"file",
				mega(quantised.Bytes), mega(dense.Bytes), 100*same(quantised)),
		},
		{
			"Edit (three facts, GRACE)", fmt.Sprintf("%d of %d are said", written, len(r.Edits)),
			fmt.Sprintf("perplexity %s → %s; questions right: %.0f %% → %.0f %%; GRACE answers these prompts, not the "+
				"same in other words", ppl(dense.Perplexity.Value), ppl(edited.Perplexity.Value),
				100*dense.Questions.Value, 100*edited.Questions.Value),
		},
	}
}

// same is how often a form's first token is that of the model.
func same(s *OwnScore) float64 {
	if s.Divergence == nil {
		return 0
	}
	return s.Divergence.Same
}

// mega is a size in MB, with a digit behind the point below 100.
func mega(n int64) string {
	if m := float64(n) / 1e6; m < 100 {
		return fmt.Sprintf("%.1f MB", m)
	}
	return fmt.Sprintf("%.0f MB", float64(n)/1e6)
}

// summary is the same for a terminal.
func (r *OwnReport) summary() string { return lines(r.figures()) }

// next are command lines to go on with.
func (r *OwnReport) next(out string) []string {
	b := own{builder: builder{dir: out}, model: r.Model}
	return []string{
		b.step(0, "generate @/heal/model").line() + " --prompt 'The capital of France is' --max-tokens 16",
		b.step(0, "eval compare @/dense/questions @/heal/questions").line(),
		b.step(0, "serve MODEL").line(),
	}
}

// page shows the model as it came and what became of it.
func (r *OwnReport) page(stages []stage, seed uint64) *report.Page {
	p := &report.Page{
		Title: "compress demo: " + filepath.Base(filepath.Clean(r.Model)),
		Subtitle: fmt.Sprintf("%s, %s parameters · seed %d · version %s", r.Model, cli.Thousands(r.Parameters), seed,
			compress.Version()),
		Date: today(),
		Links: []report.Link{
			{Text: "All methods of pruning", To: "prune/compared/report.html"},
			{Text: "The training", To: "heal/adapter/training.html"},
		},
	}

	first := report.Section{Title: "At a glance", Text: []string{
		"A first look at what the program does to this model, in minutes: few windows of text, a short training, " +
			"three edits and forty questions. It shows what each step costs and whether the model stands it; for a " +
			"result, give each verb its usual amount of data. ± is a standard error.",
	}}
	if r.Quick {
		first.Text = append(first.Text, "This is a quick demo, whose figures show what is measured, not how good "+
			"anything is.")
	}
	for _, f := range r.figures() {
		first.Facts = append(first.Facts, report.Fact{Name: f.name, Value: f.value, Note: f.note})
	}
	p.Sections = []report.Section{first, r.forms(), r.pruned(), r.healed(), r.edited()}
	p.Sections = append(p.Sections, commands(stages)...)
	return p
}

// forms is the table of all forms.
func (r *OwnReport) forms() report.Section {
	t := &report.Table{
		Title: "The model and what became of it",
		Columns: report.Columns("model", "MB|%.1f", "perplexity ↓", "questions right|%.2f", "same top token, %|%.1f",
			"KL, nats a token|%.4f"),
		Note: fmt.Sprintf("Perplexity over %s tokens of text; %d questions with four answers, so that chance is 0.25 "+
			"and differences below 0.15 mean nothing; top token and KL against the model as it came, on the same text.",
			cli.Thousands(int64(r.score("dense").Perplexity.N)), r.score("dense").Questions.N),
	}
	for _, s := range r.Scores {
		value := ppl(s.Perplexity.Value)
		if s.Perplexity.Stderr != nil {
			value += " ± " + ppl(*s.Perplexity.Stderr)
		}
		var top, kl any
		if s.Divergence != nil {
			top, kl = 100*s.Divergence.Same, s.Divergence.KL
		}
		t.Add(s.Name, float64(s.Bytes)/1e6, value, s.Questions.cell(), top, kl)
	}
	return report.Section{Title: "All in one table", Tables: []*report.Table{t}}
}

// pruned compares the methods.
func (r *OwnReport) pruned() report.Section {
	bars := &report.Chart{
		Title: "Perplexity with half of the weights removed", Kind: report.Bar, X: report.Axis{Label: "perplexity, " +
			"shorter is better"}, Labels: []string{"dense"}, Format: "%.4g",
		Series: []report.Series{{Name: "perplexity", Y: []float64{r.Prune.Dense.Perplexity}}},
	}
	left := ""
	for _, p := range r.Prune.Runs {
		if p.Perplexity > outOfScale*r.Prune.Dense.Perplexity {
			left += fmt.Sprintf("; %s is off the scale, with %s", methodName(p.Method), ppl(p.Perplexity))
			continue
		}
		bars.Labels = append(bars.Labels, methodName(p.Method))
		bars.Series[0].Y = append(bars.Series[0].Y, p.Perplexity)
	}
	bars.Note = strings.TrimPrefix(left, "; ")
	return report.Section{Title: "Pruning", Charts: []*report.Chart{bars}, Text: []string{
		"Three ways to choose which weights go, after the same calibration text. Magnitude needs none of it; " +
			"SparseGPT also corrects the weights that stay.",
	}}
}

// outOfScale is from what multiple of the dense perplexity a bar is left out, so that the others can be seen.
const outOfScale = 20

// healed is the training.
func (r *OwnReport) healed() report.Section {
	line := report.Series{Name: "loss"}
	for i, s := range r.Heal.Steps {
		line.X, line.Y = append(line.X, float64(i+1)), append(line.Y, s.Loss)
	}
	return report.Section{Title: "Healing", Text: []string{
		"A small adapter is trained on top of the pruned model and folded into it; the removed weights stay zero.",
	}, Charts: []*report.Chart{{
		Title: "Training loss", X: report.Axis{Label: "step"},
		Y: report.Axis{Label: "nats a token", Log: report.Spans(line)}, Series: []report.Series{line},
	}}}
}

// edited says what the model answered before and after.
func (r *OwnReport) edited() report.Section {
	t := &report.Table{
		Title: "What the model says", Columns: report.Columns("prompt", "to be written", "before", "after"),
		Note: fmt.Sprintf("The new answer is likelier than the old one for %.0f %% of the facts, for %.0f %% of their "+
			"paraphrases, and still less likely for %.0f %% of the neighbours, which no edit is about.",
			100*r.Efficacy.Written, 100*r.Efficacy.Paraphrase, 100*r.Efficacy.Neighbours),
	}
	for _, e := range r.Edits {
		t.Add(e.Prompt, e.New, oneLine(e.Before), oneLine(e.After))
	}
	return report.Section{Title: "Editing", Tables: []*report.Table{t}, Text: []string{
		"GRACE keeps the facts in a codebook beside one layer, which is read where a prompt comes close to one that " +
			"was written: nothing else moves, and other words for the same question mostly miss it. Other editors " +
			"write into the weights, which reaches further and costs more.",
	}}
}

// oneLine is the beginning of what a model says, as a table has room for it.
func oneLine(text string) string {
	r := []rune(strings.Join(strings.Fields(text), " "))
	if len(r) > mostSaid {
		return string(r[:mostSaid-1]) + "…"
	}
	return string(r)
}

const mostSaid = 28
