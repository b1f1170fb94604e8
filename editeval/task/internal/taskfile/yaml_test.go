package taskfile

import (
	"errors"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// TestTextThatIsNoTaskFile: every fault is named at its place, as one of this package's kinds.
func TestTextThatIsNoTaskFile(t *testing.T) {
	for name, c := range map[string]struct {
		text, want string
		kind       error
	}{
		"duplicate key":   {"task: a\n\ntag: b\ntask: c\n", "x.yaml:4:1: key \"task\" is given twice", ErrSyntax},
		"two documents":   {"task: a\n---\ntask: b\n", "x.yaml:3:1: a task file is one document", ErrSyntax},
		"tab":             {"a:\n\tb: 1\n", "x.yaml:2:1: ", ErrSyntax},
		"depth":           {"a: " + strings.Repeat("[", 5000), "more than 32 deep", ErrLimit},
		"depth in blocks": {strings.Repeat("- ", 40) + "x", "more than 32 deep", ErrLimit},
		"aliases":         {fuzzlimit.Aliases(9), "an anchor (HINT: write the value out)", ErrUnsupported},
		"merge key":       {"a: {<<: {b: 1}}\n", "x.yaml:1:5: a merge key", ErrUnsupported},
		"tag":             {"a: 1\nb: !!set {x}\n", "x.yaml:2:4: tag !!set; known: !function", ErrUnsupported},
		"date as a key":   {"a: 1\n2024-05-01: 2\n", "x.yaml:2:1: 2024-05-01 without quotes is a date", ErrUnsupported},
		"number as a key": {"a: {1: x}\n", "x.yaml:1:5: the key 1 is a int without quotes", ErrUnsupported},
		"list":            {"- a\n", "x.yaml: the file is a list, want keys and values", ErrSyntax},
		"nothing":         {"# nothing\n---\n", "x.yaml: the file is empty", ErrSyntax},
		"not UTF-8":       {"a: \xff\n", "not UTF-8", ErrSyntax},
		"too long":        {"# " + strings.Repeat("x", 4<<20), "bytes; at most 4194304", ErrLimit},
	} {
		_, err := parseYAML("x.yaml", []byte(c.text), func(string) string { return "" })
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestFormsOfText: what an editor puts around a file, and the tags of text, change no value.
func TestFormsOfText(t *testing.T) {
	for text, want := range map[string]any{
		"\ufeffa: yes\n":           true,
		"a: on\r\nb: 2\r\n":        true,
		"---\na: \"on\"\n...\n":    "on",
		"a: |\n  two\r\n  lines\n": "two\nlines\n",
		"a: !!str 1\n":             "1",
		"a: !!str ~\n":             "~",
		"a: !!null x\n":            nil,
		"a: ~\n":                   nil,
		"a:\n":                     nil,
	} {
		doc, err := parseYAML("x.yaml", []byte(text), func(string) string { return "" })
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, ok := doc.root.Get("a"); !ok || got != want {
			t.Errorf("%q: %s, want %s", text, pyvalue.Repr(got), pyvalue.Repr(want))
		}
	}
}
