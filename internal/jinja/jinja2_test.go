package jinja

import (
	"bufio"
	"os"
	"testing"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// TestRenderedAsJinja2 compares with what Python's jinja2 made of the same templates and values (testdata/render.py).
func TestRenderedAsJinja2(t *testing.T) {
	f, err := os.Open("testdata/rendered.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	lines := bufio.NewScanner(f)
	read := func() *pyvalue.Dict {
		v, err := pyvalue.ParseJSON(lines.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return v.(*pyvalue.Dict)
	}

	lines.Scan()
	given := read()
	all, _ := given.Get("names")

	names := all.(*pyvalue.Dict)
	chatNames := pyvalue.NewDict()
	for _, k := range names.Keys() {
		v, _ := names.Get(k)
		chatNames.Set(k, v)
	}

	messages, _ := given.Get("messages")
	chatNames.Set("messages", messages)
	chatNames.Set("tools", nil)
	chatNames.Set("bos", "<s>")

	n := 0
	for lines.Scan() {
		c := read()
		kind, _ := c.Get("kind")
		source, _ := c.Get("template")
		want, renders := c.Get("want")
		o, values := Tasks(), names
		if kind == "chat" {
			o, values = Chats(nil), chatNames
		}

		got, err := "", error(nil)
		tmpl, err := Parse(source.(string), o)
		if err == nil {
			got, err = tmpl.Render(t.Context(), values)
		}

		switch {
		case renders && (err != nil || got != want):
			t.Errorf("%s: %s\n got %q %v\nwant %q", kind, source, got, err, want)
		case !renders && err == nil:
			t.Errorf("%s: %s\n got %q, want an error", kind, source, got)
		}

		n++
	}

	if n < 500 {
		t.Errorf("%d templates", n)
	}
}
