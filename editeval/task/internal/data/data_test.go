package data

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/modelcompress/compress/internal/arrow"
	"github.com/modelcompress/compress/internal/pyvalue"
)

func TestFormats(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a.jsonl": {
			"\ufeff{\"a\": 1}\n\n{\"b\": \"é\", \"a\": null}\n",
			`[{'a': 1, 'b': None}, {'b': 'é', 'a': None}]`,
		},
		"list.json": {`[{"a": [1.5, true]}, {"a": []}]`, `[{'a': [1.5, True]}, {'a': []}]`},
		"many.json": {"{\"a\": 1}\n{\"a\": 2}\n", `[{'a': 1}, {'a': 2}]`},
		"t.csv": {
			"n,f,b,s,e\n1,0.5,True,\"x,\ny\",\n-2,3,False,4x,7\n",
			`[{'n': 1, 'f': 0.5, 'b': True, 's': 'x,\ny', 'e': None}, {'n': -2, 'f': 3.0, 'b': False, 's': '4x', 'e': 7.0}]`,
		},
		"gaps.csv": {
			"a,b,c\n1,x,true\n,,\n3,y,False\n",
			`[{'a': 1.0, 'b': 'x', 'c': True}, {'a': None, 'b': None, 'c': None}, {'a': 3.0, 'b': 'y', 'c': False}]`,
		},
		"mix.jsonl": {
			"{\"a\": 1, \"b\": 1, \"c\": 1}\n{\"a\": 2.5, \"b\": \"x\", \"c\": null}\n",
			`[{'a': 1.0, 'b': 1, 'c': 1}, {'a': 2.5, 'b': 'x', 'c': None}]`,
		},
		"t.tsv": {"q\ta\nsay \"hi\"\tb\n", `[{'q': 'say "hi"', 'a': 'b'}]`},
		"t.txt": {"one\r\ntwo\n", `[{'text': 'one'}, {'text': 'two'}]`},
		"lines.txt": { // what datasets 5.2.0 gives for it, with lm-evaluation-harness 0.4.13
			"\ufeffone\r\ntwo\rthree\n\nfour\u0085five\u2028six\x0bseven\n  eight \r\r\nlast\r",
			`[{'text': '\ufeffone'}, {'text': 'two'}, {'text': 'three'}, {'text': ''}, ` +
				`{'text': 'four\x85five\u2028six\x0bseven'}, {'text': '  eight '}, {'text': ''}, {'text': 'last'}]`,
		},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}

		docs, err := Source{Files: []string{name}, Bases: []string{t.TempDir(), dir}}.Load()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}

		var list []any
		for _, d := range docs {
			list = append(list, d)
		}
		if got := pyvalue.Repr(list); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Labels of a file of their own; patterns; a field of an object.
