package filter

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/pyvalue"
)

func args(t *testing.T, text string) *pyvalue.Dict {
	t.Helper()
	v, err := pyvalue.ParseJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*pyvalue.Dict)
}

// chain makes a chain of filters given as JSON objects.
func chain(t *testing.T, steps ...string) (*Chain, error) {
	t.Helper()
	c := NewChain("x")
	for _, s := range steps {
		a := args(t, s)
		name, _ := a.Get("function")
		if err := c.Add(pyvalue.Str(name), a); err != nil {
			return nil, err
		}
	}

	return c, nil
}

const (
	strict   = `{"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"}`
	flexible = `{"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"}`
	cot      = `{"function": "regex", "regex_pattern": "The answer is (\\-?[0-9\\.\\,]+)."}`
	hard     = `{"function": "regex", "regex_pattern": "(?<=the answer is )(.*)(?=.)"}`
	takeOne  = `{"function": "take_first"}`
)

// The usual patterns, as Python's re applies them.
func TestAnswers(t *testing.T) {
	for _, c := range []struct{ filter, text, want string }{
		{strict, "so #### 1,234.\nmore", "1,234."},
		{strict, "no answer", "[invalid]"},
		{flexible, "first 3, then $12.50 at last 7", "7"},
		{flexible, "it costs $5.", "$5."},
		{flexible, "none", "[invalid]"},
		// what is left of no match stays as it is; a match whose groups are all empty is stripped, and so is what
		// stands for it
		{`{"function": "regex", "regex_pattern": "(x*)y|(z*)y", "fallback": " none "}`, "n", " none "},
		{`{"function": "regex", "regex_pattern": "(x*)y|(z*)y", "fallback": " none "}`, "y", "none"},
		{`{"function": "regex", "regex_pattern": "(x*)y", "fallback": " none "}`, "y", ""},
		{cot, "The answer is 42", "4"},
		{cot, "The answer is 42.", "42"},
		{hard, "So the answer is False.", "False"},
		{hard, "So the answer is (B)", "(B"},
		{hard, "the answer is 1.\nthe answer is 2.", "1"},
		{hard, "the answer is ", "[invalid]"},
		{hard, "the answer is x", ""},
		{hard, "the answer is é5.", "é5"},
	} {
		ch, err := chain(t, c.filter, takeOne)
		if err != nil {
			t.Fatal(err)
		}

		if got, err := ch.Apply([]string{c.text}, nil); got != c.want || err != nil {
			t.Errorf("%q: %q %v, want %q", c.text, got, err, c.want)
		}
	}
}

func TestChains(t *testing.T) {
	for _, c := range []struct {
		steps []string
		in    []string
		want  string
	}{
		{[]string{`{"function": "remove_whitespace"}`, takeOne}, []string{" a \n"}, "a"},
		{[]string{`{"function": "lowercase"}`, `{"function": "majority_vote"}`, takeOne}, []string{"B", "a", "b"}, "b"},
		{
			[]string{`{"function": "uppercase"}`, `{"function": "take_first_k", "k": 2}`},
			[]string{"a", "b", "c"},
			"[A B]",
		},
		{
			[]string{`{"function": "map", "mapping_dict": {"A": "yes"}, "default_value": "no"}`, takeOne},
			[]string{"A"},
			"yes",
		},
		{[]string{takeOne, `{"function": "lowercase"}`}, []string{"AB"}, "[ab]"},
	} {
		ch, err := chain(t, c.steps...)
		if err != nil {
			t.Fatal(err)
		}

		if got, err := ch.Apply(c.in, nil); fmt.Sprint(got) != c.want || err != nil {
			t.Errorf("%v: %v %v, want %s", c.steps, got, err, c.want)
		}
	}
}

func TestFaults(t *testing.T) {
	for step, want := range map[string]error{
		`{"function": "lemmatize"}`: ErrUnknown, `{"function": "regex", "regex_pattern": "("}`: ErrArgument,
		`{"function": "regex", "patern": "x"}`:               ErrArgument,
		`{"function": "regex", "regex_pattern": "(?<!a)b"}`:  ErrArgument,
		`{"function": "regex", "regex_pattern": "(?<=a+)b"}`: ErrArgument,
		`{"function": "regex", "regex_pattern": "(a)\\1"}`:   ErrArgument, `{"function": "take_first_k"}`: ErrArgument,
		`{"function": "map", "mapping_dict": 3}`: ErrArgument,
	} {
		if _, err := chain(t, step); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", step, err, want)
		}
	}

	if _, err := chain(t, `{"function": "lemmatize"}`); !strings.Contains(err.Error(), "known: lowercase, ") {
		t.Errorf("the known filters are not listed: %v", err)
	}
}

// $ also stands before a line end at the end; \s knows Unicode.
func TestPattern(t *testing.T) {
	for _, c := range []struct{ pattern, in, want string }{
		{`\.$`, "12.", "12"},
		{`\.$`, "12.\n", "12\n"},
		{`\.$`, "1.2", "1.2"},
		{`\s`, "a\u00a0b\u2003c", "abc"},
		{`[\s,]`, "1, 2", "12"},
		{`(?s).*#### `, "x\n#### 5", "5"},
		{`\$`, "$5", "5"},
		{`\-`, "-5", "5"},
		{`\d+`, "a١2", "a"},
	} {
		p, err := Compile(c.pattern)
		if err != nil {
			t.Fatal(err)
		}

		if got := p.RemoveAll(c.in); got != c.want {
			t.Errorf("%s in %q: %q, want %q", c.pattern, c.in, got, c.want)
		}
	}
}

func FuzzPattern(f *testing.F) {
	f.Add(`(?<=the answer is )(.*)(?=.)`, "the answer is 5.")
	f.Add(`#### (\-?[0-9\.\,]+)`, "#### 5")
	f.Add(`[\s\d]$`, "1\n")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		defer fuzzlimit.Watch(t, len(pattern)+len(text))()
		if len(text) > 200 || len(pattern) > 60 {
			return
		}
		if p, err := Compile(pattern); err == nil {
			p.FindAll(text)
			p.RemoveAll(text)
		}
	})
}

// Letters of choices: by the pattern, by the text of a choice, by a letter behind a colon.
func TestLetters(t *testing.T) {
	doc := args(t, `{"choices": ["Guilty", "Guilty of Romance", "Not at all."]}`)
	ch, err := chain(t,
		`{"function": "multi_choice_regex", "group_select": -1, "ignore_case": true, "ignore_punctuation": true, "regex_pattern": "(\\([A-Z]\\))"}`, takeOne)
	if err != nil {
		t.Fatal(err)
	}

	for text, want := range map[string]string{
		"It is (A), no (C)": "(C)", "guilty of ROMANCE!": "(B)", "I say: guilty": "(A)", "not at all": "(C)",
		"Answer: B": "(B)", "who knows": "[invalid]",
	} {
		if got, err := ch.Apply([]string{text}, doc); got != want || err != nil {
			t.Errorf("%q: %v %v, want %s", text, got, err, want)
		}
	}

	if _, err := ch.Apply([]string{"x"}, args(t, "{}")); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
}
