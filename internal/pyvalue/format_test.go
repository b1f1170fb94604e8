package pyvalue

import (
	"errors"
	"testing"
)

// Keys that are equal are one key, as in Python: 1, 1.0 and True; a text is none of them.
func TestKeys(t *testing.T) {
	d := NewDict()
	for i, k := range []any{
		int64(1), 1.0, true, "1", nil,
		Tuple{int64(1), "a"},
		Tuple{1.0, "a"},
		"\xff1", "None",
		int64(1<<53 + 1), float64(1 << 53),
	} {
		if err := d.SetKey(k, int64(i)); err != nil {
			t.Fatal(err)
		}
	}

	if got, want := Repr(d), "{1: 2, '1': 3, None: 4, (1, 'a'): 6, '\ufffd1': 7, 'None': 8, 9007199254740993: 9, "+
		"9007199254740992.0: 10}"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}

	if err := d.SetKey([]any{}, nil); !errors.Is(err, ErrKey) {
		t.Error(err)
	}
	if v, ok := d.Get("\xff1"); !ok || v != int64(7) {
		t.Error(v, ok)
	}
}

// TestFormatFaults: formats that do not fit are errors, as are widths that would fill memory.
func TestFormatFaults(t *testing.T) {
	for _, c := range []struct {
		format string
		args   any
	}{
		{"%d", "x"},
		{"%s %s", "x"},
		{"%s", Tuple{"a", "b"}},
		{"%", "a"},
		{"%q", "a"},
		{"%(a)s", "x"},
		{"%999999999d", int64(1)},
		{"%.99999999f", 1.0},
		{"%*d", Tuple{int64(1 << 40), int64(1)}},
		{"%c", "ab"},
	} {
		if _, err := Percent(c.format, c.args); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", c.format, err)
		}
	}

	none := func(string) (any, bool) { return nil, false }
	for _, f := range []string{"{", "}", "{0", "{1}", "{x}", "{:zz}", "{:999999999}", "{:d}", "{!q}", "{:.}"} {
		if _, err := Fields(f, []any{"a"}, none); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", f, err)
		}
	}
}
