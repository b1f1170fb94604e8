package orderedjson

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

func TestParseKeepsOrderAndText(t *testing.T) {
	text := `{"z":1.0,"a":{"y":1e-05,"x":"<é>"},"l":[1,2]}`
	o, err := Parse([]byte(text))
	if err != nil || !slices.Equal(o.Keys(), []string{"z", "a", "l"}) {
		t.Fatal(err, o)
	}

	if got, err := o.Compact(); err != nil || string(got) != text {
		t.Errorf("%v %s", err, got)
	}
	if err := o.Put("a", "<b>"); err != nil {
		t.Fatal(err)
	}

	o.Set("new", []byte("null"))
	o.Delete("l")
	got, err := o.Indent()
	if want := "{\n  \"z\": 1.0,\n  \"a\": \"<b>\",\n  \"new\": null\n}\n"; err != nil || string(got) != want {
		t.Errorf("%v %s", err, got)
	}

	var s string
	if !o.Decode("a", &s) || s != "<b>" || o.Decode("new", &s) || o.Decode("z", &s) || o.Decode("none", &s) {
		t.Error("Decode")
	}
}

func TestFindFollowsAPath(t *testing.T) {
	o, _ := Parse([]byte(`{"a":{"b":{"c":1}},"d":2}`))
	if b, ok := o.Find("a.b"); !ok || !b.Has("c") {
		t.Error("a.b")
	}
	for _, path := range []string{"a.x", "d", "d.e"} {
		if _, ok := o.Find(path); ok {
			t.Error(path)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", "[]", "null", "{", `{"a":1,"a":2}`, `{"a":1}x`, `{"a"}`, `{"a":}`, "{\"a\":1}{}",
		strings.Repeat("[", 20000),
	} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrObject) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// FuzzParse: an object that parses is written back to one that parses to the same text.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":[1,{"b":null}]}`, `{"a":"\u00e9"}`, `{"a":1,"b":{"c":[]}}`, `[]`, `{"a"`, `{"a":}`, `{"a":1}}`,
		`{"a":1,"a":2}`,
	} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()

		o, err := Parse([]byte(text))
		if err != nil {
			return
		}

		var was, is any
		first, err := o.Indent()
		// Numbers that no float64 holds are kept as well, but cannot be compared so.
		if err == nil && json.Unmarshal([]byte(text), &was) == nil &&
			(json.Unmarshal(first, &is) != nil || !reflect.DeepEqual(was, is)) {
			t.Fatalf("%q became %q", text, first)
		}

		if err != nil {
			t.Fatal(err)
		}

		again, err := Parse(first)
		if err != nil {
			t.Fatal(err)
		}

		if second, err := again.Indent(); err != nil || string(first) != string(second) {
			t.Fatalf("%s\n%s", first, second)
		}
	})
}

// TestOrderSurvives: what is edited stays at its place, the rest as it was written, and a clone changes on its own.
func TestOrderSurvives(t *testing.T) {
	o, err := Parse([]byte(`{"z": 1, "a": {"y": [1, 2.50], "b": null}, "m": "<&>", "<k>": 0}`))
	if err != nil {
		t.Fatal(err)
	}

	before := o.Clone()
	if err := errors.Join(o.Put("a2", true), o.Put("m", 7)); err != nil {
		t.Fatal(err)
	}

	o.Delete("z")

	got, err := o.Indent()
	want := "{\n  \"a\": {\n    \"y\": [\n      1,\n      2.50\n    ],\n    \"b\": null\n  },\n  \"m\": 7,\n  " +
		"\"<k>\": 0,\n  \"a2\": true\n}\n"
	if err != nil || string(got) != want {
		t.Errorf("%v: %s", err, got)
	}

	if o.Has("z") || o.Get("z") != nil || string(o.Get("m")) != "7" {
		t.Error("what was removed or set is not")
	}
	if !slices.Equal(before.Keys(), []string{"z", "a", "m", "<k>"}) || string(before.Get("m")) != `"<&>"` {
		t.Error("the clone has changed")
	}

	var keys []string
	for key, value := range before.All() {
		if string(value) != string(before.Get(key)) {
			t.Errorf("%s: %s", key, value)
		}

		keys = append(keys, key)
		if key == "m" {
			break
		}
	}

	if !slices.Equal(keys, []string{"z", "a", "m"}) {
		t.Error(keys)
	}
}

// TestNoObject: the message says why a text is no object.
func TestNoObject(t *testing.T) {
	for text, want := range map[string]string{
		"": "the text is empty", " \n": "the text is empty", "\ufeff{}": "byte order mark", "[1]": "begins with [",
		`{"a": `: `key "a": unexpected EOF`, "{": "unexpected EOF", "x": "invalid character",
		`{"a":1,"b":2,"a":1}`: `key "a" is given twice`,
		`{} {}`:               "something follows it",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), "not a JSON object: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestNothing: a nil object reads as an empty one.
func TestNothing(t *testing.T) {
	var o *Object
	var v any
	if o.Has("a") || o.Get("a") != nil || o.Decode("a", &v) || len(o.Keys()) != 0 || len(o.Clone().Keys()) != 0 {
		t.Error("nil has keys")
	}
	for key := range o.All() {
		t.Error(key)
	}
}

// TestTwice: the same key of two objects is no fault, a key that is spelt differently but the same is.
func TestTwice(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "", `{"a": 1, "b": 2}`: "", `{"a": {"a": 1}, "b": [{"a": 1}, {"a": "a"}]}`: "",
		`{"a": "b", "b": "a"}`: "", `{"a": [], "b": {}, "c": [[]], "d": 1}`: "", `[1, "a", "a"]`: "",
		`{"a": 1, "b": 2, "a": 3}`:                  "a",
		`{"a": 1, "\u0061": 3}`:                     "a",
		`{"rope": {"x": [1, {"f": 1, "f": 2}]}}`:    "rope.x.f",
		`{"b": {"c": {}}, "d": [], "b": {"c": {}}}`: "b",
		`[{"a": 1}, {"b": 1, "b": 1}]`:              "b",
	} {
		if got := Twice([]byte(text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
