package builtin

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/pyvalue"
)

func doc(t *testing.T, text string) *pyvalue.Dict {
	t.Helper()
	v, err := pyvalue.ParseJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*pyvalue.Dict)
}

// re.split(r"\s+") counts empty pieces at the ends, and knows Unicode's spaces.
func TestWords(t *testing.T) {
	for s, want := range map[string]int{"": 1, "a": 1, " a b": 3, "a\u00a0b\u2003\nc ": 4, "  ": 2} {
		if got := Words(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}

func TestWikitext(t *testing.T) {
	d := pyvalue.NewDict()
	d.Set("page", " = Title = \n \n The 1 @,@ 000 @-@ ton ship ( built in \" Kiel \" ) sank ; N 12 ° 5 's end . \n "+
		"= = Part = = \n")

	got, err := detokenized(d)
	if want := "= Title =\n\nThe 1,000-ton ship (built in \"Kiel\") sank; 1 12°5's end.\n== Part ==\n"; err != nil ||
		got != " "+want && got != want {
		t.Errorf("%q %v, want %q", got, err, want)
	}

	var lines []*pyvalue.Dict
	for _, s := range []string{" ", " = One = ", " text ", " = = Part = = ", " = = = Piece = = = ", " = Two = ", " "} {
		l := pyvalue.NewDict()
		l.Set("text", s)
		lines = append(lines, l)
	}

	out, err := pages(lines)
	if err != nil || len(out) != 2 {
		t.Fatalf("%d pages, %v", len(out), err)
	}

	if p, _ := out[0].Get("page"); p != " \n = One = \n text \n = = Part = = \n = = = Piece = = = \n" {
		t.Errorf("%q", p)
	}
}

// A common factor of all probabilities does not matter, however small they are.
func TestMass(t *testing.T) {
	d := doc(t, `{"mc2_targets": {"choices": ["a", "b", "c"], "labels": [1, 0, 1]}}`)
	for _, shift := range []float64{0, -5000} {
		items, err := massOnTrue(d,
			[]Answer{{LL: math.Log(0.2) + shift}, {LL: math.Log(0.5) + shift}, {LL: math.Log(0.3) + shift}})
		if err != nil || math.Abs(items["acc"].X-0.5) > 1e-9 {
			t.Errorf("%v %v", items, err)
		}
	}

	if _, err := massOnTrue(d, nil); !errors.Is(err, ErrDocument) {
		t.Error(err)
	}
}

// The forms in which data sets are published come out alike.
func TestForms(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{
			"docs.arc",
			`{"question": {"stem": "Q", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]}, "answerKey": "2"}`, "Q['x', 'y']1",
		},
		{
			"docs.arc", `{"question": "Q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A"}`,
			"Q['x', 'y']0",
		},
		{
			"docs.openbookqa",
			`{"question_stem": "Q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": " B"}`,
			"Q['x', 'y']1",
		},
		{
			"docs.mmlu", `{"question": "Q", "choice0": 1, "choice1": "b", "choice2": "c", "choice3": "d", "answer": 3}`,
			"Q['1', 'b', 'c', 'd']3",
		},
		{
			"docs.mmlu", `{"question": "Q", "A": "a", "B": "b", "C": "c", "D": "d", "answer": "B"}`,
			"Q['a', 'b', 'c', 'd']1",
		},
		{
			"docs.siqa", `{"context": "C", "question": "Q", "answerA": "a", "answerB": "b", "answerC": "c", "label": 2}`,
			"Q['a', 'b', 'c']1",
		},
		{
			"docs.hellaswag",
			`{"activity_label": "Run [title] far", "ctx_a": "He  goes [x]", "ctx_b": "the MAN", "endings": ["a [b]c", " d "], "label": "1"}`, "Run. far: He goes The man['a c', 'd']1",
		},
	} {
		f, err := FindDocs(c.name)
		if err != nil {
			t.Fatal(err)
		}

		out, err := f([]*pyvalue.Dict{doc(t, c.text)})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}

		q, _ := out[0].Get("question")
		if query, ok := out[0].Get("query"); ok { // HellaSwag's, which leaves a question alone
			if q != nil {
				t.Errorf("%s: question %v", c.name, q)
			}
			q = query
		}

		choices, _ := out[0].Get("choices")
		gold, _ := out[0].Get("gold")
		if got := pyvalue.Str(q) + pyvalue.Repr(choices) + pyvalue.Repr(gold); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}

	for name, text := range map[string]string{
		"docs.arc":  `{"question": "Q", "choices": {"text": ["x"], "label": ["A"]}, "answerKey": "C"}`,
		"docs.mmlu": `{"question": "Q", "choices": ["a"], "answer": 4}`,
		"docs.siqa": `{"question": "Q"}`, "docs.boolq": `{"answer": "maybe"}`, "docs.truthfulqa": `{"mc1_targets": 1}`,
		"docs.hellaswag": `{"activity_label": "x"}`,
	} {
		f, err := FindDocs(name)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := f([]*pyvalue.Dict{doc(t, text)}); !errors.Is(err, ErrDocument) ||
			!strings.Contains(err.Error(), "record 0") {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := FindField("utils.mine"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
}

func TestBlank(t *testing.T) {
	d := doc(t, `{"sentence": "Ann met Bo because _ was late.", "option1": "Ann", "option2": "Bo", "answer": "2"}`)
	gold, _ := blankGold(d)
	rest, _ := blankRest(d)
	filled, err := blankFilled(d)
	if got := pyvalue.Repr([]any{gold, rest, filled}); err != nil ||
		got != "[1, 'was late.', ['Ann met Bo because Ann', 'Ann met Bo because Bo']]" {
		t.Error(got, err)
	}
}
