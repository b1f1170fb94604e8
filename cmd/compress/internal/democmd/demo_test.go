package democmd

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// told is a report with one value of each kind for a quick demo.
func told(t *testing.T) *Report {
	t.Helper()
	r := &Report{Quick: true}
	err := json.Unmarshal([]byte(`{
		"search": {"winner": {"formula": "W*sqrt(X)", "size": 4}, "counts": {"generated": 9, "evaluated": 3},
			"test": [{"windows": 8, "metrics": [{"metric": "dense", "ppl": 1.9}, {"metric": "wanda", "ppl": 2.5, "stderr": 0.1, "ci95_low": -0.1, "ci95_high": 0.2, "winner_is": "not told apart"},
				{"metric": "expr:W*sqrt(X)", "ppl": 2.4}]}],
			"candidates": [{"size": 4, "quality": 1, "full": 0.9}, {"size": 5, "quality": 2}, {"size": 6, "quality": 2, "full": 2}, {"size": 7, "quality": 1, "full": 0.8}]},
		"prune": {"seqlen": 256, "dense": {"ppl": 1.9, "stderr": 0.1, "nll": 0.64, "tokens": 100}, "packed_bytes": {"0.5": 600000, "2:4": 610000}, "runs": [
			{"method": "wanda", "target": "0.5", "ppl": 2.2, "stderr": 0.1, "nll": 0.8, "sparsity": 0.5}, {"method": "wanda", "target": "2:4", "ppl": 2.8, "nll": 1, "sparsity": 0.5},
			{"method": "tree:x/best.json+sparsegpt", "target": "0.5", "ppl": 2.1, "nll": 0.7, "sparsity": 0.5}, {"method": "tree:x/best.json+sparsegpt", "target": "2:4", "ppl": 2.9, "nll": 1.1, "sparsity": 0.5}]},
		"conflict": [{"models": ["a", "b", "c"], "groups": [{"name": "pre", "layer": -1, "elements": 20000}, {"name": "layer 0", "elements": 20000}, {"name": "post", "elements": 9}],
				"per_tensor": [{"name": "model.layers.0.self_attn.q_proj.weight", "layer": 0, "excess": {"disagree": 1.1}}, {"name": "model.norm.weight", "layer": -1}]},
			{"models": ["a", "b"], "groups": [{"name": "pre", "layer": -1, "elements": 20000, "excess": {"disagree": 1.5}}, {"name": "layer 0", "elements": 20000, "excess": {"disagree": 0.5}}], "whole": {"excess": {"disagree": 1.2}}},
			{"models": ["a", "c"], "groups": [{"name": "pre", "layer": -1, "elements": 20000}, {"name": "layer 0", "elements": 20000}], "whole": {"excess": {"disagree": 0.7}}}],
		"adapt": [{"kind": "lora", "trainable_parameters": 400, "bytes": 800, "steps": [{"loss": 3}, {"loss": 1}]}, {"kind": "mos", "trainable_parameters": 100, "bytes": 200, "steps": [{"loss": 2}]}],
		"edit": [{"editor": "", "edits": 0, "abilities": {"add": {"value": 0.8}}}, {"editor": "ft", "edits": 1, "held": {"mean": 1, "low": 0.2, "high": 1}}, {"editor": "ft", "edits": 2, "held": {"mean": 0.5, "low": 0.1, "high": 0.9},
			"abilities": {"add": {"value": 0.4, "lost": 1}, "text_text": {"value": 123456, "lost": 1}}}],
		"tests": [{"a": "base", "b": "wanda-50", "task": "base", "metric": "acc", "n": 90, "difference": -0.2, "low": -0.3, "high": -0.1, "p": 0.0001}]
	}`), r)
	if err != nil {
		t.Fatal(err)
	}

	e := 0.05
	for _, m := range (builder{quick: true}).models() {
		s := Score{
			Model: m.name, What: m.what, Bytes: 1000, Perplexity: Figure{Value: 1e5, N: 10},
			Tasks: map[string]Figure{},
		}
		if m.what == "pruned" || m.what == "quantised" {
			s.Divergence = &Divergence{KL: 0.125, Stderr: &e, Same: 0.875}
		}
		for i, k := range tasks {
			s.Tasks[k.name] = Figure{Value: float64(i) / 10, Stderr: &e, N: 12}
		}
		r.Scores = append(r.Scores, s)
	}

	return r
}

