package trim_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/lm/tokenizer/trim"
)

// zoo are the tokenizers of the tests of package tokenizer: every kind of model, with normalizers, pre-tokenizers,
// prefixes, suffixes, byte fallback, ignore_merges, and added tokens of every form.
func zoo(t *testing.T) []string {
	files, _ := filepath.Glob("../testdata/*.json")
	if len(files) < 20 {
		t.Fatalf("%d tokenizers", len(files))
	}
	return files
}

// folder makes a folder of files.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t testing.TB, files map[string]string) *trim.Vocabulary {
	t.Helper()
	v, err := trim.Read(folder(t, files))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func text(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// trimmed is the tokenizer of a selection.
func trimmed(t testing.TB, v *trim.Vocabulary, s *trim.Selection) *tokenizer.Tokenizer {
	t.Helper()
	files, _, err := v.Files(s)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(files["tokenizer.json"])
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestSameTokens: whatever text chose the tokens that stay, text that has no others is encoded as before, and decoded.
func TestSameTokens(t *testing.T) {
	var inputs []string
	if err := json.Unmarshal([]byte(text(t, "../testdata/golden/inputs.json")), &inputs); err != nil {
		t.Fatal(err)
	}

	for _, file := range zoo(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			v := read(t, map[string]string{"tokenizer.json": text(t, file)})
			words := strings.Contains(text(t, file), `"WordPiece"`)
			some := 0
			rapid.Check(t, func(rt *rapid.T) { some += sameTokens(t, rt, v, inputs, words) })
			if some == 0 {
				t.Error("no text had only tokens that were kept")
			}
		})
	}
}

func sameTokens(t *testing.T, rt *rapid.T, v *trim.Vocabulary, inputs []string, words bool) (some int) {
	tok := v.Tokenizer()
	texts := rapid.SliceOfN(rapid.SampledFrom(inputs), 1, 6).Draw(rt, "texts")
	counts := make([]int64, tok.VocabSize())
	for _, s := range texts {
		ids, err := tok.Encode(s, tokenizer.EncodeOptions{})
		if err != nil {
			continue // what the vocabulary cannot express
		}
		for _, id := range ids {
			counts[id]++
		}
	}

	o := trim.Options{
		MinCount: rapid.Int64Range(1, 2).Draw(rt, "least"), Multiple: rapid.IntRange(1, 16).Draw(rt, "of"),
	}
	s, err := v.Select(counts, o)
	if errors.Is(err, trim.ErrNone) || errors.Is(err, trim.ErrNothing) {
		return 0
	}
	if err != nil {
		rt.Fatal(err)
	}

	is := trimmed(t, v, s)
	for i := range 12 {
		one := rapid.SampledFrom(inputs).Draw(rt, "input")
		if i < len(texts) {
			one = texts[i]
		}
		if i%3 == 2 { // a cut anywhere gives other words
			one = one[:rapid.IntRange(0, len(one)).Draw(rt, "cut")]
		}
		some += sameText(rt, v, s, is, one, words)
	}
	return some
}

// sameText compares one text, and reports, by 1, that it has only tokens that were kept.
func sameText(rt *rapid.T, v *trim.Vocabulary, s *trim.Selection, is *tokenizer.Tokenizer, text string,
	words bool,
) int {
	tok := v.Tokenizer()
	ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
	if err != nil || len(ids) == 0 {
		return 0
	}
	// A word that WordPiece could not finish may be finished another way.
	if unk, ok := tok.TokenID("[UNK]"); words && ok && slices.Contains(ids, unk) {
		return 0
	}

	want, whole := s.Map(ids)
	if !whole {
		return 0
	}
	got, err := is.Encode(text, tokenizer.EncodeOptions{})
	if err != nil || !slices.Equal(got, want) {
		rt.Fatalf("%q: %v, want %v (%v of before), %v", text, got, want, ids, err)
	}
	if was, now := tok.Decode(ids, false), is.Decode(got, false); was != now {
		rt.Fatalf("%q decodes to %q, and was %q", text, now, was)
	}
	return 1
}

// TestClosure: of a kept token the parts of every merge that yields it are kept, and all merges between kept tokens.
func TestClosure(t *testing.T) {
	// "abc" comes by two ways, of which the text takes one.
	const file = `{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "ab": 4, "bc": 5, "abc": 6,
		"cd": 7, "dd": 8}, "merges": ["a b", ["b", "c"], "ab c", "a bc", "c d", "d d"], "unk_token": "d"}}`
	v := read(t, map[string]string{"tokenizer.json": file})
	s, err := v.Select([]int64{6: 1}, trim.Options{Multiple: 1})
	if err != nil {
		t.Fatal(err)
	}

	if want := []int32{0, 1, 2, 3, 4, 5, 6}; !slices.Equal(s.Old, want) {
		t.Errorf("kept %v, want %v", s.Old, want)
	}
	files, _, err := v.Files(s)
	if err != nil {
		t.Fatal(err)
	}
	var out struct{ Model struct{ Merges []any } }
	if err := json.Unmarshal(files["tokenizer.json"], &out); err != nil || len(out.Model.Merges) != 4 {
		t.Errorf("%v %v", out.Model.Merges, err)
	}
}

