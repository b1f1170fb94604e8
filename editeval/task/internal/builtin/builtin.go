// Package builtin has the functions that the definitions of this program call, and those of a few Python files
// of lm-evaluation-harness. No Python is run: a function stands for one of a Python file only if the whole text
// of that file is known here, since a name such as utils.process_docs means something else in every folder of
// tasks.
package builtin

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// The ways in which a call can fail.
var (
	ErrUnknown  = errors.New("unknown !function")
	ErrDocument = errors.New("document does not fit")
)

// Answer is what a model said to a request: a log-likelihood and whether it is the greedy continuation.
type Answer struct {
	LL     float64
	Greedy bool
}

type (
	// Docs changes the documents of a split.
	Docs func(docs []*pyvalue.Dict) ([]*pyvalue.Dict, error)
	// Field computes a field of a document.
	Field func(doc *pyvalue.Dict) (any, error)
	// Results computes metrics of a document's answers.
	Results func(doc *pyvalue.Dict, answers []Answer) (map[string]metric.Item, error)
)

var fields = map[string]Field{
	"preprocess_wikitext.wikitext_detokenizer": detokenized,
	"preprocess_winogrande.doc_to_text":        blankGold,
	"preprocess_winogrande.doc_to_target":      blankRest,
	"preprocess_winogrande.doc_to_choice":      blankFilled,
	"toxigen.doc_to_target":                    toxic,
}

var results = map[string]Results{
	"preprocess_wikitext.process_results": pageResults,
	"utils.process_results_mc2":           massOnTrue,
}

var docs = map[string]Docs{
	"docs.arc":           each(arc),
	"docs.bbh_cot":       worked(func(s string) (string, error) { return s, nil }),
	"docs.bbh_direct":    worked(conclusion),
	"docs.boolq":         each(boolq),
	"docs.commonsenseqa": each(arc),
	"docs.hellaswag":     each(hellaswag),
	"docs.mmlu":          each(mmlu),
	"docs.openbookqa":    each(openbook),
	"docs.siqa":          each(siqa),
	"docs.truthfulqa":    each(truthful),
	"docs.wikitext":      pages,
}

// FindDocs gives a function of process_docs.
func FindDocs(name string) (Docs, error) { return find(docs, name) }

// FindField gives a function of doc_to_text and its like.
func FindField(name string) (Field, error) { return find(fields, name) }

// FindResults gives a function of process_results.
func FindResults(name string) (Results, error) { return find(results, name) }

func find[T any](table map[string]T, name string) (T, error) {
	f, ok := table[name]
	if !ok {
		return f, fmt.Errorf("%w %q; known here: %s", ErrUnknown, name,
			strings.Join(slices.Sorted(maps.Keys(table)), ", "))
	}
	return f, nil
}

// each changes documents one by one, in place.
func each(f func(d *pyvalue.Dict) error) Docs {
	return func(docs []*pyvalue.Dict) ([]*pyvalue.Dict, error) {
		for i, d := range docs {
			if err := f(d); err != nil {
				return nil, fmt.Errorf("record %d: %w", i, err)
			}
		}
		return docs, nil
	}
}

// text is a field that must be text.
func text(d *pyvalue.Dict, key string) (string, error) {
	v, _ := d.Get(key)
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%w: %s is a %s, want text", ErrDocument, key, pyvalue.Kind(v))
	}
	return s, nil
}

// Wikitext

var (
	wikiBefore = [][2]string{
		{"s '", "s'"},
		{" @-@ ", "-"},
		{" @,@ ", ","},
		{" @.@ ", "."},
		{" : ", ": "},
		{" ; ", "; "},
		{" . ", ". "},
		{" ! ", "! "},
		{" ? ", "? "},
		{" , ", ", "},
	}
	wikiAfter = [][2]string{
		{"= = = =", "===="},
		{"= = =", "==="},
		{"= =", "=="},
		{" \u00b0 ", "\u00b0"},
		{" \n", "\n"},
		{"\n ", "\n"},
		{" N ", " 1 "},
		{" 's", "'s"},
	}
	wikiDigit = regexp.MustCompile(`/' [0-9]/`)
	wikiPairs = []struct {
		re *regexp.Regexp
		to string
	}{
		{pair(`\(`, `\)`), "($1)"},
		{pair(`\[`, `\]`), "[$1]"},
		{pair(`\{`, `\}`), "{$1}"},
		{pair(`"`, `"`), `"$1"`},
		{pair(`'`, `'`), `'$1'`},
	}
	spaces = regexp.MustCompile(`[\s\x{1c}-\x{1f}\x{85}\p{Z}]+`)
)

// pair matches what stands between two signs, and white space inside of them.
func pair(open, end string) *regexp.Regexp {
	const space = `[\s\x{1c}-\x{1f}\x{85}\p{Z}]*`
	return regexp.MustCompile(open + space + `([^` + end + `]*?)` + space + end)
}