func TestParts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a-1.jsonl": `{"q": 1}` + "\n" + `{"q": 2}`, "a.lst": "1\n0\n", "b.lst": "1\n",
		"o.json": `{"canary": 1, "examples": [{"q": 9}]}`, "a-0.jsonl": `{"q": 0}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	load := func(field string, files ...string) ([]*pyvalue.Dict, error) {
		return Source{Files: files, Field: field, Bases: []string{dir}}.Load()
	}
	docs, err := load("", "a-1.jsonl", "a.lst")
	if v, _ := docs[1].Get("label"); err != nil || v != int64(0) {
		t.Errorf("%v %v", v, err)
	}

	if _, err := load("", "a-1.jsonl", "b.lst"); !errors.Is(err, ErrRecord) ||
		!strings.Contains(err.Error(), "1 labels for 2 records") {
		t.Error(err)
	}

	docs, err = load("", "a-*.jsonl")
	if v, _ := docs[0].Get("q"); err != nil || len(docs) != 3 || v != int64(0) {
		t.Errorf("%v %v", docs, err)
	}
	if docs, err = load("examples", "o.json"); err != nil || len(docs) != 1 {
		t.Errorf("%v %v", docs, err)
	}

	if _, err := load("exams", "o.json"); !errors.Is(err, ErrRecord) ||
		!strings.Contains(err.Error(), "canary, examples") {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
		says string
	}{
		"a.jsonl": {"{\"a\": 1}\n{\"a\" 2}\n", ErrRecord, "a.jsonl:2"},
		"b.jsonl": {"\"text\"\n", ErrRecord, "b.jsonl:1"},
		"c.jsonl": {"{\"a\": \"\xff\"}", ErrRecord, "c.jsonl:1: not UTF-8"},
		"d.csv":   {"a,b\n1,2\n3\n", ErrRecord, "d.csv:3"}, "e.json": {`[{"a": 1}, 2]`, ErrRecord, "record 1"},
		"f.json": {`[{"a": 1}`, ErrRecord, "f.json: byte"},
		"j.csv":  {"q,n\n5\" disk,0\n", ErrRecord, "j.csv:2: bad record: bare"},
		"k.csv":  {"q,n\na,0\n\"open,1\nb,2\n", ErrRecord, "k.csv:"}, "l.csv": {"q\"q,n\n1,2\n", ErrRecord, "l.csv:1"},
		"m.csv": {"", ErrRecord, "m.csv"},
		"g.xml": {"<a/>", ErrFormat, "known: jsonl"}, "h.jsonl": {"\n\n", ErrRecord, "no records"},
		"i.jsonl": {strings.Repeat(`{"a":`, 200) + "1", ErrRecord, "i.jsonl:1"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}

		if _, err := (Source{Files: []string{name}, Bases: []string{dir}}).Load(); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := (Source{Files: []string{"none"}, Bases: []string{"x", "y"}}).Load(); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "x/none, y/none") {
		t.Error(err)
	}
}

// Tabs between cells are what the task says, whatever the file is called; NA and its like are empty cells.
func TestTables(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.csv"), []byte("q, x\tn\nNone\t1\nb, c\tNA\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	docs, err := Source{Files: []string{"a.csv"}, Format: "tsv", Bases: []string{dir}}.Load()
	if err != nil || len(docs) != 2 {
		t.Fatal(docs, err)
	}

	for i, want := range []string{"{'q, x': None, 'n': 1.0}", "{'q, x': 'b, c', 'n': None}"} {
		if got := pyvalue.Repr(docs[i]); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestUniversalLines: where a buffer ends does not matter, least of all between \r and \n.
func TestUniversalLines(t *testing.T) {
	const text = "a\r\n\r\rb\n\nc\r"
	want := []string{"a", "", "", "b", "", "c"}
	for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
		var got []string
		err := eachPart("x", r, universalLines, func(_ int, line []byte) error {
			got = append(got, string(line))
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
}

// TestArrow: Arrow files, and folders that the datasets library saved, are the documents that are in them; one with
// splits is refused before anything is read.
func TestArrow(t *testing.T) {
	const saved = "../../../../internal/arrow/testdata/"
	for name, want := range map[string]string{
		"saved":          "Text 0. Text 1. Text 2. Text 3. Text 4.",
		"splits/test":    "Text 2.",
		"shuffled":       "Text 3. Text 2.",
		"saved/*2.arrow": "Text 0. Text 1. Text 2. Text 3. Text 4.",
	} {
		for _, format := range []string{"", "arrow"} {
			docs, err := Source{Files: []string{name}, Format: format, Bases: []string{saved}}.Load()
			var texts []string
			for _, d := range docs {
				text, _ := d.Get("text")
				texts = append(texts, fmt.Sprint(text))
			}
			if got := strings.Join(texts, " "); err != nil || got != want {
				t.Errorf("%s: %q, %v; want %q", name, got, err, want)
			}
		}
	}

	err := Source{Files: []string{"splits"}, Bases: []string{saved}}.Check()
	if !errors.Is(err, arrow.ErrSplits) {
		t.Errorf("a data set with splits: %v", err)
	}

	for _, name := range []string{"latin.arrow", "latindict.parquet"} {
		_, err := Source{Files: []string{name}, Bases: []string{saved}}.Load()
		if !errors.Is(err, pyvalue.ErrUTF8) || !strings.Contains(err.Error(), name+": bad ") ||
			!strings.Contains(err.Error(), ": row 4: column text: not valid UTF-8 at byte 3") {
			t.Errorf("texts that are no UTF-8: %v", err)
		}
	}
}
