package chars

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestScripts: two characters have one number if and only if they have one script, but for those that Han takes in: the
// Japanese syllabaries, the sign of a long vowel, and nothing else. Characters without a script have 0.
func TestScripts(t *testing.T) {
	type table struct {
		name  string
		runes *unicode.RangeTable
	}
	var tables []table
	for name, runes := range unicode.Scripts {
		if name == "Hiragana" || name == "Katakana" {
			name = "Han"
		}
		tables = append(tables, table{name, runes})
	}

	number := map[string]uint8{}
	name := map[uint8]string{}
	for r := rune(0); r < 0x30000; r++ {
		script := ""
		for i, s := range tables {
			if unicode.Is(s.runes, r) {
				script = s.name
				tables[0], tables[i] = tables[i], tables[0] // neighbours have one script as a rule
				break
			}
		}
		if r == 0x30FC {
			script = "Han"
		}

		got := Script(r)
		if script == "" || r == ' ' {
			if got != 0 {
				t.Fatalf("%U has no script, and number %d", r, got)
			}
			continue
		}
		if uint32(r) >= tableSize && got == 0 {
			continue // scripts of characters beyond the table do not matter, but for Han and what goes with any
		}
		if n, ok := number[script]; ok && n != got {
			t.Fatalf("%U of %s has number %d, others of it %d", r, script, got, n)
		}
		if s, ok := name[got]; ok && s != script {
			t.Fatalf("%U of %s has the number of %s", r, script, s)
		}
		number[script] = got
		name[got] = script
	}
}

// TestWordByDefinition: \w of UTS #18, and punctuation of ASCII, for every character.
func TestWordByDefinition(t *testing.T) {
	for r := rune(0); r < 0x30000; r++ {
		word := unicode.IsLetter(r) || unicode.Is(unicode.M, r) || unicode.Is(unicode.Nd, r) ||
			unicode.Is(unicode.Nl, r) || unicode.Is(unicode.Pc, r) || unicode.Is(unicode.Other_Alphabetic, r)
		if IsPlainWord(r) != word {
			t.Fatalf("%U: word %v, want %v", r, IsPlainWord(r), word)
		}
		if joiner := r == 0x200C || r == 0x200D; IsWord(r) != (word || joiner) {
			t.Fatalf("%U: word %v", r, IsWord(r))
		}
		if r < utf8.RuneSelf && IsPunctuation(r) != (unicode.IsPunct(r) || unicode.IsSymbol(r)) {
			t.Fatalf("%U: punctuation %v", r, IsPunctuation(r))
		}
	}
}

// alphabet has characters that end, begin and go on with clusters and words.
var alphabet = []rune("ab \n\r\t\u00a0\u3000\u0301\u200d\u200c👍🏽👩🇩🇪\u1100\u1161\u11a8가\u0600ก\u0e33é\x01")

// TestClusters: clusters are whole characters that together are the text; none ends before a mark that combines, unless
// a control character stands there, and none goes on beyond a line end.
func TestClusters(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		var text strings.Builder
		for range 1 + random.IntN(12) {
			text.WriteRune(alphabet[random.IntN(len(alphabet))])
		}

		s := text.String()
		for at := 0; at < len(s); {
			n := ClusterLen(s[at:])
			if n < 1 || at+n > len(s) || !utf8.ValidString(s[at:at+n]) {
				t.Fatalf("%+q: a cluster of %d bytes at %d", s, n, at)
			}

			last, _ := utf8.DecodeLastRuneInString(s[at : at+n])
			next, _ := utf8.DecodeRuneInString(s[at+n:])
			if unicode.Is(unicode.Mn, next) && !unicode.IsControl(last) {
				t.Fatalf("%+q: a cluster ends before %U at %d", s, next, at+n)
			}
			if i := strings.IndexByte(s[at:at+n], '\n'); i >= 0 && i != n-1 {
				t.Fatalf("%+q: a cluster goes on beyond a line end at %d", s, at)
			}
			at += n
		}
	}
}

// TestTrimAnything: as package strings does it.
func TestTrimAnything(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	for range 3000 {
		var text strings.Builder
		for range random.IntN(9) {
			text.WriteRune(alphabet[random.IntN(len(alphabet))])
		}

		s := text.String()
		if got, want := TrimLeft(s), strings.TrimLeftFunc(s, unicode.IsSpace); got != want {
			t.Fatalf("%+q: got %+q, want %+q", s, got, want)
		}
		if got, want := s[:TrimRight(s)], strings.TrimRightFunc(s, unicode.IsSpace); got != want {
			t.Fatalf("%+q: got %+q, want %+q", s, got, want)
		}

		for i, r := range s {
			if n := RuneLen(s, i); n != utf8.RuneLen(r) {
				t.Fatalf("%+q at %d: %d bytes", s, i, n)
			}
		}
	}
}
