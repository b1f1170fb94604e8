package gguf_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/gguf"
)

func ExampleCreate() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	path := filepath.Join(dir, "model.gguf")
	w, err := gguf.Create(path, []gguf.Info{
		{Name: "token_embd.weight", Type: gguf.Q8_0, Shape: []int64{2, 32}},
	}, gguf.Metadata{
		{Key: "general.architecture", Value: gguf.Of("llama")},
		{Key: "tokenizer.ggml.tokens", Value: gguf.List([]string{"a", "b"})},
	}, gguf.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Abort() // does nothing after Finish

	// A row is one block: the float16 1, and 32 numbers.
	row := append([]byte{0, 0x3c}, bytes.Repeat([]byte{7}, 32)...)
	for i := range int64(2) {
		if err := w.WriteAt("token_embd.weight", row, i*int64(len(row))); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		log.Fatal(err)
	}

	m, err := gguf.OpenModel(path)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	arch, _ := m.Metadata().Get("general.architecture")
	tokens, _ := m.Metadata().Get("tokenizer.ggml.tokens")
	info, _ := m.Info("token_embd.weight")
	values := make([]float32, info.Cols())
	err = m.View(info.Name, func(data []byte) error {
		return info.Type.Decode(values, data[:info.RowSize()])
	})

	fmt.Println(arch, tokens, info.Type, info.Shape, values[0], err)
	// Output: "llama" ["a" "b"] Q8_0 [2 32] 7 <nil>
}
