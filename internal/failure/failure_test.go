package failure

import (
	"errors"
	"fmt"
	"testing"
)

func TestKindAndHint(t *testing.T) {
	plain := errors.New("plain")
	broken := New("broken", "mend it")
	wrong := Misuse("wrong", "")

	for _, c := range []struct {
		err   error
		usage bool
		hint  string
	}{
		{nil, false, ""},
		{plain, false, ""},
		{broken, false, "mend it"},
		{wrong, true, ""},
		{fmt.Errorf("file: %w", broken), false, "mend it"},
		{errors.Join(plain, broken, wrong), true, "mend it"},
		{fmt.Errorf("%w: %w", broken, fmt.Errorf("deep: %w", wrong)), true, "mend it"},
		{fmt.Errorf("%w: %w", wrong, New("other", "do the other")), true, "do the other"},
		{Hinted(wrong, "ask for less"), true, "ask for less"},
		{fmt.Errorf("file: %w", Hinted(broken, "mend it here")), false, "mend it here"},
		{fmt.Errorf("file: %w", Hinted(wrong, "do it right")), true, "do it right"},
		{Hinted(fmt.Errorf("file: %w", broken), "buy another"), false, "buy another"},
	} {
		if usage := IsUsage(c.err); usage != c.usage {
			t.Errorf("%v: usage %v, want %v", c.err, usage, c.usage)
		}
		if hint := Hint(c.err); hint != c.hint {
			t.Errorf("%v: hint %q, want %q", c.err, hint, c.hint)
		}
	}

	if err := Hinted(broken, "mend it here"); !errors.Is(err, broken) || err.Error() != "broken" {
		t.Errorf("%v is not wrapped, or its hint is in its text", err)
	}

	if err := fmt.Errorf("file: %w", broken); !errors.Is(err, broken) || err.Error() != "file: broken" {
		t.Errorf("%v is not wrapped, or its hint is in its text", err)
	}
	if err := Hinted(broken, "buy another"); !errors.Is(err, broken) || err.Error() != "broken" {
		t.Errorf("%v is not wrapped, or its hint is in its text", err)
	}
}

// TestJoin: a kind is said once for faults that follow each other, every fault stays one, and nothing is no error.
func TestJoin(t *testing.T) {
	wrong, other := Misuse("bad options", "mend it"), New("other", "")
	a, b := fmt.Errorf("%w: a", wrong), fmt.Errorf("%w: b", wrong)
	deep, plain := fmt.Errorf("file: %w", wrong), errors.New("bad options: plain")

	for want, faults := range map[string][]error{
		"bad options: a":                           {nil, a},
		"bad options: a\nb":                        {a, nil, b},
		"bad options: a\nother: c\nbad options: b": {a, fmt.Errorf("%w: c", other), b},
		"bad options: a\nfile: bad options":        {a, deep},
		"bad options: a\nbad options: plain":       {a, plain},
		"bad options: a\nb\na":                     {Join(a, b), a},
		"file: bad options\nfile: bad options":     {deep, deep},
		"other: c\nbad options: a\nb\nbad options": {fmt.Errorf("%w: c", other), a, b, wrong},
	} {
		err := Join(faults...)
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
		if !errors.Is(err, wrong) || !IsUsage(err) || Hint(err) != "mend it" {
			t.Errorf("%v: not one of its kind, or without its hint", err)
		}
	}
	if err := Join(nil, nil); err != nil || Join() != nil {
		t.Errorf("%v of nothing", err)
	}
}

// TestOthers: the mark goes with what wraps it, beside the kind and the hint, and the unmarked stays as it was.
func TestOthers(t *testing.T) {
	plain := Misuse("unfinished work of others", "start over")
	marked := Others(plain)
	err := fmt.Errorf("out: %w", errors.Join(errors.New("first"), marked))
	if !IsOthers(err) || !IsUsage(err) || Hint(err) != "start over" || !errors.Is(err, marked) {
		t.Errorf("%v: others %t, usage %t, hint %q", err, IsOthers(err), IsUsage(err), Hint(err))
	}
	if IsOthers(plain) || IsOthers(nil) || IsOthers(New("full", "")) {
		t.Error("marked without a mark")
	}
}

// TestUnmarshal: a value of another type is named as the text has it, and other errors stay.
func TestUnmarshal(t *testing.T) {
	var v struct {
		Bits  int      `json:"bits"`
		On    bool     `json:"on"`
		Name  *string  `json:"name"`
		Names []string `json:"names"`
		Inner struct {
			Size int `json:"size"`
		} `json:"inner"`
	}
	for text, want := range map[string]string{
		`{"bits": "four"}`:        "bits: a string, where a whole number is expected",
		`{"bits": 4.5}`:           "bits: 4.5, where a whole number is expected",
		`{"on": 1}`:               "on: a number, where true or false is expected",
		`{"name": {}}`:            "name: an object, where a string is expected",
		`{"names": true}`:         "names: true or false, where a list is expected",
		`{"inner": {"size": []}}`: "inner.size: a list, where a whole number is expected",
		`[]`:                      "a list, where an object is expected",
		`{`:                       "unexpected end of JSON input",
	} {
		if err := Unmarshal([]byte(text), &v); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if err := Unmarshal([]byte(`{"bits": 4}`), &v); err != nil || v.Bits != 4 {
		t.Error(v.Bits, err)
	}
}
