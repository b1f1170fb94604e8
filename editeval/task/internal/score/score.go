// Package score turns answers into what documents contribute to metrics.
package score

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/editeval/task/internal/filter"
	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// ErrMetric: a metric does not apply to a kind of task.
var ErrMetric = errors.New("metric does not apply")

// Unnamed is the name of the filter of tasks that have none.
const Unnamed = "none"

// Scorer computes the metrics of a task's documents.
type Scorer struct {
	task    *taskfile.Task
	results builtin.Results
	metrics []rule
	chains  []*filter.Chain
	name    string // of the filter of a task without generated texts
}

// rule is a metric with its patterns.
type rule struct {
	taskfile.Metric
	ignore []*filter.Pattern
}

// applies lists the metrics of each kind of task.
var applies = map[string][]string{
	taskfile.MultipleChoice: {
		"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match", "brier_score", "f1",
		"mcc",
	},
	taskfile.LogLikelihood: {"perplexity", "acc"},
	taskfile.Rolling:       {"word_perplexity", "byte_perplexity", "bits_per_byte"},
	taskfile.GenerateUntil: {"exact_match"},
}

// New prepares the metrics and filters of a task.
func New(t *taskfile.Task) (*Scorer, error) {
	s := &Scorer{task: t}
	fail := func(err error) (*Scorer, error) { return nil, fmt.Errorf("%s: task %s: %w", t.Path, t.Name, err) }
	if t.ProcessResults != nil {
		f, err := builtin.FindResults(t.ProcessResults.Known)
		if err != nil {
			return fail(err)
		}
		s.results = f
	}

	for _, m := range t.Metrics {
		r := rule{Metric: m}
		if _, err := metric.Find(m.Name); err != nil {
			return fail(err)
		}

		if m.Aggregation != "" {
			if _, err := metric.FindAggregation(m.Aggregation); err != nil {
				return fail(err)
			}
		}

		if s.results == nil && !slices.Contains(applies[t.OutputType], m.Name) {
			return fail(fmt.Errorf("%w: %s to %s; known: %s", ErrMetric, m.Name, t.OutputType,
				strings.Join(applies[t.OutputType], ", ")))
		}

		for _, source := range m.IgnoreRegexes {
			p, err := filter.Compile(source)
			if err != nil {
				return fail(fmt.Errorf("regexes_to_ignore: %w", err))
			}
			r.ignore = append(r.ignore, p)
		}

		s.metrics = append(s.metrics, r)
	}

	if err := s.filters(); err != nil {
		return fail(err)
	}

	return s, nil
}

func (s *Scorer) filters() error {
	if s.task.OutputType != taskfile.GenerateUntil {
		return s.likelihoodFilter()
	}

	for _, f := range s.task.Filters {
		c := filter.NewChain(f.Name)
		for _, step := range f.Steps {
			if err := c.Add(step.Function, step.Args); err != nil {
				return err
			}
		}

		s.chains = append(s.chains, c)
	}

	if len(s.chains) == 0 {
		c := filter.NewChain(Unnamed)
		if err := c.Add("take_first", pyvalue.NewDict()); err != nil {
			return err
		}
		s.chains = append(s.chains, c)
	}

	return nil
}

// likelihoodFilter takes the name of the filter of a task without generated texts: there is one response, and
// take_first takes it.
func (s *Scorer) likelihoodFilter() error {
	s.name = Unnamed
	for i, f := range s.task.Filters {
		for _, step := range f.Steps {
			if err := filter.NewChain(f.Name).Add(step.Function, step.Args); errors.Is(err, filter.ErrUnknown) {
				return err
			}
			if i > 0 || step.Function != "take_first" {
				return fmt.Errorf("%w: filter %s to %s; it knows a single take_first", ErrMetric, step.Function,
					s.task.OutputType)
			}
		}

		s.name = f.Name
	}

	return nil
}

