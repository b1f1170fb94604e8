package ordered_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/ordered"
	"github.com/modelcompress/compress/internal/hostile"
)

func TestOrderSurvives(t *testing.T) {
	const text = `{"z": 1, "a": {"y": [1, 2.50], "b": null}, "m": "<&>"}`
	list, err := ordered.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	list, err = ordered.Set(list, "a2", true)
	if err != nil {
		t.Fatal(err)
	}
	if list, err = ordered.Set(list, "z", nil); err != nil {
		t.Fatal(err)
	}
	if list, err = ordered.Set(list, "m", 7); err != nil {
		t.Fatal(err)
	}
	got, err := ordered.Join(list)
	want := "{\n  \"a\": {\n    \"y\": [\n      1,\n      2.50\n    ],\n    \"b\": null\n  },\n  \"m\": 7,\n  \"a2\": true\n}\n"
	if err != nil || string(got) != want {
		t.Errorf("%v: %s", err, got)
	}
	if v := ordered.Get(list, "m"); string(v) != "7" || ordered.Get(list, "z") != nil {
		t.Errorf("m is %s", v)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1,"b":{"c":[]}}`, `[]`, `{"a"`, `{"a":}`, `{"a":1}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer hostile.Watch(t, len(data))()
		list, err := ordered.Parse(data)
		if err != nil || !json.Valid(data) {
			return
		}
		text, err := ordered.Join(list)
		if err != nil {
			t.Fatal(err)
		}
		var a, b any
		if json.Unmarshal(data, &a) != nil || json.Unmarshal(text, &b) != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%q became %q", data, text)
		}
	})
}

// TestNoObject: the message says why a text is no object.
func TestNoObject(t *testing.T) {
	for text, want := range map[string]string{
		"": "the text is empty", " \n": "the text is empty", "\ufeff{}": "byte order mark", "[1]": "begins with [", `{"a": `: "unexpected EOF", "x": "invalid character",
	} {
		if _, err := ordered.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), "not a JSON object: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
