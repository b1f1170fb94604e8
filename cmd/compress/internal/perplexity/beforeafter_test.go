package perplexity

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

func measured(ppl float64) *Report {
	return &Report{PerplexityReport: lm.PerplexityReport{
		Perplexity: ppl, NLL: 1, Tokens: 30,
		Data: corpus.Windows{Source: "some/where/text.txt", Hash: "abc", Count: 2, SeqLen: 16, Mode: corpus.Window},
	}}
}

// TestKeep: figures go into the record, keys before them stay in their order, and a second run replaces its own.
func TestKeep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pruning.json")
	if err := os.WriteFile(file, []byte("{\n \"z\": 1.50,\n \"a\": []\n}\n"), 0o666); err != nil {
		t.Fatal(err)
	}

	var first string
	for range 2 {
		p := &BeforeAfter{Before: measured(2), After: measured(3)}
		if err := p.Keep(file); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(text)
		}
		if string(text) != first || !strings.HasPrefix(first, "{\n \"z\": 1.50,\n \"a\": [],\n \"perplexity\"") {
			t.Errorf("%s\nand first\n%s", text, first)
		}
	}

	var got struct {
		Perplexity struct {
			Data          string
			Windows       int
			Before, After struct{ PPL float64 }
		}
	}
	if err := json.Unmarshal([]byte(first), &got); err != nil {
		t.Fatal(err)
	}
	p := got.Perplexity
	if p.Data != "text.txt" || p.Windows != 2 || p.Before.PPL != 2 || p.After.PPL != 3 {
		t.Errorf("%+v", p)
	}

	var none *BeforeAfter
	if err := none.Keep("nowhere"); err != nil {
		t.Error(err)
	}
}

// TestTell: a card names text and figures, and no folder.
func TestTell(t *testing.T) {
	var c card.Card
	(&BeforeAfter{Before: measured(2), After: measured(3)}).Tell(&c)
	text := string(c.Bytes())
	for _, want := range []string{
		"| perplexity on text.txt | 2.0000 | 3.0000 |", "| text.txt | `abc` | 2 sequences of 16 tokens (window) |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %s", text, want)
		}
	}
	if strings.Contains(text, "some/where") {
		t.Error("the card names a folder")
	}
}
