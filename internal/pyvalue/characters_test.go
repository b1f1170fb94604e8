package pyvalue_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// characters is testdata/characters.json: what CPython says about every character that it knows.
type characters struct {
	Known, Islower, Isupper, Isalpha, Isdecimal, Isdigit, Isnumeric, Isspace, Isprintable string
	Upper, Lower, Title                                                                   [][4]any
}

func readCharacters(t *testing.T) characters {
	t.Helper()
	data, err := os.ReadFile("testdata/characters.json")
	if err != nil {
		t.Fatal(err)
	}
	var c characters
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// ranges reads "61-7a b5".
func ranges(t *testing.T, text string) []bool {
	t.Helper()
	set := make([]bool, unicode.MaxRune+1)
	for part := range strings.FieldsSeq(text) {
		lo, hi, several := strings.Cut(part, "-")
		if !several {
			hi = lo
		}

		first, err := strconv.ParseInt(lo, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		last, err := strconv.ParseInt(hi, 16, 32)
		if err != nil {
			t.Fatal(err)
		}

		for r := first; r <= last; r++ {
			set[r] = true
		}
	}

	return set
}

// some lists so many characters of a mistake that it can be seen what they are.
func some(t *testing.T, what string, wrong []rune) {
	t.Helper()
	if n := len(wrong); n > 0 {
		t.Errorf("%s: %d characters differ, %U", what, n, wrong[:min(n, 8)])
	}
}

// newlySmall are modifier letters that Unicode 15 made lower case.
const newlySmall = "\u10fc\ua7f2\ua7f3\ua7f4\uab69"

// TestClassesAsPython: what every character counts as. Characters that came with a newer Unicode than the oracle's are
// left out.
func TestClassesAsPython(t *testing.T) {
	c := readCharacters(t)
	known := ranges(t, c.Known)
	for name, class := range map[string]struct {
		want  string
		holds func(r rune) bool
	}{
		"islower":     {c.Islower, pyvalue.IsLower},
		"isupper":     {c.Isupper, pyvalue.IsUpper},
		"isalpha":     {c.Isalpha, pyvalue.IsAlpha},
		"isdecimal":   {c.Isdecimal, pyvalue.IsDecimal},
		"isdigit":     {c.Isdigit, func(r rune) bool { return pyvalue.IsDigit(string(r)) }},
		"isnumeric":   {c.Isnumeric, pyvalue.IsNumeric},
		"isalnum":     {c.Isalpha + " " + c.Isnumeric, pyvalue.IsAlnum},
		"isspace":     {c.Isspace, pyvalue.IsSpace},
		"isprintable": {c.Isprintable, func(r rune) bool { return r == '\\' || pyvalue.Repr(string(r))[1] != '\\' }},
	} {
		want := ranges(t, class.want)
		var wrong []rune
		for r := range rune(len(known)) {
			newer := name == "islower" && strings.ContainsRune(newlySmall, r)
			if known[r] && !newer && class.holds(r) != want[r] {
				wrong = append(wrong, r)
			}
		}

		some(t, name, wrong)
	}
}

// TestEveryCase: every character that has a case in upper, lower and title case.
func TestEveryCase(t *testing.T) {
	c := readCharacters(t)
	known := ranges(t, c.Known)
	for name, change := range map[string]struct {
		want [][4]any
		do   func(s string) string
	}{
		"upper": {c.Upper, pyvalue.Upper}, "lower": {c.Lower, pyvalue.Lower}, "title": {c.Title, pyvalue.Title},
		"capitalize": {c.Title, pyvalue.Capitalize},
	} {
		becomes := map[rune]string{}
		for _, span := range change.want {
			for r := span[0].(float64); r <= span[1].(float64); r += span[3].(float64) {
				if gap, ok := span[2].(float64); ok {
					becomes[rune(r)] = string(rune(r + gap))
				} else {
					becomes[rune(r)] = span[2].(string)
				}
			}
		}

		var wrong []rune
		for r := range rune(len(known)) {
			want, changes := becomes[r]
			if !changes {
				want = string(r)
			}

			// Beyond the first scripts few letters have cases: only what changes and what follows it.
			_, before := becomes[r-1]
			if known[r] && (changes || before || r < 0x600) && change.do(string(r)) != want {
				wrong = append(wrong, r)
			}
		}

		some(t, name, wrong)
	}
}

// TestDigitsOfAllScripts: a digit of any script is the number that it stands for. Scripts have digits in the order
// of their values, from a zero on.
func TestDigitsOfAllScripts(t *testing.T) {
	c := readCharacters(t)
	for part := range strings.FieldsSeq(c.Isdecimal) {
		var lo, hi rune
		if _, err := fmt.Sscanf(part, "%x-%x", &lo, &hi); err != nil {
			t.Fatal(err)
		}

		for r := lo; r <= hi; r++ {
			want := int64(r-lo) % 10
			if n, ok, err := pyvalue.ParseInt("-1"+string(r), 10); n != -10-want || !ok || err != nil {
				t.Errorf("%U: %d %t %v, want the digit %d", r, n, ok, err, want)
			}
			if f, ok := pyvalue.ParseFloat(string(r) + ".5"); f != float64(want)+0.5 || !ok {
				t.Errorf("%U.5: %g %t", r, f, ok)
			}
		}
	}
}
