package ggufmodel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm/arch"
)

// tokenizerOf writes the tokenizer of files as metadata, for a Llama with so many rows in its token table.
func tokenizerOf(files map[string][]byte, rows int) (gguf.Metadata, error) {
	a, err := arch.Lookup("llama")
	if err != nil {
		return nil, err
	}
	x := &export{
		file: "folder", config: &arch.Config{Arch: a, Vocab: rows},
		read: func(name string) ([]byte, error) {
			text, ok := files[name]
			if !ok {
				return nil, fs.ErrNotExist
			}
			return text, nil
		},
	}
	err = x.vocabulary()
	return x.out, err
}

// TestTokenizerBack: the tokenizer of a file, made into files of a checkpoint and back, is the same metadata.
func TestTokenizerBack(t *testing.T) {
	for vocabulary, make := range map[string]func(d *draft){
		"bytes": (*draft).byteVocabulary, "pieces": (*draft).pieceVocabulary,
	} {
		t.Run(vocabulary, func(t *testing.T) {
			d := load(t, "llama")
			make(d)
			d.set(templateKey, gguf.Of("{{ messages }}"))
			have, err := tokenizerOf(FilesOf(t, vocabulary, "{{ messages }}"), 24)
			if err != nil {
				t.Fatal(err)
			}

			compareKinds(t, have, d.meta)
			for _, key := range []string{modelKey, tokensKey, mergesKey, templateKey} {
				want, known := d.meta.Get(key)
				v, ok := have.Get(key)
				if key == tokensKey { // rows without a token are filled
					list, _ := v.Strings()
					v = gguf.List(list[:min(len(list), want.Len())])
				}
				if ok != known || v != want {
					t.Errorf("%s: %v, expected %v", key, v, want)
				}
			}
			for _, name := range []string{"bos_token_id", "eos_token_id"} {
				want, _ := d.meta.Get("tokenizer.ggml." + name)
				if v, _ := have.Get("tokenizer.ggml." + name); v != want {
					t.Errorf("%s: %v, expected %v", name, v, want)
				}
			}
		})
	}
}

// compareKinds compares types of tokens. Those that are cut out of text are one kind: converters of other years told
// them apart otherwise.
func compareKinds(t *testing.T, have, want gguf.Metadata) {
	t.Helper()
	of := func(m gguf.Metadata) []int64 {
		v, _ := m.Get(typesKey)
		list, _ := v.Ints()
		for i, kind := range list {
			if kind == tokenUnknown || kind == tokenUser {
				list[i] = tokenControl
			}
		}
		return list
	}

	v, _ := want.Get(tokensKey)
	texts, _ := v.Strings()
	special := map[int64]bool{}
	for _, name := range []string{"bos", "eos", "unknown"} {
		if v, ok := want.Get("tokenizer.ggml." + name + "_token_id"); ok {
			id, _ := v.Int()
			special[id] = true
		}
	}
	a, b := of(have), of(want)
	for i := range b {
		if a[i] != b[i] && !special[int64(i)] {
			t.Errorf("token %d %q has type %d, expected %d", i, texts[i], a[i], b[i])
		}
	}
}

// TestScores: without a tokenizer.model the scores order tokens as the merges do, so that the words that llama.cpp
// joins by them are the same.
func TestScores(t *testing.T) {
	meta, err := tokenizerOf(FilesOf(t, "pieces", ""), 24)
	if err != nil {
		t.Fatal(err)
	}
	tokens, _ := meta.Get(tokensKey)
	texts, _ := tokens.Strings()
	value, _ := meta.Get(scoresKey)
	scores, _ := value.Floats()
	of := func(text string) float64 { return scores[slices.Index(texts, text)] }
	if !(of("ab") > of("▁ab")) || of("▁ab") >= 0 {
		t.Errorf("ab %g, ▁ab %g", of("ab"), of("▁ab"))
	}
}

// TestPieces: the scores of a tokenizer.model go before those of the merges.
func TestPieces(t *testing.T) {
	files := FilesOf(t, "pieces", "")
	meta, err := tokenizerOf(files, 24)
	if err != nil {
		t.Fatal(err)
	}
	value, _ := meta.Get(tokensKey)
	texts, _ := value.Strings()

	var model []byte
	for i, text := range texts {
		model = append(model, message(text, float32(-i)/2)...)
	}
	model = append(model, 0x12, 2, 0x18, 2) // another field, with a number in it
	files["tokenizer.model"] = model
	if meta, err = tokenizerOf(files, 24); err != nil {
		t.Fatal(err)
	}
	value, _ = meta.Get(scoresKey)
	scores, _ := value.Floats()
	if i := slices.Index(texts, "ab"); scores[i] != -float64(i)/2 {
		t.Errorf("ab has %g", scores[i])
	}
	if scores[slices.Index(texts, "<s>")] != addedScore {
		t.Error("<s> has the score of a piece")
	}

	files["tokenizer.model"] = message("other", 0)
	files["tokenizer.model"] = append(files["tokenizer.model"], model...)
	if _, err := tokenizerOf(files, 24); !errors.Is(err, ErrTokenizer) {
		t.Error("another model's pieces:", err)
	}
}

