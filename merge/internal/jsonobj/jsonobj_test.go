package jsonobj

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/hostile"
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
	for _, text := range []string{"", "[]", "null", "{", `{"a":1,"a":2}`, `{"a":1}x`, `{"a"}`, `{"a":}`, "{\"a\":1}{}", strings.Repeat("[", 20000)} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrObject) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// FuzzParse: an object that parses is written back to one that parses to the same text.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,{"b":null}]}`, `{"a":"\u00e9"}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer hostile.Watch(t, len(text))()
		o, err := Parse([]byte(text))
		if err != nil {
			return
		}
		first, err := o.Indent()
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
