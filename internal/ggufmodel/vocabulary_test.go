package ggufmodel

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
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
	f, err := gguf.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	v, err := newVocabulary(newMetadata(base, f.Metadata()), 1<<24)
	if err != nil {
		t.Fatal(err)
	}
	text, err := v.write(false)
	if errors.Is(err, ErrTokenizer) && (v.model == "bert" || v.model == "gemma4") {
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
