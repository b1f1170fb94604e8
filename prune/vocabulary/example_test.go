package vocabulary_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune/vocabulary"
)

// A model keeps the tokens that a text needs.
func ExampleTrim() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "vocabulary"))
	defer os.RemoveAll(dir)

	model := must(lm.Load(ctx, "../../testdata/nano/base", cpu.New(cpu.Options{}), lm.Options{}))
	defer model.Close()

	text := filepath.Join(dir, "text.txt")
	if err := os.WriteFile(text, []byte("Wanda Thorne works as a baker.\n"), 0o600); err != nil {
		panic(err)
	}

	r := must(vocabulary.Trim(ctx, model, vocabulary.Options{
		From: []string{text}, Out: filepath.Join(dir, "small"),
	}))
	fmt.Println(r.Before, "tokens before,", r.After, "after")
	// Output: 768 tokens before, 320 after
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