// TestLowestPiece: an unknown character scores 10 below the lowest piece. Were that piece taken out with another
// character's, a path through the character that is unknown now could win.
func TestLowestPiece(t *testing.T) {
	const file = `{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["жц", -10], ["шщ", -10],
		["юя", -10], ["ж", -28], ["цшщюя", -2.5], ["ы", -3], ["ъ", -4]]}}`
	v := read(t, map[string]string{"tokenizer.json": file})
	counts := make([]int64, v.Tokenizer().VocabSize())
	for _, s := range []string{"жцшщюя", "ыцшщюя"} {
		ids, err := v.Tokenizer().Encode(s, tokenizer.EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			counts[id]++
		}
	}

	s, err := v.Select(counts, trim.Options{Multiple: 1})
	if err != nil || slices.Contains(s.Old, 7) {
		t.Fatal(s, err)
	}
	ids, err := trimmed(t, v, s).Encode("жцшщюя", tokenizer.EncodeOptions{})
	if want, whole := s.Map([]int32{1, 2, 3}); err != nil || !whole || !slices.Equal(ids, want) {
		t.Errorf("%v, want %v, %v", ids, want, err)
	}
}

// small is a tokenizer with ids in every section, and files beside it.
var small = map[string]string{
	"tokenizer.json": `{"version": "1.0", "padding": {"strategy": "BatchLongest", "pad_id": 9, "pad_token": "<pad>"},
		"added_tokens": [{"id": 9, "content": "<pad>", "special": true}, {"id": 10, "content": "<s>", "special": true},
			{"id": 0, "content": "<unk>", "special": true}],
		"normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
		"post_processor": {"type": "Sequence", "processors": [{"type": "TemplateProcessing",
			"single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
			"pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
			"special_tokens": {"<s>": {"id": "<s>", "ids": [10], "tokens": ["<s>"]}}}]},
		"decoder": null,
		"model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "é": 1, "x": 2, "é x": 3, "ü": 4, "y": 5,
			"xy": 6, "ß": 7, "<eos>": 8}, "merges": ["x y"]}, "own": {"z": [1, 2.50]}}`,
	"tokenizer_config.json": `{"eos_token": {"content": "<eos>"}, "added_tokens_decoder": {"9": {"content": "<pad>"},
		"10": {"content": "<s>"}}, "pad_token_id": 9}`,
	"added_tokens.json": `{"<pad>": 9, "<s>": 10}`,
	"vocab.json":        `{"<unk>": 0, "é": 1, "x": 2, "é x": 3, "ü": 4, "y": 5, "xy": 6, "ß": 7, "<eos>": 8}`,
	"merges.txt":        "#version: 0.2\nx y\n",
	"config.json":       `{"vocab_size": 14, "eos_token_id": [8, 12], "pad_token_id": -1, "bos_token_id": null, "n": 1e-05}`,
	"generation_config.json": `{"eos_token_id": 8, "suppress_tokens": [3, 6, 4], "bad_words_ids": [[2, 6], [2, 4]],
		"force_words_ids": [[3]], "begin_suppress_tokens": [],
		"forced_decoder_ids": [[1, 4]], "sequence_bias": [[[2, 3], 1.5], [[2], -0.5]]}`,
	"tokenizer.model": "x",
	"README.md":       "y",
}

// TestFiles: every place that names an id gets the new one, and nothing else changes.
func TestFiles(t *testing.T) {
	v := read(t, small)
	s, err := v.Select([]int64{5: 1}, trim.Options{Multiple: 1, Rows: 14})
	if err != nil {
		t.Fatal(err)
	}

	// <unk>, x and y (ASCII), ü (named), <eos>; the two added tokens; the row 12, which no token has
	if want := []int32{0, 2, 4, 5, 8, 9, 10, 12}; !slices.Equal(s.Old, want) {
		t.Fatalf("kept %v, want %v", s.Old, want)
	}

	files, left, err := v.Files(s)
	if err != nil || !slices.Equal(left, []string{"tokenizer.model"}) {
		t.Fatal(left, err)
	}

	for name, want := range map[string]string{
		"tokenizer.json": `{"version": "1.0", "padding": {"strategy": "BatchLongest", "pad_id": 5, "pad_token": "<pad>"},
		"added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 5, "content": "<pad>", "special": true},
			{"id": 6, "content": "<s>", "special": true}],
		"normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
		"post_processor": {"type": "Sequence", "processors": [{"type": "TemplateProcessing",
			"single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
			"pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
			"special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}}]},
		"decoder": null,
		"model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "x": 1, "ü": 2, "y": 3, "<eos>": 4},
			"merges": []}, "own": {"z": [1, 2.50]}}`,
		"tokenizer_config.json": `{"eos_token": {"content": "<eos>"}, "added_tokens_decoder": {"5": {"content": "<pad>"},
		"6": {"content": "<s>"}}, "pad_token_id": 5}`,
		"added_tokens.json": `{"<pad>": 5, "<s>": 6}`,
		"vocab.json":        `{"<unk>": 0, "x": 1, "ü": 2, "y": 3, "<eos>": 4}`,
		"config.json":       `{"vocab_size": 14, "eos_token_id": [4, 7], "pad_token_id": -1, "bos_token_id": null, "n": 1e-05}`,
		"generation_config.json": `{"eos_token_id": 4, "suppress_tokens": [2], "bad_words_ids": [[1, 2]],
		"begin_suppress_tokens": [],
		"forced_decoder_ids": [[1, 2]], "sequence_bias": [[[1], -0.5]]}`,
	} {
		if got := plain(files[name]); got != plain([]byte(want)) {
			t.Errorf("%s:\n got %s\nwant %s", name, got, plain([]byte(want)))
		}
	}
	if got := string(files["merges.txt"]); got != "#version: 0.2\n" {
		t.Errorf("merges.txt: %q", got)
	}
	if files["README.md"] != nil {
		t.Error("README.md is among the changed files")
	}
}

