package pattern

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"
	"unicode/utf8"
)

// TestAsOniguruma: the same matches as the engine of Hugging Face's tokenizers, for patterns put together at random and
// those of known tokenizers. Where a pattern is refused here, it is for a repetition of what may be empty.
func TestAsOniguruma(t *testing.T) {
	data, err := os.ReadFile("testdata/oniguruma.jsonl")
	if err != nil {
		t.Fatal(err)
	}

	rows, refused := 0, 0
	for line := range bytes.Lines(data) {
		var r struct {
			Pattern, Text string
			Want          []string
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}

		rows++
		if _, err := Compile(r.Pattern); err != nil {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s: %v", r.Pattern, err)
			}
			refused++
			continue
		}

		if got := found(t, r.Pattern, r.Text); !slices.Equal(got, r.Want) {
			t.Errorf("%s on %q:\n got %q\nwant %q", r.Pattern, r.Text, got, r.Want)
		}
	}

	if rows < 300 || refused > rows/20 {
		t.Errorf("%d of %d patterns are refused", refused, rows)
	}
}

// found lists the matches that are not empty, each looked for where the one before ends, or a character behind an empty
// one.
func found(t *testing.T, source, text string) (out []string) {
	t.Helper()
	p, err := Compile(source)
	if err != nil {
		t.Fatal(err)
	}

	m := p.Over(text)
	defer m.Done()
	for from := 0; from <= len(text); {
		start, end, err := m.Find(from)
		if err != nil {
			t.Fatal(err)
		}
		if start < 0 {
			break
		}

		from = end
		if start < end {
			out = append(out, text[start:end])
		} else {
			_, n := utf8.DecodeRuneInString(text[end:])
			from += max(1, n)
		}
	}

	return out
}

// TestWordsInBrackets: the digits of Latin-1 that are no decimal ones are parts of words outside brackets, and are none
// within, where Oniguruma looks elsewhere. The wants are its.
func TestWordsInBrackets(t *testing.T) {
	const text = "½²Ⅷ٣_a"
	everything := []string{"½", "²", "Ⅷ", "٣", "_", "a"}
	for pattern, want := range map[string][]string{
		`\w`: everything, `\p{Word}`: everything, `(?i:\w)`: everything, `\W`: nil, `\P{Word}`: nil, `\p{^Word}`: nil,
		`[\w]`: everything[2:], `[^\W]`: everything[2:], `[\w&&[^b]]`: everything[2:], `[[^b]&&\w]`: everything[2:],
		`[[:word:]]`: everything[2:], `[\p{Word}]`: everything[2:], `(?i)[\w]`: everything[2:],
		`[^\w]`: everything[:2], `[\W]`: everything[:2], `[[:^word:]]`: everything[:2], `[^[:word:]]`: everything[:2],
		`[[:alnum:]]`: {"Ⅷ", "٣", "a"}, `\b½`: {"½"}, `½\B`: {"½"}, `[\w]|½`: {"½", "Ⅷ", "٣", "_", "a"},
	} {
		if got := found(t, pattern, text); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}

	for _, c := range []struct{ pattern, text, want string }{
		{`[\w]+`, "e\u0301x\u0903\u20dd.", "e\u0301x\u0903\u20dd"}, // marks are parts of words
		{`\b¹`, "a ¹", "¹"}, {`\b[¼¹]\b`, "¼ a¹", "¼"},
	} {
		if got := found(t, c.pattern, c.text); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s on %q: %q, want %q", c.pattern, c.text, got, c.want)
		}
	}
}