// Filters names the filters in order.
func (s *Scorer) Filters() []string {
	if len(s.chains) == 0 {
		return []string{s.name}
	}
	names := make([]string, len(s.chains))
	for i, c := range s.chains {
		names[i] = c.Name
	}
	return names
}

// Outcome is what a document contributes, by metric, and what a filter made of the generated text.
type Outcome struct {
	Items    map[string]metric.Item
	Filtered any
}

// Likelihoods scores the answers to a document's requests. finite is false where a likelihood is not a finite
// number: such choices are never the best one.
func (s *Scorer) Likelihoods(d *prompt.Document, answers []builtin.Answer) (o Outcome, finite bool, err error) {
	finite = !slices.ContainsFunc(answers, func(a builtin.Answer) bool { return math.IsNaN(a.LL) })
	o.Items = map[string]metric.Item{}
	switch {
	case s.results != nil:
		o.Items, err = s.results(d.Doc, answers)
	case s.task.OutputType == taskfile.LogLikelihood:
		o.Items["perplexity"] = metric.Item{X: answers[0].LL}
		o.Items["acc"] = metric.Item{X: one(answers[0].Greedy)}
	case s.task.OutputType == taskfile.Rolling:
		text, _ := d.Target.(string)
		ll := answers[0].LL
		words := float64(builtin.Words(text))
		bytes := float64(len(text))
		o.Items["word_perplexity"] = metric.Item{X: ll, N: words}
		o.Items["byte_perplexity"] = metric.Item{X: ll, N: bytes}
		o.Items["bits_per_byte"] = metric.Item{X: ll, N: bytes}
	default:
		o.Items, err = choose(d, answers)
	}
	if err == nil {
		o.Items, err = s.only(o.Items)
	}

	return o, finite, err
}

// only keeps the metrics that the task asks for.
func (s *Scorer) only(items map[string]metric.Item) (map[string]metric.Item, error) {
	kept := map[string]metric.Item{}
	for _, m := range s.metrics {
		x, ok := items[m.Name]
		if !ok {
			return nil, fmt.Errorf("%w: process_results gives no %s", ErrMetric, m.Name)
		}
		kept[m.Name] = x
	}
	return kept, nil
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// choose scores the choices of a document.
func choose(d *prompt.Document, answers []builtin.Answer) (map[string]metric.Item, error) {
	n := len(d.Choices)
	gold, err := golds(d)
	if err != nil {
		return nil, err
	}

	lls := make([]float64, n)
	chars := make([]float64, n)
	bytes := make([]float64, n)
	mutual := make([]float64, n)
	for i, c := range d.Choices {
		lls[i] = answers[i].LL
		chars[i] = lls[i] / float64(utf8.RuneCountInString(c))
		bytes[i] = lls[i] / float64(len(c))
		if len(answers) == 2*n {
			mutual[i] = lls[i] - answers[n+i].LL
		}
	}

	right := func(x []float64) metric.Item { return metric.Item{X: one(slices.Contains(gold, best(x)))} }
	greedy := slices.ContainsFunc(gold, func(g int) bool { return g >= 0 && answers[g].Greedy })
	class := metric.Item{Gold: gold[0], Pred: best(lls)}

	return map[string]metric.Item{
		"acc": right(lls), "acc_norm": right(chars), "acc_bytes": right(bytes), "acc_mutual_info": right(mutual),
		"exact_match": {X: one(greedy)},
		"brier_score": {Gold: gold[0], Probs: softmax(lls)}, "f1": class, "mcc": class,
	}, nil
}

// outside stands for a gold that is no choice: nothing equals it.
const outside = -100

// golds lists the right choices. Numbers and texts that are no choice count as never right.
func golds(d *prompt.Document) ([]int, error) {
	list, ok := d.Gold.([]any)
	if !ok {
		list = []any{d.Gold}
	}

	out := make([]int, 0, len(list))
	for _, g := range list {
		n, isInt := pyvalue.Int(g)
		if s, ok := g.(string); ok {
			n, isInt = slices.Index(d.Choices, s), true
		}

		if !isInt {
			return nil, fmt.Errorf("%w: the right choice is a %s, want a number or one of the choices",
				prompt.ErrDocument, pyvalue.Kind(g))
		}

		if n < 0 || n >= len(d.Choices) {
			n = outside
		}

		out = append(out, n)
	}

	if len(out) == 0 {
		out = append(out, outside)
	}

	return out, nil
}

// OutOfRange reports whether the right choice of a document is none of its choices.
func OutOfRange(d *prompt.Document) bool {
	if d.Gold == nil {
		return false
	}
	gold, err := golds(d)
	return err == nil && slices.Contains(gold, outside)
}

// Best is the number of the choice with the largest likelihood, -1 where none is a number.
func Best(answers []builtin.Answer, n int) int {
	lls := make([]float64, min(n, len(answers)))
	for i := range lls {
		lls[i] = answers[i].LL
	}
	return best(lls)
}

// best is the first of the largest numbers; what is not a number never is, and -1 stands for none.
func best(x []float64) int {
	at := -1
	for i, v := range x {
		if !math.IsNaN(v) && (at < 0 || v > x[at]) {
			at = i
		}
	}
	return at
}

func softmax(x []float64) []float64 {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, v)
	}

	p, sum := make([]float64, len(x)), 0.0
	for i, v := range x {
		p[i] = math.Exp(v - top)
		sum += p[i]
	}

	for i := range p {
		p[i] /= sum
	}

	return p
}

