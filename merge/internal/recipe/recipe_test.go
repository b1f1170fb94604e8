package recipe

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOrderOfDocuments(t *testing.T) {
	text := `
name: third
merge_method: linear
models: [{model: first}, {model: second}]
---
name: second
merge_method: passthrough
models: [{model: first}]
---
name: first
merge_method: passthrough
models: [{model: elsewhere}]
---
merge_method: passthrough
models: [{model: third}]
`

	docs, err := Parse("r.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}

	ordered, err := Order(docs)
	var got []string
	for _, d := range ordered {
		got = append(got, d.Name)
	}
	if err != nil || !slices.Equal(got, []string{"first", "second", "third", ""}) {
		t.Errorf("%v %q", err, got)
	}

	docs, err = Parse("r.yaml", []byte("name: a\nmerge_method: passthrough\nmodels: [{model: b}]\n---\nname: "+
		"b\nmerge_method: passthrough\nmodels: [{model: a}]\n"), nil)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := Order(docs); err == nil ||
		err.Error() != "r.yaml:1:1: these documents need each other's results: a, b" {
		t.Errorf("%v", err)
	}

	_, err = Parse("r.yaml", []byte("merge_method: passthrough\nmodels: [{model: b}]\n---\nmerge_method: "+
		"passthrough\nmodels: [{model: a}]\n"), nil)
	if err == nil {
		t.Error("two documents without a name")
	}
}

func TestReferences(t *testing.T) {
	for text, want := range map[string]Ref{
		"a":                      {Model: Source{Path: "a"}},
		"org/name@main":          {Model: Source{Path: "org/name", Revision: "main"}},
		"a+b":                    {Model: Source{Path: "a"}, Adapter: Source{Path: "b"}},
		"a@1+b@2":                {Model: Source{Path: "a", Revision: "1"}, Adapter: Source{Path: "b", Revision: "2"}},
		"/some where/with space": {Model: Source{Path: "/some where/with space"}},
	} {
		if got, err := ParseRef(text); err != nil || got != want || got.String() != text {
			t.Errorf("%q: %+v %v", text, got, err)
		}
	}

	for _, text := range []string{"", "a+b+c", "a@b@c", "a+b@c@d", "@r", "a@", "a+", "+b"} {
		if got, err := ParseRef(text); err == nil {
			t.Errorf("%q gives %+v", text, got)
		}
	}
}

func TestLocate(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{
		"here/model", "hub/models--org--name/refs", "hub/models--org--name/snapshots/abc",
		"named",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.WriteFile(filepath.Join(root, "hub/models--org--name/refs/main"), []byte("abc\n"), 0o644); err != nil {
		t.Fatal(err)
	}

	model := filepath.Join(root, "hub/models--org--name/snapshots/abc/x.gguf")
	if err := os.WriteFile(model, []byte("GGUF"), 0o644); err != nil {
		t.Fatal(err)
	}

	p := Places{
		Recipe: filepath.Join(root, "here"), Named: map[string]string{"stage": filepath.Join(root, "named")},
		Cache: filepath.Join(root, "hub"),
	}
	for s, want := range map[Source]string{
		{Path: "model"}:                            "here/model",
		{Path: "stage"}:                            "named",
		{Path: "org/name"}:                         "hub/models--org--name/snapshots/abc",
		{Path: "org/name", Revision: "abc"}:        "hub/models--org--name/snapshots/abc",
		{Path: "org/name/x.gguf"}:                  "hub/models--org--name/snapshots/abc/x.gguf",
		{Path: "org/name", Revision: "abc/x.gguf"}: "hub/models--org--name/snapshots/abc/x.gguf",
		{Path: "model", Revision: "x"}:             "",
		{Path: "org/name", Revision: "other"}:      "",
		{Path: "org/name", Revision: ".."}:         "",
		{Path: "../../org/name"}:                   "",
		{Path: "nowhere"}:                          "",
	} {
		got, err := Locate(s, p)
		if want == "" {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%v: %q %v", s, got, err)
			}
			continue
		}

		if err != nil || got != filepath.Join(root, want) {
			t.Errorf("%v: %q %v", s, got, err)
		}
	}
}

// TestMissingFoldersAreAllNamed: with their places, whatever mentions them.
func TestMissingFoldersAreAllNamed(t *testing.T) {
	docs, err := Parse("r.yaml", []byte("merge_method: ties\nbase_model: ./no-base\nmodels:\n- {model: ., "+
		"parameters: {weight: 1}}\n"+
		"- {model: .+./no-adapter, parameters: {weight: 1}}\n"+
		"- {model: ./no-model, parameters: {weight: 1}}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}

	_, err = docs[0].Folders(Places{})
	if !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}

	for _, want := range []string{
		"r.yaml:2:13: ", "r.yaml:5:4: ", "r.yaml:6:4: ", "no-base", "no-adapter",
		"no-model",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: no %q", err, want)
		}
	}
}