// TestPage: well-formed, alone, with every table and its rows, a heading and words for every picture, and no time.
func TestPage(t *testing.T) {
	r := told(t)
	r.Stages = []Stage{{Name: "search", Seconds: 98765.4321}}
	var b bytes.Buffer
	if err := r.page(story("demo-out", nil, true), 0).HTML(&b); err != nil {
		t.Fatal(err)
	}

	text := b.String()
	if bad := regexp.MustCompile(`https?://|<script|@import|url\(|NaN|%!|98765`).FindString(text); bad != "" {
		t.Errorf("the page has %q", bad)
	}
	plain := regexp.MustCompile(`</?span>`).ReplaceAllString(text, "")

	rows, name := map[string]int{}, ""
	count := map[string]int{}
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}

		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}

		count[e.Name.Local]++
		switch e.Name.Local {
		case "div", "svg":
			for _, a := range e.Attr {
				if a.Name.Local == "aria-label" {
					name = a.Value
				}
			}
		case "tr":
			rows[name]++
		}
	}

	models := len((builder{quick: true}).models())
	for table, want := range map[string]int{
		"Models and tasks": models, "Perplexity by method and fraction removed": 3,
		"60 % zeros, on text that nothing was chosen by": 3,
		"Pairs of experts, layer by layer":               2, "All four, by layer and matrix": 1,
		"Size and divergence from the base": 5,
		"Merges on the experts' tasks":      5,
		"Adapters":                          2,
		"Editors after 2 facts":             1,
		"What is left after 2 edits":        2, "Editors": 3, "B against A": 1,
	} {
		if rows[table]-1 != want {
			t.Errorf("table %q has %d rows, want %d", table, rows[table]-1, want)
		}
	}

	if len(rows) != 12 || count["desc"] != 14 || count["figure"] != 10 {
		t.Errorf("%d tables, %d described drawings, %d figures", len(rows), count["desc"], count["figure"])
	}

	for _, want := range []string{
		"found+sparsegpt", "2.100 *", "1.2e+05 *", "0.400 *", "Left out: 1 above 1.5",
		"compress merge demo-out/demo/mediate.yaml --out demo-out/merge/mediated", "quick demo",
	} {
		if !strings.Contains(plain, strings.ReplaceAll(want, "+", "&#43;")) && !strings.Contains(plain, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestSummary(t *testing.T) {
	text := told(t).summary()
	for _, want := range []string{
		"Search (60 % zeros)", "perplexity 2.40 with the found formula", "worse: wanda 2.50",
		"Prune (found+SparseGPT, 50 % zeros)", "perplexity 1.90 → 2.10",
		"packed 600 kB instead of 1 kB", "1 kB instead of 1 kB", "KL 0.1250 nats a token",
		"87.5 % of the next tokens", "a and b contradict each other most", "1.20 times chance (somewhat more than " +
			"unrelated",
		"50 % hold", "400 and 100 trained parameters", "    editor     edits hold   sums\n    ft               50 %  " +
			" 0.40\n",
	} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}

	for line := range strings.Lines(text) {
		if n := len([]rune(line)); n > summaryWidth+1 {
			t.Errorf("a line of %d letters: %s", n, line)
		}
	}
}

// TestFront: points that another one beats in one coordinate and equals in the other are not on it.
func TestFront(t *testing.T) {
	s := split([][2]float64{{3, 1}, {1, 5}, {2, 5}, {1, 6}, {2, 2}, {4, 1}})
	if len(s[0].X) != 6 || len(s[1].X) != 3 || s[1].X[2] != 3 || s[1].Y[0] != 5 {
		t.Errorf("%v", s)
	}
}

// TestStory: what a step reads is written by an earlier one, or comes with the program, and nothing is written twice.
func TestStory(t *testing.T) {
	for _, quick := range []bool{false, true} {
		made := map[string]bool{}
		for _, s := range story("O", []string{"--seed", "3"}, quick) {
			for _, p := range s.steps {
				for _, a := range p.args {
					for path := range strings.SplitSeq(strings.TrimPrefix(strings.TrimSuffix(a, "+sparsegpt"), "tree:"),
						",") {
						path = strings.TrimPrefix(path, "tree:")
						known := !strings.HasPrefix(path, "O/") || strings.HasPrefix(path, "O/nano/") ||
							strings.HasPrefix(path, "O/demo/")
						for dir := path; !known && dir != "."; dir = filepath.Dir(dir) {
							known = made[dir]
						}
						for _, out := range p.out {
							known = known || filepath.Clean(path) == out
						}
						if !known {
							t.Errorf("%s: nobody has written %s", p.line(), path)
						}
					}
				}

				for _, out := range p.out {
					if made[out] {
						t.Errorf("%s: %s is written twice", p.line(), out)
					}
					made[out] = true
				}

				if !strings.HasSuffix(p.line(), " --seed 3") || p.cost <= 0 {
					t.Errorf("%s: common flags or costs are missing", p.line())
				}
			}
		}
	}
}