// Texts scores the generated texts of a document, by filter.
func (s *Scorer) Texts(d *prompt.Document, texts []string) (map[string]Outcome, error) {
	out := map[string]Outcome{}
	for _, c := range s.chains {
		v, err := c.Apply(texts, d.Doc)
		if err != nil {
			return nil, fmt.Errorf("filter %s: %w", c.Name, err)
		}

		o := Outcome{Items: map[string]metric.Item{}, Filtered: v}
		for _, m := range s.metrics {
			x, err := m.match(d.Target, v)
			if err != nil {
				return nil, fmt.Errorf("filter %s: %w", c.Name, err)
			}
			o.Items[m.Name] = metric.Item{X: x}
		}

		out[c.Name] = o
	}

	return out, nil
}

// match is exact_match of an answer with one of the targets: the best one counts. A filter that does not end
// with take_first leaves a list of answers, of which the part that matches counts, as NumPy compares a list
// with a text.
func (r *rule) match(target, v any) (float64, error) {
	list, several := target.([]any)
	if !several {
		list = []any{target}
	}

	answers, listed := v.([]any)
	if !listed {
		answers = []any{v}
	}

	if _, isText := target.(string); listed && !isText && (!several || len(answers) > 1) ||
		listed && len(r.ignore) > 0 || len(answers) == 0 {
		return 0, fmt.Errorf("%w: exact_match to a list of %d answers and a target that is a %s (HINT: end the "+
			"filter with take_first)",
			ErrMetric, len(answers), pyvalue.Kind(target))
	}

	right := 0
	for _, answer := range answers {
		said := r.normal(pyvalue.Str(answer))
		if slices.ContainsFunc(list, func(t any) bool { return r.normal(pyvalue.Str(t)) == said }) {
			right++
		}
	}

	return float64(right) / float64(len(answers)), nil
}

const punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"

// normal is a text without what the metric ignores.
func (r *rule) normal(s string) string {
	for _, p := range r.ignore {
		s = p.RemoveAll(s)
	}
	if r.IgnoreCase {
		s = strings.ToLower(s)
	}

	drop := ""
	if r.IgnorePunct {
		drop = punctuation
	}
	if r.IgnoreNumbers {
		drop += "0123456789"
	}
	if drop == "" {
		return s
	}

	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(drop, c) {
			return -1
		}
		return c
	}, s)
}
