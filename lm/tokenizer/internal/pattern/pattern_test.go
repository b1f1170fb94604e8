package pattern

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"pgregory.net/rapid"
)

// all returns the texts of the successive matches of a pattern.
func all(t testing.TB, source, text string) []string {
	t.Helper()
	p, err := Compile(source)
	if err != nil {
		t.Fatalf("%q: %v", source, err)
	}

	m := p.Over(text)
	defer m.Done()

	var out []string
	for from := 0; from <= len(text); {
		start, end, err := m.Find(from)
		if err != nil {
			t.Fatalf("%q: %v", source, err)
		}

		if start < 0 {
			break
		}

		out = append(out, text[start:end])
		from = max(end, start+1)
	}

	return out
}

func TestFind(t *testing.T) {
	for _, c := range []struct{ pattern, text, want string }{
		{`a|ab`, "ab", "a"},
		{`ab|a`, "ab a", "ab,a"},
		{`a+?b`, "aab", "aab"},
		{`a*?b`, "aab", "aab"},
		{`a{2,3}?`, "aaaa", "aa,aa"},
		{`a{2}`, "aaaaa", "aa,aa"},
		{`a{,2}b`, "aaab", "aab"},
		{`a{,}`, "a{,}", "a{,}"},
		{`x{a}`, "x{a}", "x{a}"},
		{`(?:ab){1,2}c`, "ababc", "ababc"},
		{`(?:ab)+?c`, "ababc", "ababc"},
		{`(?:a|ab)+c`, "aababc", "aababc"},
		{`a++a`, "aaa", ""},
		{`(?>a+)a`, "aaa", ""},
		{`(?:ab)++c`, "ababc", "ababc"},
		{`a?+a`, "a aa", "aa"},
		{`\d+(?!\d)`, "123 4", "123,4"},
		{`\s+(?!\S)`, "a   b ", "  , "},
		{`(?<=a)b`, "ab b", "b"},
		{`(?<!a)b`, "ab b", "b"},
		{`(?<=ab|c)d`, "abd cd bd", "d,d"},
		{`(?<!ab|c)d`, "abd cd bd", "d"},
		{`foo(?=bar)`, "foobar foo", "foo"},
		{`^a`, "a\na", "a,a"},
		{`a$`, "a\na", "a,a"},
		{`\Aa`, "a\na", "a"},
		{`a\z`, "a\na", "a"},
		{`a\Z`, "a\n", "a"},
		{`\bthe\b`, "the other the", "the,the"},
		{`\Bb`, "ab b", "b"},
		{`.+`, "ab\ncd", "ab,cd"},
		{`(?m).+`, "ab\ncd", "ab\ncd"},
		{`(?m:.)b`, "\nb", "\nb"},
		{`(?i)straSSe`, "STRASSE", "STRASSE"},
		{`(?i:'s|'T)`, "'S't'ſ", "'S,'t,'ſ"},
		{`(?i:K)`, "kK\u212A", "k,K,\u212A"},
		{`(?i)[^a]`, "aAb", "b"},
		{`a(?i)b|c`, "aB aC c", "aB,aC"},
		{`(?:(?i)a)a`, "Aa AA", "Aa"},
		{`(?x) a b # comment` + "\n c", "abc", "abc"},
		{`(?#note)a`, "a", "a"},
		{`(?<name>a)(b)`, "ab", "ab"},
		{`[a-c&&[^b]]+`, "abcac", "a,cac"},
		{`[[:alpha:]]+`, "ab1é", "ab,é"},
		{`[[:^alpha:]]+`, "ab1é", "1"},
		{`[[:punct:]]`, "a$é!", "$,!"},
		{`[]a]+`, "]a", "]a"},
		{`[^]a]`, "]ab", "b"},
		{`[a\-z]+`, "a-z b", "a-z"},
		{`[\w-]+`, "a-b c", "a-b,c"},
		{`[a-\d]+`, "a-5b", "a-5"},
		{`[\[\]]`, "[]", "[,]"},
		{`\p{Lu}\p{Ll}+`, "Ab Cd", "Ab,Cd"},
		{`\P{L}+`, "ab12", "12"},
		{`\p{^L}+`, "ab12", "12"},
		{`\P{^L}+`, "ab12", "ab"},
		{`\p{Han}+|\p{Hiragana}`, "漢字か", "漢字,か"},
		{`\p{White_Space}`, "a b", " "},
		{`\h+`, "xfF0g", "fF0"},
		{`\H`, "fg", "g"},
		{`\x41\x{1F600}\u00e9`, "A😀é", "A😀é"},
		{`\R`, "\r\n\n", "\r\n,\n"},
		{`\t\.\/`, "\t./", "\t./"},
		{`[一-龥]+`, "一三か", "一三"},
		{`²|\w`, "²", "²"},
	} {
		if got := strings.Join(all(t, c.pattern, c.text), ","); got != c.want {
			t.Errorf("%s on %q: got %q, want %q", c.pattern, c.text, got, c.want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, source := range []string{
		`(`, `)`, `(a`, `[a`, `[`, `[b-a]`, `a**?*(`, `*a`, `\`, `(?`, `(?q)`, `(?<a`, `\1`, `(a)\k<1>`, `\p{Nonsense}`,
		`\p`, `\pL`,
		`\x{110000}`, `\xZ`, `\x`, `\u12`, `(a*)*`, `(?:a|b?)+`, `a{3,2}`, `a{1001}`, `(?<=a+)b`, `\X`, `\K`, `\G`,
		`\cA`,
		strings.Repeat("(", 100) + "a" + strings.Repeat(")", 100), strings.Repeat("[", 100), strings.Repeat("a", 1<<15),
		`((((ab){1000}){1000}){1000}){1000}`, `(?<!(?:a|bc)d)e`,
	} {
		if _, err := Compile(source); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%.40q: got %v", source, err)
		}
	}
}

// TestCost checks that hard cases either finish or give an error, within the limit of steps.
func TestCost(t *testing.T) {
	const n = 1 << 16
	for _, c := range []struct {
		pattern, text string
		fails         bool
	}{
		{`(?:a|aa|aaa)+b`, strings.Repeat("a", 200), true},
		{`(?:a+)+b`, strings.Repeat("a", 200), true},
		{`a*a*a*a*b`, strings.Repeat("a", 4000), true},
		{`\s*[\r\n]+|\s`, strings.Repeat(" ", n), false},
		{`\s+$|x`, strings.Repeat(" ", n) + "y", false},
		{`\p{L}+\p{N}|\p{L}`, strings.Repeat("é", n), false},
		{`(?:ab)+`, strings.Repeat("ab", n), false},
	} {
		p, err := Compile(c.pattern)
		if err != nil {
			t.Fatal(err)
		}

		m := p.Over(c.text)
		for from := 0; err == nil && from <= len(c.text); {
			var start, end int
			if start, end, err = m.Find(from); start < 0 {
				break
			}
			from = max(end, start+1)
		}

		m.Done()
		if c.fails != errors.Is(err, ErrCost) {
			t.Errorf("%s: got %v", c.pattern, err)
		}
	}
}

// source draws a pattern that this package and Go's regexp read alike.
func source(t *rapid.T, depth int) string {
	atom := func() string {
		if depth > 0 && rapid.Bool().Draw(t, "group") {
			return "(?:" + source(t, depth-1) + ")"
		}
		return rapid.SampledFrom([]string{"a", "b", "c", "é", "[ab]", "[^b]", `\pL`, "ab", "."}).Draw(t, "atom")
	}

	var alternatives []string
	for range rapid.IntRange(1, 3).Draw(t, "alternatives") {
		var s string
		for range rapid.IntRange(1, 3).Draw(t, "parts") {
			s += atom() +
				rapid.SampledFrom([]string{"", "", "", "?", "*", "+", "{1,2}", "{2}", "??", "*?", "+?", "{1,2}?"}).Draw(
					t, "count")
		}

		alternatives = append(alternatives, s)
	}

	return strings.Join(alternatives, "|")
}

// TestAgainstRegexp compares with Go's regexp, which follows the same leftmost-first rule.
func TestAgainstRegexp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := source(t, 2)
		p, err := Compile(strings.ReplaceAll(src, `\pL`, `\p{L}`))
		if err != nil {
			t.Skip("a repeated group that can match nothing")
		}

		text := rapid.StringMatching(`[abcdé\n]{0,12}`).Draw(t, "text")
		m := p.Over(text)
		defer m.Done()

		start, end, err := m.Find(0)
		want := regexp.MustCompile(src).FindStringIndex(text)
		if want == nil {
			want = []int{-1, -1}
		}
		if err == nil && !slices.Equal([]int{start, end}, want) {
			t.Fatalf("%s on %q: got %d, %d, want %v", src, text, start, end, want)
		}
	})
}

func FuzzFind(f *testing.F) {
	f.Add(`(?i:'s|'t)|\p{L}+|\s+(?!\S)|[^\s\p{L}]++`, "It's  a test")
	f.Add(`(?<=a)[b-d&&[^c]]{1,3}?|(?>x+)y|\bz\B|^$`, "abd\nxxy z")
	f.Fuzz(func(t *testing.T, source, text string) {
		defer fuzzlimit.Watch(t, len(source)+len(text))()

		p, err := Compile(source)
		if err != nil {
			if !errors.Is(err, ErrUnsupported) {
				t.Fatal(err)
			}
			return
		}

		m := p.Over(text)
		defer m.Done()

		for from := 0; from <= len(text); {
			start, end, err := m.Find(from)
			if errors.Is(err, ErrCost) || start < 0 {
				return
			}

			if err != nil || start < from || end < start || end > len(text) {
				t.Fatalf("match %d to %d from %d: %v", start, end, from, err)
			}
			from = max(end, start+1)
		}
	})
}

func ExampleCompile() {
	p, err := Compile(`\p{N}{1,3}| ?\p{L}+`)
	if err != nil {
		fmt.Println(err)
		return
	}

	text := "call 12345"
	m := p.Over(text)
	defer m.Done()

	for from := 0; ; {
		start, end, err := m.Find(from)
		if err != nil || start < 0 {
			break
		}
		fmt.Printf("%q ", text[start:end])
		from = end
	}
	// Output: "call" "123" "45"
}
