package builtin

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// The functions here bring the forms in which data sets are published to one: question (text), choices (list of
// texts), gold (place of the right one). Documents that have them already stay as they are.

func ready(d *pyvalue.Dict) bool {
	c, _ := d.Get("choices")
	_, isList := c.([]any)
	_, hasGold := d.Get("gold")
	return isList && hasGold
}

func put(d *pyvalue.Dict, question string, choices []any, gold int) error {
	if gold < 0 || gold >= len(choices) {
		return fmt.Errorf("%w: no choice is the right one", ErrDocument)
	}
	d.Set("question", question)
	d.Set("choices", choices)
	d.Set("gold", int64(gold))
	return nil
}

// arc reads ARC and CommonsenseQA: {question, choices: {text, label}, answerKey}, or {question: {stem, choices:
// [{text, label}]}, answerKey}.
func arc(d *pyvalue.Dict) error { return labelled(d, "question") }

// openbook reads OpenBookQA, whose question has another name.
func openbook(d *pyvalue.Dict) error {
	if _, ok := d.Get("question_stem"); ok {
		return labelled(d, "question_stem")
	}
	return labelled(d, "question")
}

func labelled(d *pyvalue.Dict, key string) error {
	if ready(d) {
		return nil
	}

	from := d
	v, _ := d.Get(key)
	if inner, ok := v.(*pyvalue.Dict); ok {
		from, key = inner, "stem"
	}

	question, err := text(from, key)
	if err != nil {
		return err
	}

	choices, labels, err := choicesOf(from)
	if err != nil {
		return err
	}

	answer, err := text(d, "answerKey")
	if err != nil {
		return err
	}

	gold := -1
	for i, l := range labels {
		if pyvalue.Str(l) == pyvalue.Strip(answer) {
			gold = i
		}
	}

	return put(d, question, choices, gold)
}

// choicesOf reads {text: [], label: []} or [{text, label}].
func choicesOf(d *pyvalue.Dict) (texts, labels []any, err error) {
	v, _ := d.Get("choices")
	switch v := v.(type) {
	case *pyvalue.Dict:
		t, _ := v.Get("text")
		l, _ := v.Get("label")
		texts, _ = t.([]any)
		labels, _ = l.([]any)
	case []any:
		for _, c := range v {
			if c, ok := c.(*pyvalue.Dict); ok {
				t, _ := c.Get("text")
				l, _ := c.Get("label")
				texts, labels = append(texts, t), append(labels, l)
			}
		}
	}

	if len(texts) == 0 || len(texts) != len(labels) {
		return nil, nil, fmt.Errorf("%w: choices have no texts and labels", ErrDocument)
	}

	return texts, labels, nil
}

// boolq reads {question, passage, answer: bool}.
func boolq(d *pyvalue.Dict) error {
	v, ok := d.Get("answer")
	if !ok {
		v, ok = d.Get("label")
	}

	gold, isInt := pyvalue.Int(v)
	if !ok || !isInt {
		return fmt.Errorf("%w: answer is %s, want true or false", ErrDocument, pyvalue.Repr(v))
	}

	d.Set("gold", int64(gold))
	return nil
}

// mmlu reads {question, choices, answer}, {question, choice0 … choice3, answer} and {question, A … D, answer};
// the answer is a place or a letter.
func mmlu(d *pyvalue.Dict) error {
	if ready(d) {
		return nil
	}

	question, err := text(d, "question")
	if err != nil {
		return err
	}

	v, _ := d.Get("choices")
	choices, ok := v.([]any)
	for i := 0; !ok && i < 4; i++ {
		c, has := d.Get("choice" + strconv.Itoa(i))
		if !has {
			c, _ = d.Get(string(rune('A' + i)))
		}
		choices = append(choices, pyvalue.Str(c))
	}

	v, _ = d.Get("answer")
	gold, isInt := pyvalue.Int(v)
	if s, ok := v.(string); ok && !isInt {
		gold = strings.Index("ABCD", pyvalue.Strip(s))
	}

	return put(d, question, choices, gold)
}

// siqa reads {context, question, answerA, answerB, answerC, label: "1" … "3"}.
func siqa(d *pyvalue.Dict) error {
	if ready(d) {
		return nil
	}

	question, err := text(d, "question")
	if err != nil {
		return err
	}

	var choices []any
	for _, key := range []string{"answerA", "answerB", "answerC"} {
		s, err := text(d, key)
		if err != nil {
			return err
		}
		choices = append(choices, s)
	}

	v, _ := d.Get("label")
	n, err := strconv.Atoi(pyvalue.Strip(pyvalue.Str(v)))
	if err != nil {
		return fmt.Errorf("%w: label %s", ErrDocument, pyvalue.Repr(v))
	}

	return put(d, question, choices, n-1)
}

