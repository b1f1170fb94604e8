package pyvalue

import (
	"errors"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// What Python 3.11 prints.
func TestRepr(t *testing.T) {
	d := NewDict()
	d.Set("b", int64(1))
	d.Set("a", []any{nil, true, "it's"})

	for want, v := range map[string]any{
		"None": nil, "True": true, "-3": int64(-3), "1.0": 1.0, "1e-05": 1e-5, "0.0001": 1e-4, "1e+16": 1e16,
		"123456789012345.0": 123456789012345.0,
		`'a\nb'`:            "a\nb", `"it's"`: "it's", `'it\'s "x"'`: `it's "x"`, `'é\x00'`: "é\x00",
		`'\u200b'`:                            "\u200b",
		`{'b': 1, 'a': [None, True, "it's"]}`: d,
	} {
		if got := Repr(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

// Literals that Repr writes come back.
func TestLiteral(t *testing.T) {
	d := NewDict()
	d.Set("x", []any{"a'\"\\\n\u200b\x07", int64(2), 2.5, nil, false})
	v, err := ParseLiteral(Repr(d))
	if err != nil || !Equal(v, d) {
		t.Errorf("%s: %v %v", Repr(d), Repr(v), err)
	}

	for text, want := range map[string]any{
		`('a', "b",)`: []any{"a", "b"}, "(1)": int64(1), " [ ] ": []any{},
		`'a' 'b'`: "ab", "-1e3": -1000.0,
	} {
		if v, err := ParseLiteral(text); err != nil || !Equal(v, want) {
			t.Errorf("%s: %v %v", text, v, err)
		}
	}

	for _, text := range []string{
		"", "[", "['a'", "foo()", "[1 2]", "{1: 2}", "__import__('os')", "'a", "1_000",
		"0x10",
	} {
		if v, err := ParseLiteral(text); err == nil {
			t.Errorf("%s: %v", text, v)
		}
	}

	if _, err := ParseLiteral(strings.Repeat("[", 100)); !errors.Is(err, ErrDepth) {
		t.Error(err)
	}
}

func TestJSON(t *testing.T) {
	const text = `{"z": 1, "a": [1.5, "é<", null, true, {"k": 12345678901234567890}]}`
	v, err := ParseJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}

	if got := Repr(v); got != `{'z': 1, 'a': [1.5, 'é<', None, True, {'k': 1.2345678901234567e+19}]}` {
		t.Error(got)
	}

	b, err := AppendJSON(nil, v)
	if err != nil || !strings.HasPrefix(string(b), `{"z": 1, "a": [1.5, "é<", null, true, `) {
		t.Errorf("%s %v", b, err)
	}

	for _, bad := range []string{"", "{", `{"a": 1} x`, "[1,", strings.Repeat("[", 200)} {
		if _, err := ParseJSON([]byte(bad)); err == nil {
			t.Errorf("%.20s: no error", bad)
		}
	}
}

// Python's str methods: the rest in lower case, Unicode spaces, digits.
func TestText(t *testing.T) {
	if got := Capitalize("éTAT DE New York"); got != "État de new york" {
		t.Error(got)
	}
	if got := Strip("\u00a0\x1c a b \u2003\n"); got != "a b" {
		t.Errorf("%q", got)
	}
	if !IsDigit("0١") || IsDigit("") || IsDigit("1.") || IsDigit("-1") {
		t.Error("IsDigit")
	}
}

func FuzzLiteral(f *testing.F) {
	for _, s := range []string{"['a', 1, None]", `{"a": [1.5, True]}`, "(1,)", `'\u00e9\x41\n'`, "[[[[", "'", "-"} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, s string) {
		defer fuzzlimit.Watch(t, len(s))()
		v, err := ParseLiteral(s)
		if err != nil {
			return
		}
		if again, err := ParseLiteral(Repr(v)); err != nil || Repr(again) != Repr(v) {
			t.Errorf("%q: %s, again %s %v", s, Repr(v), Repr(again), err)
		}
	})
}