// message is a token of a tokenizer.model.
func message(text string, score float32) []byte {
	p := append([]byte{0x0a}, binary.AppendUvarint(nil, uint64(len(text)))...)
	p = append(append(p, text...), 0x15)
	p = binary.LittleEndian.AppendUint32(p, math.Float32bits(score))
	p = append(p, 0x18, 1)
	return append(binary.AppendUvarint([]byte{0x0a}, uint64(len(p))), p...)
}

// TestSplitterNames: what the reader makes of any name is written under a name for the same.
func TestSplitterNames(t *testing.T) {
	for name, s := range splitters {
		pre, err := s.sequence()
		if err != nil {
			t.Fatal(err)
		}
		normalizer := "null"
		if s.nfc {
			normalizer = `{"type": "Sequence", "normalizers": [{"type": "NFC"}]}`
		}
		meta, err := tokenizerOf(map[string][]byte{"tokenizer.json": fmt.Appendf(nil, `{"added_tokens": [], "normalizer": %s,
			"pre_tokenizer": %s, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [],
			"ignore_merges": %t}}`, normalizer, pre, s.whole)}, 1)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}

		v, _ := meta.Get(preKey)
		written, _ := v.Text()
		other := splitters[written]
		if !slices.Equal(other.cuts(), s.cuts()) || other.whole != s.whole || other.nfc != s.nfc {
			t.Errorf("%s is written as %s", name, written)
		}
	}
}

// TestUnknownTokenizers: what cannot be told is one line, which lists what is known where there is a list.
func TestUnknownTokenizers(t *testing.T) {
	const good = `{"added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "ByteLevel"}, ` +
		`"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}}`
	if _, err := tokenizerOf(map[string][]byte{"tokenizer.json": []byte(good)}, 2); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, word string }{
		{`{"type": "ByteLevel"}, "dec`, `{"type": "Whitespace"}, "dec`, "known: a.x-4.0, bailingmoe"},
		{`"normalizer": null`, `"normalizer": {"type": "Lowercase"}`, "known: a.x-4.0"},
		{`"decoder": {"type": "ByteLevel"}`, `"decoder": {"type": "WordPiece"}`, "neither bytes"},
		{`"type": "BPE"`, `"type": "Unigram"`, `"Unigram"; known: BPE`},
		{`"b": 1`, `"b": 2`, `"b" is number 2, and the token table has 2 rows`},
		{`"b": 1`, `"b": 0`, `"a" and "b" are both token 0`},
		{`"b": 1`, `"b": -1`, "number -1"},
		{`["a", "b"]`, `7`, "merge 0 is 7, not two tokens"},
		{`{"a": 0, "b": 1}`, `[]`, "model.vocab"},
		{`"added_tokens": []`, `"added_tokens": 3`, "not a tokenizer"},
		{`"added_tokens": []`, `"added_tokens": [{"id": 9, "content": "x"}]`, "number 9"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if text == good {
			t.Fatal(c.old)
		}
		_, err := tokenizerOf(map[string][]byte{"tokenizer.json": []byte(text)}, 2)
		if !errors.Is(err, ErrTokenizer) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", c.new, err)
			continue
		}
		oneLine(t, err)
	}

	if _, err := tokenizerOf(map[string][]byte{"tokenizer.model": nil}, 2); !errors.Is(err, ErrTokenizer) {
		t.Error("a tokenizer.model alone:", err)
	}
	if meta, err := tokenizerOf(nil, 2); err != nil || len(meta) != 1 {
		t.Error("no tokenizer:", meta, err)
	}
}

// TestSpecialTokens: which tokens begin and end texts, from where files say it.
func TestSpecialTokens(t *testing.T) {
	const tokenizer = `{"added_tokens": [{"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "<|x|>"},
		{"id": 3, "content": "a▁b"}], "pre_tokenizer": {"type": "ByteLevel"}, "post_processor": %s,
		"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"a": 0}, "merges": ["a b"]}}`
	begin := `{"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
		"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}]}`
	for _, c := range []struct {
		post, settings string
		want           map[string]string
	}{
		{"null", `{}`, map[string]string{"add_bos_token": "false", "token_type": "[1 3 3 … 5 in all]"}},
		{"null", `{"bos_token": "<s>", "eos_token": {"content": "<|x|>"}, "add_bos_token": true}`, map[string]string{
			"add_bos_token": "true", "bos_token_id": "1", "eos_token_id": "2",
		}},
		{begin, `{"bos_token": "<s>", "add_bos_token": false}`, map[string]string{
			"add_bos_token": "true", "add_eos_token": "false",
		}},
		{begin, `{"bos_token": "<|x|>", "chat_template": "A"}`, map[string]string{"add_bos_token": "false"}},
	} {
		meta, err := tokenizerOf(map[string][]byte{
			"tokenizer.json": fmt.Appendf(nil, tokenizer, c.post), "tokenizer_config.json": []byte(c.settings),
		}, 5)
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range c.want {
			if v, ok := meta.Get("tokenizer.ggml." + key); !ok || v.String() != want {
				t.Errorf("%s with %s: %s, expected %s", key, c.settings, v, want)
			}
		}

		v, _ := meta.Get(tokensKey)
		if texts, _ := v.Strings(); !slices.Equal(texts, []string{"a", "<s>", "<|x|>", "a b", "[PAD4]"}) {
			t.Errorf("%q", texts)
		}
	}
}

