package ggufmodel_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// TestVocabularies compares the ids of llama.cpp's own vocabularies, of which its source has the ids that the original
// tokenizers give for some forty texts. COMPRESS_GGUF_VOCABS names the folder, which is models in its source.
func TestVocabularies(t *testing.T) {
	folder := os.Getenv("COMPRESS_GGUF_VOCABS")
	files, err := filepath.Glob(filepath.Join(folder, "ggml-vocab-*.gguf.inp"))
	if folder == "" || err != nil || len(files) == 0 {
		t.Skip("no vocabularies of llama.cpp: COMPRESS_GGUF_VOCABS names none")
	}

	for _, file := range files {
		base := strings.TrimSuffix(file, ".inp")
		t.Run(strings.TrimSuffix(filepath.Base(base), ".gguf"), func(t *testing.T) { compareVocabulary(t, base) })
	}
}

func compareVocabulary(t *testing.T, base string) {
	text, model, err := ggufmodel.TokenizerOf(base)
	if errors.Is(err, ggufmodel.ErrTokenizer) && (model == "bert" || model == "gemma4") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(text)
	if err != nil {
		t.Fatal(err)
	}

	inputs, err := os.ReadFile(base + ".inp")
	if err != nil {
		t.Fatal(err)
	}
	outputs, err := os.ReadFile(base + ".out")
	if err != nil {
		t.Fatal(err)
	}

	texts := strings.Split(string(inputs), "\n__ggml_vocab_test__\n")
	lines := strings.Split(string(outputs), "\n")
	for i, one := range texts {
		if i >= len(lines) {
			t.Fatalf("%d texts, %d lines", len(texts), len(lines))
		}
		ids, err := tok.Encode(one, tokenizer.EncodeOptions{NoSpecial: true})
		if err != nil {
			t.Fatal(err)
		}

		var have []string
		for _, id := range ids {
			have = append(have, strconv.Itoa(int(id)))
		}
		if want := strings.Fields(lines[i]); !slices.Equal(have, want) {
			t.Errorf("%q: %v, expected %v", one, have, want)
		}
	}
}

// TestTokenizers: ids of both kinds of vocabulary, worked out by hand.
func TestTokenizers(t *testing.T) {
	for _, c := range []struct {
		name string
		ids  map[string][]int32
	}{
		{"bytes", map[string][]int32{
			"abc":               {6},    // a token that no merge gives, kept whole
			" abc":              {5, 2}, // Ġab c
			"ab ab":             {4, 5},
			"<think>abc<|end|>": {8, 6, 7},
		}},
		{"pieces", map[string][]int32{
			"ab":            {1, 7},
			" ab":           {1, 3, 7},
			"a<|im_end|>b":  {1, 3, 4, 8, 3, 5}, // every stretch of text begins with a space
			"abab":          {1, 7, 6},
			"a\u00e9":       {1, 3, 4, 0},
			"</s><unk> aab": {1, 2, 0, 3, 3, 4, 6},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := ggufmodel.FilesOf(t, c.name, "{{ messages }}")
			if string(files["chat_template.jinja"]) != "{{ messages }}" {
				t.Errorf("%q", files["chat_template.jinja"])
			}

			folder := t.TempDir()
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			tok, err := tokenizer.Load(folder)
			if err != nil {
				t.Fatal(err)
			}
			for text, want := range c.ids {
				if have, err := tok.Encode(text, tokenizer.EncodeOptions{}); err != nil || !slices.Equal(have, want) {
					t.Errorf("%q: %v, %v, expected %v", text, have, err, want)
				}
			}
		})
	}
}
