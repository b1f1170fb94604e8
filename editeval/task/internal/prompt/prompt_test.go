package prompt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/chat"
)

// rows are four documents of arithmetic.
const rows = `{"q": "1+1", "a": "2", "c": ["1", "2"], "n": 1}
{"q": "2+2", "a": "4", "c": ["4", "5"], "n": 0}
{"q": "3+3", "a": "6", "c": ["5", "6"], "n": 1}
{"q": "4+4", "a": "8", "c": ["8", "9"], "n": 0}
`

// head begins every definition here.
const head = "task: t\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl, few: rows.jsonl}}\n" +
	"test_split: test\n"

// prompter prepares a task from its definition and its data.
func prompter(t *testing.T, definition, data string, o Options) (*Prompter, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), []byte(data), 0o666); err != nil {
		t.Fatal(err)
	}

	l := taskfile.NewLibrary()
	read := func(string) ([]byte, error) { return []byte(head + definition), nil }
	if err := l.Add(read, "t.yaml", false); err != nil {
		t.Fatal(err)
	}

	o.Bases = []string{dir}
	return New(context.Background(), l.Tasks["t"], o)
}

// requests are those of all documents, a line each.
func requests(p *Prompter, n int) (string, error) {
	var out []string
	err := p.Documents(n, func(d *Document) error {
		for _, r := range d.Requests {
			out = append(out, fmt.Sprintf("%q + %q", r.Context, r.Continuation))
		}
		return nil
	})
	return strings.Join(out, "\n"), err
}

