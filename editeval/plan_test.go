package editeval

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// full is a plan with every key.
const full = `models:
  - a/base
  - {name: other, path: b, adapter: c, experts: dense}
editors:
  - rome
  - {name: m10, method: memit, batch: 10, hparams: {layers: [1, 2], lambda: 20, learning_rate: 5e-1, templates: [["{}"], ["So. {}"]]}}
  - {name: all, method: memit, batch: all}
edits: [x.json, y.json]
counts: [1, 5]
seeds: [0, 7]
tasks: [arc_easy, {task: t.yaml, limit: 3, num_fewshot: 2}]
data: d
texts: [a.txt, {name: b, file: c.jsonl, limit: 4}]
stats: {file: s.txt, tokens: 1000}
safety: {file: adv.csv, column: goal, limit: 5, max_tokens: 16, refusals: [I cannot]}
num_fewshot: 1
limit: 50
bootstrap_iters: 100
draws: 200
neighborhood: 5
fluency: 2
drift: 8
bins: 4
`

func TestPlan(t *testing.T) {
	p, err := Parse("plan.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}

	if p.Models[0].Name != "base" || p.Models[1].Adapter != "c" || p.Editors[2].Batch != whole ||
		p.Editors[1].Batch != 10 || *p.Tasks[1].Shots != 2 || p.Texts[0].Name != "a" {
		t.Errorf("%+v", p)
	}

	if !strings.Contains(p.Editors[1].HParams, "lambda: 20") || p.Safety.MaxTokens != 16 || p.Stats.Tokens != 1000 ||
		*p.Shots != 1 || p.Near != 5 {
		t.Errorf("%+v", p)
	}

	if err := p.Validate(); err != nil {
		t.Error(err)
	}

	p, err = Parse("plan.yaml", []byte("editors: ft\nedits: x.json\n"))
	p.complete()
	if err != nil || !slices.Equal(p.Counts, usual) || p.Editors[0].Batch != 1 || p.Editors[0].Name != "ft" {
		t.Errorf("%+v: %v", p, err)
	}
}

// TestPlanFaults: all faults of a file are found at once, each with its place and what stands there.
func TestPlanFaults(t *testing.T) {
	const bad = `models: [a/b, c/b]
editors:
  - rom
  - {method: rome, batch: 4}
  - {method: memit, hparams: {layer: [1], steps: many}}
edit: x.json
counts: [10, 1]
tasks: [{limit: 3}]
seeds: [1, 1]
`

	_, err := Parse("p.yaml", []byte(bad))
	if !errors.Is(err, ErrPlan) || !errors.Is(err, strictyaml.ErrUnknownKey) {
		t.Fatal(err)
	}

	const want = `unusable plan: p.yaml:1:15: two models are called b (HINT: give a name): "models: [a/b, c/b]"; ` +
		`p.yaml:3:5: unknown method "rom"; did you mean "rome"?: "- rom"; ` +
		`p.yaml:4:6: rome writes one fact at a time: no batch: "- {method: rome, batch: 4}"; ` +
		`p.yaml:5:31: unknown key "layer" in hparams; did you mean "layers"?: "- {method: memit, hparams: {layer: [1], steps: many}}"; ` +
		`p.yaml:5:43: hparams: steps does not fit: `
	if !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got  %s\nwant %s…", err, want)
	}

	for _, part := range []string{
		`p.yaml:6:1: unknown key "edit" in a plan; did you mean "edits"?: "edit: x.json"`,
		`p.yaml:7:14: counts go upwards: 1 after 10`,
		`p.yaml:8:10: a task needs the key "task"`, `p.yaml:9:12: seed 1 is there twice`,
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %s", part, err)
		}
	}

	if strings.Contains(err.Error(), "\n") {
		t.Error("more than one line")
	}
}

// TestPlanRefusals: what a single fault is called.
func TestPlanRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "the file is empty",
		"[1]":                                  "a plan must be a map",
		"editors: [rome]\nedits: []":           "edits is empty",
		"editors: [rome]\nedits: x\ncounts: 0": "a count must be from 1",
		"editors: [rome, rome]\nedits: x":      "two editors are called rome",
		"editors: [{method: rome, name: a/b}]\nedits: x":       "is no plain word",
		"editors: [rome]\nedits: x\ntexts: [a.txt, b/a.jsonl]": "two texts are called a",
		"editors: [rome]\nedits: x\nmodels: [.]":               "is no plain word",
		"editors: [rome]\nedits: x\nlimit: -1":                 "limit must be from 0",
		"editors: {method: ike, batch: all":                    "not valid YAML",
	} {
		if _, err := Parse("p.yaml", []byte(text)); !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}

	p := Plan{Editors: []Editor{{Method: "rome", Batch: 3}, {Method: "no"}}, Counts: []int{2, 1}}
	err := p.Validate()
	for _, want := range []string{"no files of edits", "batches of 3", `unknown method "no"`, "not upwards"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("editors: &a [rome, *a]\nedits: x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		p, err := Parse("p.yaml", text)
		if err != nil && !errors.Is(err, ErrPlan) {
			t.Errorf("%v", err)
		}

		if err == nil {
			p.complete()
			if err := p.Validate(); err != nil {
				t.Errorf("Parse lets through what Validate refuses: %v", err)
			}
		}
	})
}
