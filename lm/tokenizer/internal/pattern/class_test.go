package pattern

import (
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

// universe has characters on both sides of everything that the classes of these tests ask about.
var universe = []rune("abcXYZ019_- .é²ſK中\u0301\u00a0\n")

// bracketed makes a bracket expression together with what it holds.
func bracketed(t *rapid.T, depth int) (source string, holds func(r rune) bool) {
	type item struct {
		text  string
		holds func(r rune) bool
	}
	single := func(c rune) item { return item{string(c), func(r rune) bool { return r == c }} }
	span := func(a, b rune) item {
		return item{string(a) + "-" + string(b), func(r rune) bool { return r >= a && r <= b }}
	}
	items := []item{
		single('a'), single('Z'), single('_'), single('é'), single('中'), span('a', 'c'), span('X', 'Z'), span('0', '9'),
		span('a', 'ſ'),
		{`\d`, func(r rune) bool { return unicode.Is(unicode.Nd, r) }},
		{`\D`, func(r rune) bool { return !unicode.Is(unicode.Nd, r) }},
		{`\s`, unicode.IsSpace},
		{`\S`, func(r rune) bool { return !unicode.IsSpace(r) }},
		{`\p{L}`, unicode.IsLetter},
		{`\P{L}`, func(r rune) bool { return !unicode.IsLetter(r) }},
		{`\p{Lu}`, unicode.IsUpper},
		{`\x{e9}`, func(r rune) bool { return r == 'é' }},
		{`[:digit:]`, func(r rune) bool { return unicode.Is(unicode.Nd, r) }},
		{`\-`, func(r rune) bool { return r == '-' }},
		{`\]`, func(rune) bool { return false }},
	}

	// Parts between && are cut with each other; the ^ comes last.
	var parts []func(r rune) bool
	var texts []string
	for range rapid.IntRange(1, 2).Draw(t, "parts") {
		var text string
		var list []func(r rune) bool
		for range rapid.IntRange(1, 3).Draw(t, "items") {
			if depth > 0 && rapid.IntRange(0, 3).Draw(t, "nested") == 0 {
				s, h := bracketed(t, depth-1)
				text += s
				list = append(list, h)
				continue
			}

			i := rapid.SampledFrom(items).Draw(t, "item")
			text += i.text
			list = append(list, i.holds)
		}

		texts = append(texts, text)
		parts = append(parts, func(r rune) bool {
			for _, h := range list {
				if h(r) {
					return true
				}
			}
			return false
		})
	}

	neg := rapid.Bool().Draw(t, "negated")
	source = "[" + map[bool]string{true: "^"}[neg] + strings.Join(texts, "&&") + "]"
	return source, func(r rune) bool {
		for _, p := range parts {
			if !p(r) {
				return neg
			}
		}
		return !neg
	}
}

// TestBrackets: unions, ranges, escapes, named classes, cuts, nested brackets and complements hold what the sets that
// they are made of say, for ASCII, which has a table, and beyond.
func TestBrackets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, holds := bracketed(t, 2)
		p, err := Compile(src)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}

		for _, r := range universe {
			m := p.Over(string(r))
			start, _, err := m.Find(0)
			m.Done()
			if err != nil || (start == 0) != holds(r) {
				t.Fatalf("%s: %q is in it: %v (%v), want %v", src, r, start == 0, err, holds(r))
			}
		}
	})
}

// TestFolding: without regard to case a class holds a letter if it holds any of those that fold together with it.
func TestFolding(t *testing.T) {
	for src, want := range map[string]string{
		`(?i)[k]`: "kK\u212A", `(?i)[a-c]`: "abcABC", `(?i)[ſ]`: "sSſ", `(?i)é`: "éÉ", `(?i)[0-9_]`: "0123456789_",
	} {
		p, err := Compile(src)
		if err != nil {
			t.Fatal(err)
		}
		for r := rune(0); r < 0x2200; r++ {
			m := p.Over(string(r))
			start, _, err := m.Find(0)
			m.Done()
			if err != nil || (start == 0) != strings.ContainsRune(want, r) {
				t.Fatalf("%s: %q is in it: %v, %v", src, r, start == 0, err)
			}
		}
	}
}

// TestRestart: from any place on, the next match is the first of those that begin there or later, as a pattern without
// a look behind sees it in the rest of the text.
func TestRestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := strings.ReplaceAll(source(t, 1), `\pL`, `\p{L}`)
		p, err := Compile(src)
		if err != nil {
			t.Skip("a repeated group that can match nothing")
		}

		text := rapid.StringMatching(`[abcdé]{0,10}`).Draw(t, "text")
		whole := p.Over(text)
		defer whole.Done()

		for from := range text { // at whole characters
			start, end, err := whole.Find(from)
			rest := p.Over(text[from:])
			a, b, other := rest.Find(0)
			rest.Done()
			if a >= 0 {
				a += from
				b += from
			}
			if (err == nil) != (other == nil) || err == nil && (start != a || start >= 0 && end != b) {
				t.Fatalf("%s on %q from %d: %d, %d (%v), in the rest %d, %d (%v)", src, text, from, start, end, err, a,
					b, other)
			}
		}
	})
}