// TestRequests: what a model is asked, character by character, for every kind of task.
func TestRequests(t *testing.T) {
	two := 2
	for name, c := range map[string]struct {
		definition, want string
		o                Options
	}{
		"choices": {
			"output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: c\ndoc_to_target: n\n",
			`"1+1" + " 1"` + "\n" + `"1+1" + " 2"`,
			Options{},
		},
		"a template and a delimiter": {
			"output_type: multiple_choice\ndoc_to_text: '{{q}} ='\ndoc_to_choice: '{{c}}'\ndoc_to_target: '{{n}}'\n" +
				"target_delimiter: ':'\n",
			`"1+1 =" + ":1"` + "\n" + `"1+1 =" + ":2"`,
			Options{},
		},
		"with and without the context": {
			"output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: c\ndoc_to_target: n\n" +
				"metric_list: [{metric: acc_mutual_info}]\n",
			`"1+1" + " 1"` + "\n" + `"1+1" + " 2"` + "\n" + `"" + " 1"` + "\n" + `"" + " 2"`,
			Options{},
		},
		"contexts as choices": {
			"output_type: multiple_choice\ndoc_to_text: n\ndoc_to_choice: c\ndoc_to_target: q\n",
			`"1" + " 1+1"` + "\n" + `"2" + " 1+1"`,
			Options{},
		},
		"likelihood": {
			"output_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: ' {{a}}'\n", `"1+1" + " 2"`, Options{},
		},
		"rolling": {
			"output_type: loglikelihood_rolling\ndoc_to_target: q\n", `"" + "1+1"`, Options{},
		},
		"generation": {"doc_to_text: q\ndoc_to_target: a\n", `"1+1" + ""`, Options{}},
		"description and system": {
			"doc_to_text: q\ndoc_to_target: a\ndescription: 'Add.'\n", `"Be brief.\n\nAdd.1+1" + ""`,
			Options{System: "Be brief."},
		},
		"the beginning of the answer": {
			"doc_to_text: q\ndoc_to_target: a\ngen_prefix: 'It is'\n", `"1+1 It is" + ""`, Options{},
		},
		"examples": {
			"doc_to_text: '{{q}} ='\ndoc_to_target: a\nfewshot_split: few\nfewshot_config: {sampler: first_n}\n",
			`"1+1 = 2\n\n2+2 = 4\n\n1+1 =" + ""`,
			Options{Shots: &two},
		},
		"examples of the document's own split": {
			"doc_to_text: '{{q}} ='\ndoc_to_target: a\nfewshot_split: test\nfewshot_config: {sampler: first_n}\n",
			`"2+2 = 4\n\n3+3 = 6\n\n1+1 =" + ""`,
			Options{Shots: &two},
		},
		"given examples, written in their own way": {
			"doc_to_text: q\ndoc_to_target: a\nfewshot_config: {sampler: first_n, " +
				"samples: [{q: x, a: y}, {q: z, a: w}], doc_to_text: 'Q {{q}}', target_delimiter: ' A ', " +
				"fewshot_delimiter: ' | '}\n",
			`"Q x A y | Q z A w | 1+1" + ""`,
			Options{Shots: &two},
		},
		"examples of choices": {
			"output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: c\ndoc_to_target: n\nfewshot_split: few\n" +
				"num_fewshot: 1\nfewshot_config: {sampler: first_n}\n",
			`"1+1 2\n\n1+1" + " 1"` + "\n" + `"1+1 2\n\n1+1" + " 2"`,
			Options{},
		},
		"a task that says none has none": {
			"doc_to_text: q\ndoc_to_target: a\nfewshot_split: few\nnum_fewshot: 0\n", `"1+1" + ""`,
			Options{Shots: &two},
		},
	} {
		p, err := prompter(t, c.definition, rows, c.o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := requests(p, 1); err != nil || got != c.want {
			t.Errorf("%s: %s, want %s (%v)", name, got, c.want, err)
		}
	}
}

// TestExamplesOfALimit: the examples of a document do not depend on how many documents follow.
func TestExamplesOfALimit(t *testing.T) {
	const definition = "doc_to_text: q\ndoc_to_target: a\nfewshot_split: test\nnum_fewshot: 2\n"
	var want string
	for _, n := range []int{0, 4, 99, 3, 2, 1} {
		p, err := prompter(t, definition, rows, Options{Seed: 7})
		if err != nil {
			t.Fatal(err)
		}

		got, err := requests(p, n)
		if err != nil {
			t.Fatal(err)
		}
		if want == "" {
			want = got
		}
		if !strings.HasPrefix(want, got) || p.Total != 4 || p.Shots != 2 {
			t.Errorf("%d documents: %s, of %s", n, got, want)
		}
	}

	p, err := prompter(t, definition, rows, Options{Seed: 8})
	if err != nil {
		t.Fatal(err)
	}
	if other, _ := requests(p, 0); other == want {
		t.Error("another seed, the same examples")
	}
}

// TestMisfits: what does not fit together is one error that names the document.
func TestMisfits(t *testing.T) {
	five := 5
	for name, c := range map[string]struct {
		definition, data string
		o                Options
		want             string
		kind             error
	}{
		"no list of choices": {
			"output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: a\ndoc_to_target: n\n", rows,
			Options{},
			"document 0: document does not fit the task: doc_to_choice gives '2', want a list", ErrDocument,
		},
		"an empty choice": {
			"output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: c\ndoc_to_target: n\n",
			`{"q": "a", "c": ["x"], "n": 0}` + "\n" + `{"q": "a", "c": ["x", ""], "n": 0}` + "\n",
			Options{},
			"document 1: document does not fit the task: choice 1 is empty", ErrDocument,
		},
		"no text": {
			"doc_to_text: c\ndoc_to_target: a\n", rows, Options{}, "doc_to_text gives a list, want text", ErrDocument,
		},
		"no text to score": {
			"output_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: c\n", rows,
			Options{},
			"doc_to_target gives a list, want text", ErrDocument,
		},
		"a list among single answers": {
			"doc_to_text: q\ndoc_to_target: a\n", `{"q": "x", "a": "y"}` + "\n" + `{"q": "x", "a": ["y"]}` + "\n",
			Options{},
			"document 1: document does not fit the task: doc_to_target gives a list", ErrDocument,
		},
		"too few examples": {
			"doc_to_text: q\ndoc_to_target: a\nfewshot_split: few\n", rows,
			Options{Shots: &five},
			"too few examples: 5 examples wanted, split few has 4", ErrExamples,
		},
		"an example of a choice that is not there": {
			"output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: c\ndoc_to_target: n\nnum_fewshot: 1\n" +
				"fewshot_config: {sampler: first_n, samples: [{q: x, c: [y], n: 3}]}\n",
			rows,
			Options{},
			"choice 3 of 1", ErrDocument,
		},
	} {
		p, err := prompter(t, c.definition, c.data, c.o)
		if err == nil {
			_, err = requests(p, 0)
		}
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "task t: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConversations: turns of a template, examples as messages of their own or within one, a system message that a
// template refuses, an answer that has begun.
func TestConversations(t *testing.T) {
	const plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}" +
		"{% if add_generation_prompt %}<assistant>{% endif %}"
	const strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + plain
	const definition = "doc_to_text: q\ndoc_to_target: a\nfewshot_split: few\nnum_fewshot: 1\n" +
		"fewshot_config: {sampler: first_n}\n"

	for name, c := range map[string]struct {
		template, more string
		single         bool
		want           string
	}{
		"turns":     {plain, "", false, "<system>Add.<user>1+1<assistant>2<user>1+1<assistant>"},
		"one turn":  {plain, "", true, "<system>Add.<user>1+1 2\n\n1+1<assistant>"},
		"no system": {strict, "", false, "<user>1+1<assistant>2<user>1+1<assistant>"},
		"an answer has begun": {
			plain, "gen_prefix: 'It is'\n", false,
			"<system>Add.<user>1+1<assistant>It is 2<user>1+1<assistant>It is",
		},
	} {
		template, err := chat.Parse(c.template, nil, nil)
		if err != nil {
			t.Fatal(err)
		}

		o := Options{
			System: "Add.", Chat: &Chat{Template: template, Single: c.single, Context: context.Background()},
		}
		p, err := prompter(t, definition+c.more, rows, o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := requests(p, 1); err != nil || got != fmt.Sprintf("%q + %q", c.want, "") {
			t.Errorf("%s: %s (%v)", name, got, err)
		}
	}
}

// TestJoin: a delimiter stands only where two texts meet without white space.
func TestJoin(t *testing.T) {
	for _, c := range [][4]string{
		{"a", "b", "-", "a-b"},
		{"a ", "b", "-", "a b"},
		{"a", "\nb", "-", "a\nb"},
		{"", "b", "-", "b"},
		{"a", "", "-", "a"},
		{"", "", "-", ""},
		{"é", "ü", "-", "é-ü"},
		{"a\u00a0", "b", "-", "a\u00a0b"},
	} {
		if got := join(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("%q and %q: %q, want %q", c[0], c[1], got, c[3])
		}
	}
}