// plain is JSON without the spaces around its values; keys keep their order, and numbers their digits.
func plain(data []byte) string { return strings.Join(strings.Fields(string(data)), "") }

// TestSelect: sizes, and what is refused.
func TestSelect(t *testing.T) {
	v := read(t, map[string]string{"tokenizer.json": text(t, "../testdata/gpt2.json")})
	n := v.Tokenizer().VocabSize() // 256 bytes, 63 merges, …
	counts := make([]int64, n)
	for id := range counts {
		counts[id] = int64(id % 7)
	}

	for name, x := range map[string]struct {
		counts []int64
		o      trim.Options
		want   error
		size   int
	}{
		"no text":   {nil, trim.Options{}, trim.ErrNone, 0},
		"too rare":  {counts, trim.Options{MinCount: 7}, trim.ErrNone, 0},
		"too small": {counts, trim.Options{Size: 100}, trim.ErrSize, 0},
		"all":       {counts, trim.Options{Multiple: 1024}, trim.ErrNothing, 0},
		"few rows":  {counts, trim.Options{Rows: n - 1}, trim.ErrRows, 0},
		"a size":    {counts, trim.Options{Size: 290}, nil, 290},
		"padding":   {counts, trim.Options{Size: n + 3, Rows: n + 10}, nil, n + 3},
		"many more": {counts, trim.Options{Size: n + 30, Rows: n + 10}, trim.ErrNothing, 0},
		"frequent":  {counts, trim.Options{MinCount: 6, Multiple: 8}, nil, 280},
	} {
		s, err := v.Select(x.counts, x.o)
		if !errors.Is(err, x.want) || err == nil && len(s.Old) != x.size {
			t.Errorf("%s: %v, %+v", name, err, s)
		}
		if err != nil {
			continue
		}
		if n := s.Needed + s.Ruled + s.Parts + s.Filled; n != x.size {
			t.Errorf("%s: %d tokens by what they stay for", name, n)
		}
		if len(trimmed(t, v, s).Hash()) == 0 {
			t.Error(name)
		}
	}
}

// TestRead: what is no tokenizer, or none that can be trimmed.
func TestRead(t *testing.T) {
	for name, x := range map[string]struct {
		files map[string]string
		want  error
	}{
		"nothing":     {map[string]string{"config.json": "{}"}, trim.ErrNoTokenizer},
		"text":        {map[string]string{"tokenizer.json": "x"}, tokenizer.ErrSyntax},
		"kind":        {map[string]string{"tokenizer.json": `{"model": {"type": "X"}}`}, tokenizer.ErrUnsupported},
		"broken side": {map[string]string{"tokenizer.json": small["tokenizer.json"], "config.json": "["}, trim.ErrFile},
	} {
		if _, err := trim.Read(folder(t, x.files)); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := trim.Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestCompare counts documents, paragraphs and tokens that change.
func TestCompare(t *testing.T) {
	v := read(t, small)
	s, err := v.Select([]int64{5: 1}, trim.Options{Multiple: 1, Rows: 14})
	if err != nil {
		t.Fatal(err)
	}
	is := trimmed(t, v, s)

	var c trim.Change
	for _, x := range []struct {
		text       string
		paragraphs bool
		same       bool
	}{
		{"x y", false, true},
		{"x xy y xy", false, false},
		{"x y\nx\n\nxy x\n \n y \n\nxy", true, false},
		{"", true, true},
	} {
		_, _, same, err := trim.Compare(&c, s, v.Tokenizer(), is, x.text, x.paragraphs)
		if err != nil || same != x.same {
			t.Errorf("%q: %v %v", x.text, same, err)
		}
	}

	want := trim.Change{Documents: 6, Changed: 3, Tokens: 13, Lost: 4, After: 17, Bytes: 33}
	if c != want || c.Share() != 0.5 {
		t.Errorf("%+v, want %+v", c, want)
	}
}
