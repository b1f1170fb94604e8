package config

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

func node(t *testing.T, text string) *Node {
	t.Helper()
	c, err := NewCursor(text)
	if err != nil {
		t.Fatal(err)
	}

	v, err := c.Raw()
	if err != nil {
		t.Fatal(err)
	}

	n, err := NewNode(v, 0)
	if err != nil {
		t.Fatal(err)
	}

	return n
}

func TestNode(t *testing.T) {
	n := node(t,
		` {"type":"X","s":"a\n\u00e9\ud83d\ude00","t":true,"i":-3,"c":"é","o":{"type":"Y"},"l":[{"type":"Z"}],"z":null} `)
	if n.Kind != "X" || n.Text("s", "") != "a\né😀" || n.Text("none", "d") != "d" || n.Need("s") == "" {
		t.Errorf("strings: %+v", n)
	}

	if !n.Flag("t", false) || !n.Flag("none", true) || n.Integer("i", 0, -5, 5) != -3 ||
		n.Integer("none", 7, 0, 9) != 7 {
		t.Errorf("flags and numbers")
	}

	if n.Char("c", 'x') != 'é' || n.Char("none", 'x') != 'x' || n.Object("o").Kind != "Y" ||
		n.List("l")[0].Kind != "Z" || n.Has("z") {
		t.Errorf("characters and objects")
	}

	if n.Err != nil {
		t.Error(n.Err)
	}
}

func TestNodeErrors(t *testing.T) {
	for name, read := range map[string]func(*Node){
		"text": func(n *Node) { n.Text("i", "") }, "need": func(n *Node) { n.Need("none") },
		"flag":    func(n *Node) { n.Flag("s", false) },
		"integer": func(n *Node) { n.Integer("s", 0, 0, 1) }, "range": func(n *Node) { n.Integer("i", 0, 0, 1) },
		"char": func(n *Node) { n.Char("s", 'x') }, "object": func(n *Node) { n.Object("s") },
		"no object": func(n *Node) { n.Object("none") },
		"list":      func(n *Node) { n.List("s") }, "no list": func(n *Node) { n.List("none") },
		"item": func(n *Node) { n.List("l") },
	} {
		n := node(t, `{"type":"X","s":"ab","i":9,"l":[1]}`)
		read(n)
		if !errors.Is(n.Err, ErrSyntax) {
			t.Errorf("%s: got %v", name, n.Err)
		}
	}
}

func TestRawRefuses(t *testing.T) {
	for _, text := range []string{
		``, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{1:2}`, `[1,]`, `[1 2]`, `"a`, "\"a\nb\"", `nul`,
		`01x`, `+`, `{"a":1]`,
		strings.Repeat("[", 100) + strings.Repeat("]", 100),
	} {
		c, err := NewCursor(text)
		if err == nil {
			_, err = c.Raw()
		}
		if !errors.Is(err, ErrSyntax) {
			t.Errorf("%.30q: got %v", text, err)
		}
	}

	if _, err := NewCursor("\xff"); !errors.Is(err, ErrSyntax) {
		t.Errorf("invalid UTF-8: got %v", err)
	}
}

func TestStringRefuses(t *testing.T) {
	for _, text := range []string{
		`"\q"`, `"\u12"`, `"\uzzzz"`, `"\ud800"`, `"\ud800\u0041"`, `"\udc00"`, `"\`,
		"\"\\n\x01\"", `a`, `"\n`,
	} {
		c := &Cursor{s: text}
		if _, err := c.String(); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func TestNumbers(t *testing.T) {
	for text, ok := range map[string]bool{
		"1": true, "-7": true, "": false, "x": false, "1.5": true,
		"99999999999999999999": false,
	} {
		if _, err := (&Cursor{s: text}).Integer(); (err == nil) != ok {
			t.Errorf("%q: got %v", text, err)
		}
	}

	if f, err := (&Cursor{s: " -1.5e1,"}).Float(); err != nil || f != -15 {
		t.Errorf("got %g, %v", f, err)
	}
	if _, err := (&Cursor{s: "x"}).Float(); !errors.Is(err, ErrSyntax) {
		t.Errorf("got %v", err)
	}
}

func TestUnknown(t *testing.T) {
	err := Unknown("x", map[string]int{"b": 1, "a": 2})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), `"x" (known: a, b)`) {
		t.Error(err)
	}
}

// FuzzString compares strings with encoding/json, which is more lenient about lone surrogates only.
func FuzzString(f *testing.F) {
	f.Add(`"a\n\u00e9\ud83d\ude00\/"`)
	f.Add(`"\ud800"`)
	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()

		c, err := NewCursor(text)
		if err != nil {
			return
		}

		s, err := c.String()
		if err == nil {
			err = c.End()
		}

		var want string
		jsonErr := json.Unmarshal([]byte(strings.TrimPrefix(text, "\ufeff")), &want)
		if err == nil && (jsonErr != nil || s != want) {
			t.Fatalf("%q: got %q, want %q, %v", text, s, want, jsonErr)
		}

		if err != nil && jsonErr == nil && !strings.Contains(want, "\ufffd") && strings.TrimSpace(text) != "null" {
			t.Fatalf("%q: refused with %v", text, err)
		}
	})
}
