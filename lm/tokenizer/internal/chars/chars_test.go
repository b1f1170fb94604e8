package chars

import (
	"slices"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestOf compares the table with the unicode package for every character.
func TestOf(t *testing.T) {
	tables := []struct {
		of   *unicode.RangeTable
		mask Set
	}{
		{unicode.L, L},
		{unicode.M, M},
		{unicode.N, N},
		{unicode.P, P},
		{unicode.S, S},
		{unicode.Z, Z},
		{unicode.Cc, Controls},
		{unicode.White_Space, Space},
		{unicode.Lu, Lu},
		{unicode.Nd, Nd},
		{unicode.Mn, Mn},
		{unicode.Cf, Cf},
	}

	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}

		set := Of(r)
		if set&(set-1) != 0 {
			t.Fatalf("%U: more than one category", r)
		}

		for _, table := range tables {
			if unicode.Is(table.of, r) != (set&table.mask != 0) {
				t.Fatalf("%U: category %b against mask %b", r, set, table.mask)
			}
		}
	}
}

func TestCategories(t *testing.T) {
	union := Set(0)
	for name, set := range Categories() {
		if len(name) == 2 {
			union |= set
		}
	}
	if union != L|M|N|P|S|Z|C {
		t.Errorf("the categories together are %b", union)
	}
}

func TestClusterLen(t *testing.T) {
	for _, c := range []struct {
		s    string
		want int
	}{
		{"ab", 1},
		{"\r\n\n", 2},
		{"\n\u0301", 1},
		{"e\u0301\u0302a", 5},
		{"👩\u200d👩\u200d👧x", 18},
		{"👍🏽x", 8},
		{"🇩🇪🇫🇷", 8},
		{"\u1100\u1161\u11a8\u1100", 9},
		{"가\u11a8a", 6},
		{"각\u1161", 3},
		{"\u0600a", 3},
		{"ก\u0e33", 6},
		{"a\u200db", 4},
		{"©\u200d©", 7},
		{"\u200b\u0301", 3},
	} {
		if got := ClusterLen(c.s); got != c.want {
			t.Errorf("%+q: got %d, want %d", c.s, got, c.want)
		}
	}
}

func TestClasses(t *testing.T) {
	for r, want := range map[rune][4]bool{ // word, plain word, punctuation, space
		'a': {true, true, false, false}, '_': {true, true, true, false}, '5': {true, true, false, false},
		'+': {false, false, true, false}, ' ': {false, false, false, true}, '\u200D': {true, false, false, false},
		'\u0301': {true, true, false, false}, '“': {false, false, true, false}, '€': {false, false, false, false},
		'Ⓐ': {true, true, false, false}, '\u061D': {false, false, false, false}, '\u00A0': {false, false, false, true},
	} {
		if got := [4]bool{IsWord(r), IsPlainWord(r), IsPunctuation(r), IsSpace(r)}; got != want {
			t.Errorf("%U: got %v, want %v", r, got, want)
		}
	}
}

func TestScript(t *testing.T) {
	same := func(a, b rune) bool { return Script(a) == Script(b) }
	if !same('a', 'é') || !same('漢', 'か') || !same('ー', 'カ') || !same('!', '1') || same('a', 'я') || same('a', '1') {
		t.Error("scripts are mixed up")
	}
	if Script(' ') != 0 || Script('\U00020000') != Script('漢') || Script('\U000E0100') == 0 ||
		Script('\U000F0000') != 0 {
		t.Error("space, the second ideographic plane, selectors or private use")
	}
}

func TestTrim(t *testing.T) {
	if got := TrimLeft(" \u00a0a "); got != "a " {
		t.Errorf("got %q", got)
	}
	if got := TrimRight(" a\u2003\n"); got != 2 {
		t.Errorf("got %d", got)
	}
	if sizes := []int{RuneLen("aé", 0), RuneLen("aé", 1)}; !slices.Equal(sizes, []int{1, 2}) {
		t.Errorf("got %v", sizes)
	}
}
