package ggufmodel

import (
	"fmt"
	"os"
	"testing"

	"github.com/modelcompress/compress/gguf"
)

// BenchmarkOpen measures how long it takes until a file is a checkpoint, its tokenizer.json included: of the file that
// COMPRESS_GGUF_FILE names, or of a vocabulary of 50,000 made-up tokens.
func BenchmarkOpen(b *testing.B) {
	path := os.Getenv("COMPRESS_GGUF_FILE")
	if path == "" {
		path = largeVocabulary(b)
	}

	for b.Loop() {
		g, err := gguf.OpenModel(path)
		if err != nil {
			b.Fatal(err)
		}
		m, err := New(g)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := m.Files(); err != nil {
			b.Fatal(err)
		}
		if err := g.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// largeVocabulary writes a file with many tokens and merges.
func largeVocabulary(b *testing.B) (path string) {
	const n = 50_000
	d := load(b, "llama")
	tokens := []string{"a"}
	var merges []string
	for i := 1; i < n/2; i++ {
		tokens = append(tokens, fmt.Sprintf("t%d", i), fmt.Sprintf("t%da", i))
		merges = append(merges, fmt.Sprintf("t%d a", i))
	}

	d.byteVocabulary()
	d.remove(typesKey)
	d.remove("tokenizer.ggml.eos_token_id")
	d.set(tokensKey, gguf.List(tokens))
	d.set(mergesKey, gguf.List(merges))
	d.set("llama.vocab_size", gguf.Of(uint32(len(tokens))))
	d.add("token_embd.weight", []int64{int64(len(tokens)), 16}, nil)

	return d.write(b)
}
