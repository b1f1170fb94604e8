package tokenizer_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// TestDifference: a tokenizer does not differ from itself, also written otherwise; others are told by their sizes, by
// tokens, or by how they cut a text.
func TestDifference(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "nano", "base", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	parse := func(text string) *tokenizer.Tokenizer {
		tok, err := tokenizer.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}

	file := string(text)
	is := parse(file)
	merge := regexp.MustCompile(`\[\s*"o",\s*"n"\s*\],`)

	for _, c := range []struct{ name, text, says string }{
		{"itself", file, ""},
		{"written otherwise", file + "\n", ""},
		{"a token", strings.Replace(file, `"!"`, `"☃"`, 1), `1 of 768 ids are other tokens, such as`},
		{"merges", merge.ReplaceAllString(file, ""), "texts are cut otherwise"},
	} {
		if c.name != "itself" && c.text == file {
			t.Fatalf("%s: nothing was changed", c.name)
		}
		got := is.Difference(parse(c.text))
		if c.says == "" && got != "" || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", c.name, got, c.says)
		}
	}
}
