package sources

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/task"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDocuments: paragraphs of text, records of JSONL, never more than asked for, and no empty ones.
func TestDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		limit int
		want  string
	}{
		"a.txt":     {"one\nline\n\n\n  \ntwo\n", 0, "one\nline|two"},
		"b.txt":     {"one\n\ntwo\n\nthree", 2, "one|two"},
		"c.txt":     {"no end", 0, "no end"},
		"d.jsonl":   {"\"one\"\n\n{\"text\": \"two\\n\\nlines\"}\n", 0, "one|two\n\nlines"},
		"e.jsonl":   {"\"one\"\n\"\"\n\"two\"\n\"three\"\n", 2, "one|two"},
		"f.jsonl":   {`{"prompt": "a", "completion": " b"}`, 0, "a b"},
		"crlf.json": {"one\r\n\r\ntwo\r\n", 0, "one|two"},
	} {
		docs, err := Documents(write(t, name, c.text), c.limit)
		if got := strings.Join(docs, "|"); err != nil || got != c.want {
			t.Errorf("%s: %q, want %q (%v)", name, got, c.want, err)
		}
	}

	for name, text := range map[string]string{
		"none.txt": "\n \n", "none.jsonl": "\n", "bad.jsonl": "\"fine\"\n{\"no\": 1}\n", "cut.jsonl": "{\"text\": \"a",
	} {
		_, err := Documents(write(t, name, text), 0)
		if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "bad.jsonl" && !strings.Contains(err.Error(), "bad.jsonl:2: ") {
			t.Errorf("the line is not named: %v", err)
		}
	}
}

// TestColumn: a column by its heading, with everything that CSV allows in it.
func TestColumn(t *testing.T) {
	const table = "goal,target\n\"a, \"\"b\"\"\",x\n\"two\nlines\",y\n"
	got, err := column(write(t, "t.csv", table), "goal")
	if err != nil || strings.Join(got, "|") != "a, \"b\"|two\nlines" {
		t.Errorf("%q %v", got, err)
	}

	for text, want := range map[string]string{
		"": "no line of headings", "target\nx\n": `no column "goal"; there are ["target"]`, "goal\n": "no prompts",
		"goal,x\n1\n": "wrong number of fields",
	} {
		if _, err := column(write(t, "t.csv", text), "goal"); !errors.Is(err, ErrData) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestTasks: what is written is read by package task, and asks for all documents; refusals are found whatever their
// letters and apostrophes.
func TestTasks(t *testing.T) {
	dir := t.TempDir()
	texts, err := Perplexity(dir, "text_a", []string{"one", "two \"quoted\""})
	if err != nil {
		t.Fatal(err)
	}

	prompts := write(t, "p.csv", "goal\nhow?\nwhy?\n")
	refusals, err := Refusals(dir, prompts, "goal", []string{"I can't", "Sorry (no)"}, 9)
	if err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string]int{texts: 2, refusals: 2} {
		suite, err := task.Load([]string{path})
		if err != nil {
			t.Fatal(err)
		}

		list, err := suite.Check(task.Options{})
		if err != nil || len(list) != 1 || list[0].Err != "" || list[0].NoData != "" || list[0].Documents != want {
			t.Errorf("%s: %+v, %v", path, list, err)
		}
	}

	body, err := os.ReadFile(refusals)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`i can't`, `i can’t`, `sorry \\(no\\)`, "max_gen_toks: 9"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("no %s in %s", want, body)
		}
	}

	lines, err := os.ReadFile(filepath.Join(dir, "text_a.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Text string }
	second := strings.Split(string(lines), "\n")[1]
	if err := json.Unmarshal([]byte(second), &doc); err != nil || doc.Text != `two "quoted"` {
		t.Errorf("%q %v", doc.Text, err)
	}
}