// truthful reads the answers of TruthfulQA, {answer: 0 or 1} or {choices, labels}, and leaves the latter.
func truthful(d *pyvalue.Dict) error {
	for _, key := range []string{"mc1_targets", "mc2_targets"} {
		v, _ := d.Get(key)
		targets, ok := v.(*pyvalue.Dict)
		if !ok {
			return fmt.Errorf("%w: %s is a %s", ErrDocument, key, pyvalue.Kind(v))
		}

		if _, ok := targets.Get("choices"); ok {
			continue
		}

		var choices, labels []any
		for _, answer := range targets.Keys() {
			label, _ := targets.Get(answer)
			choices, labels = append(choices, answer), append(labels, label)
		}

		table := pyvalue.NewDict()
		table.Set("choices", choices)
		table.Set("labels", labels)
		d.Set(key, table)
	}

	return nil
}

var brackets = regexp.MustCompile(`\[.*?\]`)

// tidy is what HellaSwag's texts go through.
func tidy(s string) string {
	s = strings.ReplaceAll(pyvalue.Strip(s), " [title]", ". ")
	return strings.ReplaceAll(brackets.ReplaceAllString(s, ""), "  ", " ")
}

// hellaswag makes query, choices and gold of {activity_label, ctx_a, ctx_b, endings, label}.
func hellaswag(d *pyvalue.Dict) error {
	var parts [3]string
	for i, key := range []string{"activity_label", "ctx_a", "ctx_b"} {
		s, err := text(d, key)
		if err != nil {
			return err
		}
		parts[i] = s
	}

	v, _ := d.Get("endings")
	endings, ok := v.([]any)
	if !ok {
		return fmt.Errorf("%w: endings is a %s", ErrDocument, pyvalue.Kind(v))
	}

	var choices []any
	for _, e := range endings {
		choices = append(choices, tidy(pyvalue.Str(e)))
	}

	label, _ := d.Get("label")
	gold, err := strconv.Atoi(pyvalue.Strip(pyvalue.Str(label)))
	if err != nil {
		return fmt.Errorf("%w: label %s", ErrDocument, pyvalue.Repr(label))
	}

	if gold < 0 || gold >= len(choices) {
		return fmt.Errorf("%w: label %s of %d endings", ErrDocument, pyvalue.Repr(label), len(choices))
	}

	d.Set("query", tidy(parts[0]+": "+parts[1]+" "+pyvalue.Capitalize(parts[2])))
	d.Set("choices", choices)
	d.Set("gold", int64(gold))

	return nil
}

// worked reads the worked examples of a BIG-Bench Hard task: lines of a file that holds a remark, a rule of
// dashes, a description and questions with their answers, blank lines between. What stands before the first
// question is the lead of the first example.
func worked(answer func(s string) (string, error)) Docs {
	return func(lines []*pyvalue.Dict) ([]*pyvalue.Dict, error) {
		var b strings.Builder
		for _, l := range lines {
			s, err := text(l, "text")
			if err != nil {
				return nil, err
			}
			b.WriteString(s + "\n")
		}

		_, body, ok := strings.Cut(b.String(), "\n-----\n")
		if !ok {
			return nil, fmt.Errorf("%w: no rule of dashes before the description", ErrDocument)
		}

		parts := strings.Split("\n\n"+strings.Trim(body, "\n"), "\n\nQ: ")
		lead := strings.TrimLeft(parts[0], "\n") + "\n\n"
		var out []*pyvalue.Dict
		for _, p := range parts[1:] {
			question, solution, ok := strings.Cut(p, "\nA: Let's think step by step.\n")
			if !ok {
				return nil, fmt.Errorf("%w: no answer to %.60q", ErrDocument, p)
			}

			target, err := answer(solution)
			if err != nil {
				return nil, err
			}

			d := pyvalue.NewDict()
			d.Set("lead", lead)
			d.Set("input", question)
			d.Set("target", target)
			out, lead = append(out, d), ""
		}

		return out, nil
	}
}

// conclusion is what a solution says that the answer is.
func conclusion(s string) (string, error) {
	_, answer, ok := strings.Cut(s, "he answer is ")
	if !ok {
		return "", fmt.Errorf("%w: no conclusion in %.60q", ErrDocument, s)
	}
	return strings.TrimSuffix(strings.TrimSpace(answer), "."), nil
}
