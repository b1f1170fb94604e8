package corpus

import (
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/scratch"
)

// place makes a folder with files of these contents; one that begins with @ is a copy of that file.
func place(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if from, ok := strings.CutPrefix(text, "@"); ok {
			data, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			text = string(data)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// read gives the records of a path.
func read(path string) (list []string, err error) {
	err = Texts(context.Background(), path, func(x Text) error {
		list = append(list, x.Text)
		return nil
	})
	return list, err
}

// TestFolders: a Parquet file, made by testdata/make.py, a folder and a pattern are the records of their
// files in the order of the names, and no temporary file stays.
func TestFolders(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	parquet := []string{"First record.", "", `Second, with "quotes" and ümlauts.`}
	dir := place(t, map[string]string{
		"a.jsonl": "{\"text\": \"one\"}\n\n{\"text\": \"two\"}", "b.parquet": "@testdata/text.parquet",
		"c.ndjson": "\ufeff\"three\"\n", "dataset_info.json": "{}", ".hidden.jsonl": "no", "notes.md": "no",
	})

	for path, want := range map[string][]string{
		"testdata/text.parquet":         parquet,
		dir:                             slices.Concat([]string{"one", "two"}, parquet, []string{"three"}),
		filepath.Join(dir, "[ac].*"):    {"one", "two", "three"},
		filepath.Join(dir, "?.*j*"):     {"one", "two", "three"},
		filepath.Join(dir, "b.*"):       parquet,
		filepath.Join(dir, "nothing.*"): nil,
	} {
		got, err := read(path)
		if want == nil {
			if !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", path, err)
			}
			continue
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}

	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestFolderOfTexts: of a folder of plain texts, and of a pattern that they fit, each is one record, in the
// order of the names; beside records texts are not read.
func TestFolderOfTexts(t *testing.T) {
	files := map[string]string{
		"b.txt": "second\n\n\"text\" <of> two\nlines", "a.txt": "\ufefffirst", "c.txt": "", "README.txt": "no",
		"notes.md": "no",
	}
	want := []string{"first", "second\n\n\"text\" <of> two\nlines"}
	dir := place(t, files)
	for _, path := range []string{dir, filepath.Join(dir, "?.txt")} {
		if got, err := read(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}

	files["d.jsonl"] = `{"text": "a record"}`
	if got, err := read(place(t, files)); err != nil || !slices.Equal(got, []string{"a record"}) {
		t.Errorf("beside records: %q, %v", got, err)
	}
}

// TestList: a JSON file may hold its records as one list, however it is laid out, alone, packed or among others; and
// what is wrong with such a list is said with the record's number.
func TestList(t *testing.T) {
	const alpaca = "\ufeff[\n  {\n    \"instruction\": \"add\", \"input\": \"1 [and] 2\",\n" +
		"    \"output\": \"3\"\n  },\n  \"a\\n{text\"\n]\n"
	want := []string{"user: add\n\n1 [and] 2\nassistant: 3", "a\n{text"}
	dir := place(t, map[string]string{"b.json": alpaca, "a.jsonl": "\"first\"\n"})
	if got, err := read(filepath.Join(dir, "b.json")); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := read(dir); err != nil || !slices.Equal(got, append([]string{"first"}, want...)) {
		t.Errorf("among others: %q, %v", got, err)
	}

	f, err := os.Create(filepath.Join(dir, "c.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	if _, err := z.Write([]byte(alpaca)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := read(f.Name()); err != nil || !slices.Equal(got, want) {
		t.Errorf("packed: %q, %v", got, err)
	}

	for text, want := range map[string]string{
		`[{"text": "a"}, {"text": "b"`:  "x.json: record 2: bad record: the list ends in the middle",
		`[{"text": "a"}`:                "x.json: record 2: bad record: the list ends in the middle",
		`[{"text": "a"} {"text": "b"}]`: "x.json: record 2: bad record: expected comma",
		`[{"text": "a"}] [1]`:           "x.json: bad record: more after the end of the list",
		`[{"text": "a"}, 7]`:            "x.json: line 2: bad record: starts with '7'",
		`[{"text": "a"}, {"txt": "b"}]`: "x.json: line 2: bad record: none of the keys",
		`[{"text": 5}]`:                 "x.json: line 1: bad record: text: a number, where a string is expected",
		"[\"a\xff\"]":                   "x.json: line 1: not valid UTF-8 at byte 2",
	} {
		_, err := read(filepath.Join(place(t, map[string]string{"x.json": text}), "x.json"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestFoldersThatCannotBe: what a folder lacks, or has too much of, is said.
func TestFoldersThatCannotBe(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"arrow: bad Arrow file":              {"data-00000-of-00001.arrow": "x", "state.json": "{}"},
		"without .jsonl, .parquet, .arrow":   {"notes.md": "x", "vocab.txt": "x", "cache-0a1b.arrow": "x"},
		"bad.txt: not valid UTF-8 at byte 1": {"bad.txt": "a\xff"},
		"nothing in it":                      {"empty.txt": ""},
		"splits of a data set side":          {"train.txt": "x", "test.txt": "x"},
		"splits of a data set":               {"train-00000-of-00001.parquet": "x", "test-00000-of-00001.parquet": "x"},
		"splits of a data set s":             {"imdb-train.arrow": "x", "imdb-test-00000-of-00002.arrow": "x"},
		"bad.parquet: bad Parquet file":      {"bad.parquet": "not one, but long enough"},
		"bad.jsonl.gz: gzip: invalid":        {"bad.jsonl.gz": "not packed, but long enough"},
		"line 1: bad record: none of the":    {"a.jsonl": `{"question": "?"}`},
	} {
		_, err := read(place(t, files))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}

	_, err := read(place(t, map[string]string{"train.jsonl": "", "test.jsonl": ""}))
	if hint := failure.Hint(err); !strings.Contains(hint, "train*'") {
		t.Errorf("hint %q", hint)
	}
}

// TestArrow: Arrow files alone, by a pattern, in folders beside others, and the folders that the datasets library
// saves, whose files count in the order that it says, not in that of their names.
func TestArrow(t *testing.T) {
	saved := "../../internal/arrow/testdata/saved"
	first, second := "@"+saved+"/data-00000-of-00002.arrow", "@"+saved+"/data-00001-of-00002.arrow"
	texts := []string{"Text 0.", "Text 1.", "Text 2.", "Text 3.", "Text 4."}
	turned := place(t, map[string]string{
		"a.arrow": first, "b.arrow": second, "other.arrow": "x", "dataset_info.json": "{}",
		"state.json": `{"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}], "_fingerprint": "0"}`,
	})
	mixed := place(t, map[string]string{"a.jsonl": "\"one\"\n", "b.feather": second, "cache-1.arrow": "x"})
	cache := place(t, map[string]string{
		"imdb-train-00000-of-00002.arrow": first, "imdb-train-00001-of-00002.arrow": second,
	})
	unnamed := place(t, map[string]string{"a.arrow": first, "b.arrow": second, "state.json": `{}`})

	for path, want := range map[string][]string{
		saved: texts, saved + "/*.arrow": texts, saved + "/data-00000-of-00002.arrow": texts[:3],
		cache: texts, unnamed: texts,
		turned: slices.Concat(texts[3:], texts[:3]),
		mixed:  slices.Concat([]string{"one"}, texts[3:]),
		"../../internal/arrow/testdata/splits/train": texts[:2],
		"../../internal/arrow/testdata/shuffled":     {"Text 3.", "Text 2."},
	} {
		if got, err := read(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
}

// TestSavedThatCannotBe: a data set with splits is answered with their names, one whose rows other files choose with
// what to do, and neither with records.
func TestSavedThatCannotBe(t *testing.T) {
	_, err := read("../../internal/arrow/testdata/splits")
	if err == nil || !strings.Contains(err.Error(), "with splits, each in a folder of its own: train, test") ||
		!strings.HasSuffix(failure.Hint(err), "splits"+string(filepath.Separator)+"train") || failure.IsUsage(err) {
		t.Errorf("%v (%s)", err, failure.Hint(err))
	}

	arrow := "@../../internal/arrow/testdata/saved/data-00000-of-00002.arrow"
	for _, key := range []string{"_indices_files", "_indices_data_files"} {
		_, err := read(place(t, map[string]string{
			"a.arrow": arrow, "i.arrow": arrow,
			"state.json": `{"_data_files": [{"filename": "a.arrow"}], "` + key + `": [{"filename": "i.arrow"}]}`,
		}))
		if err == nil || !strings.Contains(err.Error(), "rows in the order of further files") ||
			!strings.Contains(failure.Hint(err), "flatten_indices()") {
			t.Errorf("%s: %v", key, err)
		}
	}

	for state, want := range map[string]string{
		`{"_data_files": [{"filename": "../a.arrow"}]}`: "is not in this folder",
		`{"_data_files": [{"filename": "none.arrow"}]}`: "none.arrow",
		`{"_data_files": [{"filename": "a.arrow"}]`:     "state.json: bad Arrow file",
		`{"_data_files": []}`:                           "nothing in it",
	} {
		_, err := read(place(t, map[string]string{"a.arrow": arrow, "state.json": state}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", state, err, want)
		}
	}
}

// TestPackedPart: a part of a folder may be compressed.
func TestPackedPart(t *testing.T) {
	dir := place(t, map[string]string{"b.jsonl": "\"b\"\n"})
	f, err := os.Create(filepath.Join(dir, "a.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	if _, err := z.Write([]byte(`{"text": "a"}`)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}

	if got, err := read(dir); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestKilled: what a process that was killed has left of records that it had unpacked goes with the next one's, and
// nothing of another program does.
func TestKilled(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	left, foreign := filepath.Join(tmp, "compress-corpus-17"), filepath.Join(tmp, "compress-corpus-18")
	for _, dir := range []string{left, foreign} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := scratch.Mark(left); err != nil {
		t.Fatal(err)
	}

	f, err := Open("testdata/text.parquet")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(f.Name()), scratch.MarkName)); err != nil {
		t.Errorf("the records lie where nobody will look for them: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	names, err := filepath.Glob(filepath.Join(tmp, "*"))
	if err != nil || len(names) != 1 || names[0] != foreign {
		t.Errorf("%v stay, %v", names, err)
	}
}