// detokenized undoes the tokenization of WikiText pages.
func detokenized(d *pyvalue.Dict) (any, error) {
	page, err := text(d, "page")
	if err != nil {
		return nil, err
	}

	for i, r := range wikiBefore {
		page = strings.ReplaceAll(page, r[0], r[1])
		if i == 0 { // a slip of the original, kept: the digit becomes the text of the pattern
			page = wikiDigit.ReplaceAllLiteralString(page, "/'[0-9]/")
		}
	}

	for _, r := range wikiPairs {
		page = r.re.ReplaceAllString(page, r.to)
	}
	for _, r := range wikiAfter {
		page = strings.ReplaceAll(page, r[0], r[1])
	}

	return page, nil
}

// Words counts the pieces that re.split(r"\s+") makes, the empty ones at the ends included.
func Words(s string) int { return len(spaces.FindAllStringIndex(s, -1)) + 1 }

// pageResults counts words and bytes of the page as it was before it was detokenized.
func pageResults(d *pyvalue.Dict, answers []Answer) (map[string]metric.Item, error) {
	page, err := text(d, "page")
	if err != nil {
		return nil, err
	}
	ll, n := answers[0].LL, float64(len(page))
	return map[string]metric.Item{
		"word_perplexity": {X: ll, N: float64(Words(page))}, "byte_perplexity": {X: ll, N: n},
		"bits_per_byte": {X: ll, N: n},
	}, nil
}

// pages joins lines into pages: one begins at a heading of the first level.
func pages(docs []*pyvalue.Dict) ([]*pyvalue.Dict, error) {
	var out []*pyvalue.Dict
	var page strings.Builder
	end := func() {
		if pyvalue.Strip(page.String()) == "" { // blank lines at the beginning belong to the first page
			return
		}
		d := pyvalue.NewDict()
		d.Set("page", page.String())
		out = append(out, d)
		page.Reset()
	}

	for i, d := range docs {
		if _, ok := d.Get("page"); ok {
			return docs, nil
		}

		line, err := text(d, "text")
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", i, err)
		}

		if heading(line) {
			end()
		}

		page.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}

	end()
	return out, nil
}

// heading reports whether a line is a heading of the first level.
func heading(line string) bool {
	s := strings.TrimSpace(strings.ReplaceAll(line, "= = =", "==="))
	s = strings.ReplaceAll(s, "= =", "==")
	return strings.HasPrefix(s, "= ") && strings.HasSuffix(s, " =") && !strings.HasPrefix(s, "==")
}

// TruthfulQA

// massOnTrue is the fraction of the probability that lies on the true answers; a common factor is taken out first.
func massOnTrue(d *pyvalue.Dict, answers []Answer) (map[string]metric.Item, error) {
	v, _ := d.Get("mc2_targets")
	targets, ok := v.(*pyvalue.Dict)
	if !ok {
		return nil, fmt.Errorf("%w: mc2_targets is a %s", ErrDocument, pyvalue.Kind(v))
	}

	v, _ = targets.Get("labels")
	labels, ok := v.([]any)
	if !ok || len(labels) != len(answers) || len(labels) == 0 {
		return nil, fmt.Errorf("%w: %d answers, labels %s", ErrDocument, len(answers), pyvalue.Repr(v))
	}

	top := math.Inf(-1)
	for _, a := range answers {
		top = max(top, a.LL)
	}

	on, all := 0.0, 0.0
	for i, a := range answers {
		p := math.Exp(a.LL - top)
		all += p
		if pyvalue.Truth(labels[i]) {
			on += p
		}
	}

	return map[string]metric.Item{"acc": {X: on / all}}, nil
}

// WinoGrande

// blank splits the sentence at the blank.
func blank(d *pyvalue.Dict) (before, after string, err error) {
	s, err := text(d, "sentence")
	if err != nil {
		return "", "", err
	}
	before, after, ok := strings.Cut(s, "_")
	if !ok {
		return "", "", fmt.Errorf("%w: no blank in %.60q", ErrDocument, s)
	}
	return before, after, nil
}

func blankGold(d *pyvalue.Dict) (any, error) {
	v, _ := d.Get("answer")
	switch pyvalue.Str(v) {
	case "1":
		return int64(0), nil
	case "2":
		return int64(1), nil
	}
	return nil, fmt.Errorf("%w: answer %s, want 1 or 2", ErrDocument, pyvalue.Repr(v))
}

func blankRest(d *pyvalue.Dict) (any, error) {
	_, after, err := blank(d)
	return pyvalue.Strip(after), err
}

func blankFilled(d *pyvalue.Dict) (any, error) {
	before, _, err := blank(d)
	if err != nil {
		return nil, err
	}

	var out []any
	for _, key := range []string{"option1", "option2"} {
		s, err := text(d, key)
		if err != nil {
			return nil, err
		}
		out = append(out, before+s)
	}

	return out, nil
}

// toxic is the gold of ToxiGen: 1 where two ratings together exceed 5.5.
func toxic(d *pyvalue.Dict) (any, error) {
	sum := 0.0
	for _, key := range []string{"toxicity_ai", "toxicity_human"} {
		v, _ := d.Get(key)
		f, ok := pyvalue.Number(v)
		if !ok {
			return nil, fmt.Errorf("%w: %s is a %s", ErrDocument, key, pyvalue.Kind(v))
		}
		sum += f
	}

	if sum > 5.5 {
		return int64(1), nil
	}

	return int64(0), nil
}
