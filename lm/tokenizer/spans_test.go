package tokenizer

import (
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestWholeRunes: spans are widened to the characters that their ends are inside of, and no farther: a byte that
// belongs to no character is one by itself, however many stand side by side.
func TestWholeRunes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOfN(rapid.SampledFrom([]byte("a\x9a\xe2\x82\xac\xf0\xc3")), 0, 30).Draw(t, "text"))
		start := rapid.IntRange(0, len(s)).Draw(t, "start")
		end := rapid.IntRange(start, len(s)).Draw(t, "end")

		first, last := start, end
		for at, n := 0, 0; at < len(s); at += n {
			_, n = utf8.DecodeRuneInString(s[at:])
			if at < start && start < at+n {
				first = at
			}
			if at < end && end < at+n && end > first {
				last = at + n
			}
		}

		spans := []Span{{start, end}}
		wholeRunes(s, spans)
		if spans[0] != (Span{first, last}) {
			t.Fatalf("%q: %d to %d became %v, want %d to %d", s, start, end, spans[0], first, last)
		}
	})
}
