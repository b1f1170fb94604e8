package card

import (
	"bytes"
	"strings"
	"testing"
	"testing/quick"
)

func sample() *Card {
	return &Card{
		Base: []string{"owner/name"}, Library: Transformers, Tags: []string{"compress", "pruned"},
		Title: "Pruned model", Text: "A model.", Command: "compress prune owner/name --out DIR",
		Remarks:  []string{"It is small."},
		Settings: []Row{{"method", []string{"a|b"}}},
		Data:     []Row{{"calib.txt", []string{"abc"}}},
		Figures:  []Row{{"perplexity", []string{"2", "3"}}}, Before: true,
	}
}

// TestCard: a card from top to bottom.
func TestCard(t *testing.T) {
	const want = `---
base_model:
- "owner/name"
library_name: transformers
tags:
- compress
- pruned
---

# Pruned model

A model.

It is small.

` + "```sh\ncompress prune owner/name --out DIR\n```" + `

| setting | value |
|---|---|
| method | a\|b |

| data | hash | extent |
|---|---|---|
| calib.txt | abc |  |

| measured | before | after |
|---|---|---|
| perplexity | 2 | 3 |

<!-- made with compress: `
	got := sample().Bytes()
	if !strings.HasPrefix(string(got), want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !bytes.Equal(got, sample().Bytes()) {
		t.Error("the same card has other bytes")
	}
}

// TestBase: what holds of the base as well is taken over, its text comes last, and its mark is no mark of the new card.
func TestBase(t *testing.T) {
	c := sample()
	c.Of = []byte("---\nlibrary_name: x\nlicense: apache-2.0\nlanguage:\n- en\n- de\ntags:\n- old\n" +
		"license_name: {a: [}\nwidget:\n- text: hello\n---\n# Base\n\nGood.\n\n" +
		"<!-- made with compress: " + strings.Repeat("0", 64) + " -->\n")
	text := string(c.Bytes())

	if want := "- pruned\nlicense: apache-2.0\nlanguage:\n- en\n- de\n---\n"; !strings.Contains(text, want) {
		t.Errorf("%s\nlacks\n%s", text, want)
	}
	if strings.Count(text, markPrefix) != 1 || !strings.Contains(text, "of this model:\n\n# Base\n\nGood.\n\n<!--") {
		t.Errorf("the base's text or its mark: %s", text)
	}

	c.Of = bytes.Repeat([]byte("long text "), MaxBase/10+1)
	if text := string(c.Bytes()); len(text) > MaxBase || !strings.Contains(text, "was left out") {
		t.Errorf("%d bytes of a card with a long base", len(text))
	}
}

const markPrefix = "<!-- made with compress: "

// TestOwn: a card is one's own until a byte of it changes.
func TestOwn(t *testing.T) {
	text := sample().Bytes()
	if !Own(text) {
		t.Fatal("a card is not its own")
	}
	for i := range text {
		bad := bytes.Clone(text)
		bad[i] ^= 1
		if Own(bad) {
			t.Fatalf("a card with another byte %d", i)
		}
	}
	for _, other := range []string{"", "\n", "# Mine\n", string(text) + "More.\n", markPrefix} {
		if Own([]byte(other)) {
			t.Errorf("%q is taken for a card", other)
		}
	}
}

// TestAmend: what was added stands below the title, and the card is whole.
func TestAmend(t *testing.T) {
	got := Amend(sample().Bytes(), "Undone.")
	if !Own(got) || !strings.Contains(string(got), "# Pruned model\n\nUndone.\n\nA model.") {
		t.Errorf("%s", got)
	}
	if got := Amend([]byte("# Mine\n"), "Undone."); string(got) != "# Mine\n" {
		t.Errorf("a user's text became %q", got)
	}
}

// TestAnyBase: no card of a base breaks the new one.
func TestAnyBase(t *testing.T) {
	holds := func(of []byte) bool {
		c := sample()
		c.Of = of
		text := c.Bytes()
		return Own(text) && bytes.HasPrefix(text, []byte("---\nbase_model:\n"))
	}
	if err := quick.Check(holds, nil); err != nil {
		t.Error(err)
	}
}