// TestTemplates: one template, several with names, or a file.
func TestTemplates(t *testing.T) {
	base := FilesOf(t, "bytes", "")
	for _, c := range []struct {
		settings, file string
		want           []string
	}{
		{`{"chat_template": "A"}`, "B", []string{"tokenizer.chat_template", `"A"`}},
		{`{"chat_template": null}`, "B", []string{"tokenizer.chat_template", `"B"`}},
		{`{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool", "template": "T"}]}`, "", []string{
			"tokenizer.chat_template", `"D"`, "tokenizer.chat_template.tool", `"T"`, "tokenizer.chat_templates", `["tool"]`,
		}},
	} {
		files := map[string][]byte{
			"tokenizer.json": base["tokenizer.json"], "tokenizer_config.json": []byte(c.settings),
			"chat_template.jinja": []byte(c.file),
		}
		meta, err := tokenizerOf(files, 24)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(c.want); i += 2 {
			if v, ok := meta.Get(c.want[i]); !ok || v.String() != c.want[i+1] {
				t.Errorf("%s: %s, expected %s", c.want[i], v, c.want[i+1])
			}
		}
	}
}

// TestVocabulariesBack: llama.cpp's own vocabularies, made into a tokenizer.json and back, have the same tokens, types
// and merges, and cut words alike. COMPRESS_GGUF_VOCABS names the folder.
func TestVocabulariesBack(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(os.Getenv("COMPRESS_GGUF_VOCABS"), "ggml-vocab-*.gguf"))
	if os.Getenv("COMPRESS_GGUF_VOCABS") == "" || err != nil || len(files) == 0 {
		t.Skip("no vocabularies of llama.cpp: COMPRESS_GGUF_VOCABS names none")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".gguf"), func(t *testing.T) { vocabularyBack(t, file) })
	}
}

func vocabularyBack(t *testing.T, file string) {
	text, model, err := TokenizerOf(file)
	if err != nil {
		t.Skip(model, err)
	}
	f, err := gguf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	tokens, _ := f.Metadata().Get(tokensKey)
	have, err := tokenizerOf(map[string][]byte{"tokenizer.json": text}, tokens.Len())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{modelKey, tokensKey, mergesKey} {
		want, _ := f.Metadata().Get(key)
		if v, _ := have.Get(key); v != want && (key != mergesKey || model == "gpt2") {
			t.Errorf("%s: %v, expected %v", key, v, want)
		}
	}

	compareKinds(t, have, f.Metadata())
	v, _ := have.Get(preKey)
	w, ok := f.Metadata().Get(preKey)
	x, _ := v.Text()
	y, _ := w.Text()
	if ok && !slices.Equal(splitters[x].cuts(), splitters[y].cuts()) {
		t.Errorf("%s, expected %s", x, y)
	}
}

// FuzzTokenizer gives any tokenizer.json, settings and tokenizer.model to the writer. What it accepts is a list of
// tokens that the reader takes, unless tokens are alike; errors are one line.
func FuzzTokenizer(f *testing.F) {
	for _, vocabulary := range []string{"bytes", "pieces"} {
		d := load(f, "llama")
		map[string]func(){"bytes": d.byteVocabulary, "pieces": d.pieceVocabulary}[vocabulary]()
		v, err := newVocabulary(newMetadata("x.gguf", d.meta), 24)
		if err != nil {
			f.Fatal(err)
		}
		text, err := v.write(false)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, []byte(`{"bos_token": "<s>", "add_bos_token": true, "chat_template": "{{ a }}"}`), message("▁ab", -2))
	}

	f.Fuzz(func(t *testing.T, text, settings, model []byte) {
		defer fuzzlimit.Watch(t, len(text)+len(settings)+len(model))()

		files := map[string][]byte{"tokenizer.json": text, "tokenizer_config.json": settings, "tokenizer.model": model}
		meta, err := tokenizerOf(files, 24)
		if err != nil {
			oneLine(t, err)
			return
		}

		v, err := newVocabulary(newMetadata("x.gguf", meta), 24)
		if err != nil {
			oneLine(t, err)
			return
		}
		if back, err := v.write(false); err != nil {
			oneLine(t, err)
		} else if !json.Valid(back) {
			t.Errorf("%.200q is not JSON", back)
		}
	})
}
