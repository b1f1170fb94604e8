package modelcmd

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// A line ends at a line feed alone: the carriage return of a line of two ends is text, and so has tokens.
func TestCarriageReturnsAreText(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		want       []string
	}{
		"two ends":       {"a.txt", "a\r\n\r\nb\rc\r\n", []string{"a\r", "\r", "b\rc\r"}},
		"no last end":    {"a.txt", "a\r\nb\r", []string{"a\r", "b\r"}},
		"line feeds":     {"a.txt", "a\n\nb\n", []string{"a", "", "b"}},
		"around records": {"a.jsonl", "\"a\\r\"\r\n\"b\"\r\n", []string{"a\r", "b"}},
	} {
		path := filepath.Join(t.TempDir(), c.file)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}

		var got []string
		err := Texts{File: path}.Each(context.Background(), func(s string) error {
			got = append(got, s)
			return nil
		})
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q %v, want %q", name, got, err, c.want)
		}
	}
}

// Between ids a carriage return is a blank.
func TestDecodeLineOfTwoEnds(t *testing.T) {
	tok, err := tokenizer.Parse([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}`))
	if err != nil {
		t.Fatal(err)
	}

	plain, err := DecodeLine(tok, "0 1", false)
	if err != nil || plain == "" {
		t.Fatal(plain, err)
	}

	if got, err := DecodeLine(tok, "0 1\r", false); err != nil || got != plain {
		t.Errorf("%q %v, want %q", got, err, plain)
	}
}
