package task

import (
	"math"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/editeval/task/internal/score"
	"github.com/modelcompress/compress/editeval/task/internal/store"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
)

// Audit counts what stands behind the figures of a task, and what a collapsed model would show.
type Audit struct {
	Documents int `json:"documents"` // scored
	Left      int `json:"left_out"`  // by the limit
	Requests  int `json:"requests"`  // that a model was or had been asked
	Cached    int `json:"cached"`    // of these, answered before
	Truncated int `json:"truncated"` // documents that were cut from the left
	// documents with a likelihood or logits that are not finite numbers; they count as wrong
	NonFinite  int `json:"non_finite"`
	OutOfRange int `json:"gold_out_of_range"`
	// Ignored are keys of the task file that change nothing.
	Ignored []string `json:"ignored_keys,omitempty"`

	// Right is how many documents are right, by metric and filter, where every document is right or wrong.
	Right map[string]int `json:"right,omitempty"`

	// Multiple choice.
	Constant *float64 `json:"constant_answer_rate,omitempty"` // fraction of the place that is chosen most often
	// fraction of the place that is right most often: what a constant answer can reach
	Prior     *float64 `json:"class_prior,omitempty"`
	Chance    *float64 `json:"chance,omitempty"`               // what guessing reaches
	FewChosen *int     `json:"choices_never_chosen,omitempty"` // places that are never chosen

	// Generation.
	Empty *float64 `json:"empty_rate,omitempty"`     // fraction of texts without a visible character
	Same  *float64 `json:"same_text_rate,omitempty"` // fraction of the text that is generated most often
	// fraction of texts of which most runs of four words are repeats
	Repeated *float64       `json:"repetition_rate,omitempty"`
	Invalid  *float64       `json:"no_answer_rate,omitempty"` // fraction of texts in which the filters find no answer
	Ended    map[string]int `json:"ended,omitempty"`          // texts by what ended them: stop, eos, length, nonfinite

	chosen, gold map[int]int
	places       int
	chance       float64
	texts        map[string]int
	empty        int
	repeated     int
	invalid      int
}

// cut counts a document that was cut from the left.
func (a *Audit) cut(was bool) {
	if was {
		a.Truncated++
	}
}

// choice counts a document with likelihoods.
func (a *Audit) choice(d *prompt.Document, answers []builtin.Answer, finite bool) {
	a.Documents++
	if !finite {
		a.NonFinite++
	}
	if d.Choices == nil {
		return
	}
	if a.chosen == nil {
		a.chosen, a.gold = map[int]int{}, map[int]int{}
	}

	a.places = max(a.places, len(d.Choices))
	a.chance += 1 / float64(len(d.Choices))

	a.chosen[score.Best(answers, len(d.Choices))]++
	if score.OutOfRange(d) {
		a.OutOfRange++
	} else if n, ok := d.Gold.(int64); ok {
		a.gold[int(n)]++
	}
}

// text counts a generated text.
func (a *Audit) text(t store.Answer, outcomes map[string]score.Outcome) {
	a.Documents++
	if a.texts == nil {
		a.texts, a.Ended = map[string]int{}, map[string]int{}
	}

	a.texts[t.Text]++
	a.Ended[t.Ended]++
	if t.Ended == "nonfinite" {
		a.NonFinite++
	}
	if strings.TrimSpace(t.Text) == "" {
		a.empty++
	}
	if repeats(t.Text) {
		a.repeated++
	}

	// An answer counts as invalid only if no filter found one.
	none := len(outcomes) > 0
	for _, o := range outcomes {
		none = none && o.Filtered == "[invalid]"
	}
	if none {
		a.invalid++
	}
}

// repeats reports whether more than half of a text's runs of four words have been there before.
func repeats(text string) bool {
	words := strings.Fields(text)
	if len(words) < 8 {
		return false
	}

	seen, again := map[string]bool{}, 0
	for i := 0; i+4 <= len(words); i++ {
		run := strings.Join(words[i:i+4], " ")
		if seen[run] {
			again++
		}
		seen[run] = true
	}

	return 2*again > len(words)-3
}

// finish computes the rates.
func (a *Audit) finish(t *one) {
	a.Left, a.Ignored = t.Total-a.Documents, t.Task.Ignored
	// Figures of a run that is cut short are over what was answered.
	n := float64(a.Documents)
	fraction := func(counts map[int]int) *float64 {
		most := 0
		for _, c := range counts {
			most = max(most, c)
		}
		v := float64(most) / n
		return &v
	}

	rate := func(k int) *float64 { v := float64(k) / n; return &v }

	if a.chosen != nil {
		a.Constant, a.Prior = fraction(a.chosen), fraction(a.gold)
		chance, never := a.chance/n, 0
		for i := range a.places {
			if a.chosen[i] == 0 {
				never++
			}
		}

		a.Chance, a.FewChosen = &chance, &never
	}

	if t.Task.OutputType == taskfile.GenerateUntil {
		most := 0
		for _, c := range a.texts {
			most = max(most, c)
		}
		a.Empty, a.Same, a.Repeated, a.Invalid = rate(a.empty), rate(most), rate(a.repeated), rate(a.invalid)
	}

	a.Right = map[string]int{}
	for filter, metrics := range t.items {
		for name, items := range metrics {
			// Metrics that are 0 or 1 for each document can be counted; for f1 and mcc an item is two classes, no
			// hit.
			right, binary := 0, true
			for _, x := range items {
				binary = binary && (x.X == 0 || x.X == 1) && x.N == 0 && x.Probs == nil
				right += int(math.Round(min(max(x.X, 0), 1)))
			}

			if binary && name != "f1" && name != "mcc" {
				a.Right[name+","+filter] = right
			}
		}
	}
}

// Signs lists what hints at a collapsed model, in words.
func (a *Audit) Signs() []string {
	var out []string
	add := func(bad bool, s string) {
		if bad {
			out = append(out, s)
		}
	}

	const much = 0.95
	add(a.NonFinite > 0, "answers that are not finite numbers")
	add(a.Documents > 10 && a.Constant != nil && *a.Constant >= much && (a.Prior == nil || *a.Constant > *a.Prior+0.05),
		"nearly always the same choice")
	add(a.Empty != nil && *a.Empty >= 0.5, "mostly empty texts")
	add(a.Documents > 10 && a.Same != nil && *a.Same >= 0.5 && a.Empty != nil && *a.Empty < 0.5, "mostly the same text")
	add(a.Repeated != nil && *a.Repeated >= 0.5, "mostly repetitions")

	return out
}
