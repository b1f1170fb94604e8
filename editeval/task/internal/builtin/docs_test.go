package builtin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// lines are documents with a line of text each.
func lines(text string) []*pyvalue.Dict {
	var out []*pyvalue.Dict
	for _, s := range strings.Split(text, "\n") {
		d := pyvalue.NewDict()
		d.Set("text", s)
		out = append(out, d)
	}
	return out
}

// TestWorked: the worked examples of BIG-Bench Hard, with their whole solutions or with what these conclude; what
// stands before the first question is its lead.
func TestWorked(t *testing.T) {
	const file = "a remark\n-----\nSort the words.\n\nQ: b a\nA: Let's think step by step.\n" +
		"First a. So the answer is a b.\n\nQ: d\n\nc\nA: Let's think step by step.\nThe answer is c d.\n"
	for name, want := range map[string]string{
		"docs.bbh_cot": "[{'lead': 'Sort the words.\\n\\n', 'input': 'b a', 'target': " +
			"'First a. So the answer is a b.'}, {'lead': '', 'input': 'd\\n\\nc', 'target': 'The answer is c d.'}]",
		"docs.bbh_direct": "[{'lead': 'Sort the words.\\n\\n', 'input': 'b a', 'target': 'a b'}, " +
			"{'lead': '', 'input': 'd\\n\\nc', 'target': 'c d'}]",
	} {
		f, err := FindDocs(name)
		if err != nil {
			t.Fatal(err)
		}

		out, err := f(lines(file))
		if err != nil {
			t.Fatal(err)
		}

		var list []any
		for _, d := range out {
			list = append(list, d)
		}
		if got := pyvalue.Repr(list); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}

	f, err := FindDocs("docs.bbh_direct")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"no rule": "no rule of dashes", "x\n-----\nlead\n\nQ: a\nB: b": "no answer to",
		"x\n-----\nlead\n\nQ: a\nA: Let's think step by step.\nhm": "no conclusion in",
	} {
		if _, err := f(lines(text)); !errors.Is(err, ErrDocument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := f([]*pyvalue.Dict{pyvalue.NewDict()}); !errors.Is(err, ErrDocument) {
		t.Errorf("no text: %v", err)
	}
}

// TestTruthful: both forms of TruthfulQA's answers give choices and labels; what has that form stays as it is.
func TestTruthful(t *testing.T) {
	d := doc(t, `{"mc1_targets": {"yes": 1, "no": 0}, "mc2_targets": {"choices": ["x"], "labels": [1]}}`)
	if err := truthful(d); err != nil {
		t.Fatal(err)
	}
	if got := pyvalue.Repr(d); got != "{'mc1_targets': {'choices': ['yes', 'no'], 'labels': [1, 0]}, "+
		"'mc2_targets': {'choices': ['x'], 'labels': [1]}}" {
		t.Error(got)
	}
}

// TestBoolQ: answers as truth values, as numbers, and under both names.
func TestBoolQ(t *testing.T) {
	for text, want := range map[string]any{
		`{"answer": true}`: int64(1), `{"answer": false}`: int64(0), `{"label": 1}`: int64(1), `{"answer": "1"}`: nil,
		`{}`: nil,
	} {
		d := doc(t, text)
		err := boolq(d)
		gold, _ := d.Get("gold")
		if (err == nil) != (want != nil) || err == nil && gold != want || err != nil && !errors.Is(err, ErrDocument) {
			t.Errorf("%s: %v, %v", text, gold, err)
		}
	}
}

// TestToxic: two ratings that together exceed 5.5 are toxic.
func TestToxic(t *testing.T) {
	for text, want := range map[string]any{
		`{"toxicity_ai": 3, "toxicity_human": 2.5}`: int64(0), `{"toxicity_ai": 3, "toxicity_human": 2.6}`: int64(1),
	} {
		if got, err := toxic(doc(t, text)); got != want || err != nil {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	if _, err := toxic(doc(t, `{"toxicity_ai": 3}`)); !errors.Is(err, ErrDocument) {
		t.Error(err)
	}
}

// TestReady: documents that have question, choices and gold already stay as they are, whatever their source is called.
func TestReady(t *testing.T) {
	const text = `{"question": "Q", "choices": ["a", "b"], "gold": 1}`
	for _, name := range []string{"docs.arc", "docs.commonsenseqa", "docs.mmlu", "docs.openbookqa", "docs.siqa"} {
		f, err := FindDocs(name)
		if err != nil {
			t.Fatal(err)
		}
		out, err := f([]*pyvalue.Dict{doc(t, text)})
		if err != nil || pyvalue.Repr(out[0]) != pyvalue.Repr(doc(t, text)) {
			t.Errorf("%s: %v %v", name, out, err)
		}
	}
}

// TestPageResults: words and bytes are those of the page before it was detokenized.
func TestPageResults(t *testing.T) {
	d := doc(t, `{"page": "a é b"}`)
	items, err := pageResults(d, []Answer{{LL: -7}})
	if err != nil || items["word_perplexity"].X != -7 || items["word_perplexity"].N != 3 ||
		items["byte_perplexity"].N != 6 || items["bits_per_byte"].N != 6 {
		t.Errorf("%+v %v", items, err)
	}
	if _, err := pageResults(doc(t, "{}"), nil); !errors.Is(err, ErrDocument) {
		t.Error(err)
	}
}

// TestBlankFaults: a sentence needs a blank, and an answer is 1 or 2.
func TestBlankFaults(t *testing.T) {
	for text, f := range map[string]Field{
		`{"sentence": "no blank", "option1": "a", "option2": "b"}`: blankFilled,
		`{"sentence": "a _ b", "option1": "a"}`:                    blankFilled,
		`{"answer": "3"}`:                                          blankGold, `{"sentence": 3}`: blankRest,
	} {
		if v, err := f(doc(t, text)); !errors.Is(err, ErrDocument) {
			t.Errorf("%s: %v %v", text, v, err)
		}
	}
	for answer, want := range map[string]any{`"1"`: int64(0), `2`: int64(1)} {
		if got, err := blankGold(doc(t, `{"answer": `+answer+`}`)); got != want || err != nil {
			t.Errorf("%s: %v %v", answer, got, err)
		}
	}
}

// TestModules: a Python file is known by its whole text alone, and what its functions are called is there.
func TestModules(t *testing.T) {
	for sum, names := range modules {
		if raw, err := hex.DecodeString(sum); err != nil || len(raw) != sha256.Size {
			t.Errorf("%s is no SHA-256", sum)
		}

		for function, name := range names {
			_, isDocs := docs[name]
			_, isField := fields[name]
			_, isResults := results[name]
			if !isDocs && !isField && !isResults {
				t.Errorf("%s stands for %s, which is not there", function, name)
			}
		}
	}

	if name, known := Python([]byte("def process_docs(d): return d\n"), "process_docs"); known {
		t.Errorf("any file is taken for %s", name)
	}
}
