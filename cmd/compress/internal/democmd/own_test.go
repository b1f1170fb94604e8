package democmd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOwnStory: what a step of a model's demo reads is there or was written by an earlier one, nothing is written
// twice, and the model's path may have blanks.
func TestOwnStory(t *testing.T) {
	for _, quick := range []bool{false, true} {
		made := map[string]bool{}
		used := 0
		for _, s := range ownStory(Options{Out: "O", Model: "my model", Quick: quick}, []string{"--seed", "3"}) {
			for _, p := range s.steps {
				if slices.Contains(p.args, modelWord) {
					t.Errorf("%s: the model is not named", p.line())
				}
				if slices.Contains(p.args, "my model") {
					used++
				}

				for _, a := range p.args {
					known := !strings.HasPrefix(a, "O/") || strings.HasPrefix(a, "O/demo/") || strings.HasPrefix(a,
						"O/text/")
					for dir := a; !known && dir != "."; dir = filepath.Dir(dir) {
						known = made[dir]
					}
					if !known && !slices.Contains(p.out, filepath.FromSlash(a)) {
						t.Errorf("%s: nobody has written %s", p.line(), a)
					}
				}
				for _, out := range p.out {
					if made[out] {
						t.Errorf("%s: %s is written twice", p.line(), out)
					}
					made[out] = true
				}
				if p.cost <= 0 || !strings.HasSuffix(p.line(), " --seed 3") {
					t.Errorf("%s: cost or common flags are missing", p.line())
				}
			}
		}
		if used < 10 {
			t.Errorf("%d steps work on the model", used)
		}
	}
}

// TestOwnTexts: a text of the user's is cut at the end of a line and shared out four to one; the pages are two texts.
func TestOwnTexts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text.txt")
	all := strings.Repeat("a line of text\n", 2000)
	if err := os.WriteFile(file, []byte(all), 0o666); err != nil {
		t.Fatal(err)
	}

	d := &demo{o: Options{Data: file}}
	calib, test, err := d.texts()
	if err != nil || string(calib)+string(test) != all || !strings.HasSuffix(string(calib), "\n") ||
		len(calib) < 3*len(test) {
		t.Errorf("%v: %d and %d", err, len(calib), len(test))
	}

	d.o.Data = ""
	calib, test, err = d.texts()
	if err != nil || len(calib) < 50_000 || len(test) < testBytes {
		t.Errorf("%v: pages of %d and %d", err, len(calib), len(test))
	}
	if slices.Equal(calib[:100], test[:100]) {
		t.Error("one text twice")
	}
}

// TestOwnFacts: the facts of the story are those of the shipped file, in its order.
func TestOwnFacts(t *testing.T) {
	data, err := os.ReadFile("../../../../testdata/demo/facts.json")
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, f := range ownFacts {
		for _, want := range []string{`"str": "` + f.old + `"`, `"str": "` + f.new + `"`, `"` + f.prompt + `"`} {
			i := strings.Index(string(data[at:]), want)
			if i < 0 {
				t.Fatalf("%s is not in the file, or not in this place", want)
			}
			at += i
		}
	}
}

// TestOwnPage: one page with its cards, tables and pictures; a bar off the scale is named instead.
func TestOwnPage(t *testing.T) {
	e := 0.5
	r := &OwnReport{Model: "m/own", Parameters: 1234567, Prune: Prune{Dense: Pruned{Perplexity: 20}, Runs: []Pruned{
		{Method: "magnitude", Perplexity: 900}, {Method: "wanda", Perplexity: 40}, {
			Method:     "sparsegpt",
			Perplexity: 30,
		},
	}}, Edits: []OwnEdit{
		{Prompt: "P", New: "Rome", Before: " Paris\nand", After: " Rome."}, {New: "Oslo", After: " Tokyo"},
	}}
	for _, f := range forms {
		r.Scores = append(r.Scores, OwnScore{
			Name: f.name, Bytes: 5e6, Perplexity: Figure{25, &e, 3000}, Divergence: &Divergence{KL: .25, Same: .75},
			Questions: Figure{.5, &e, 40},
		})
	}

	var b strings.Builder
	if err := r.page(ownStory(Options{Out: "O", Model: "m/own"}, nil), 0).HTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"compress demo: own", "1,234,567 parameters", "perplexity 25.00 → 25.00", "1 of 2 are said", "magnitude is " +
			"off the scale, with 900.00",
		`href="heal/adapter/training.html"`, "Paris and", "25.00 ± 0.50",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if lines := r.next("O"); len(lines) != 3 || lines[2] != "compress serve m/own" {
		t.Errorf("%q", lines)
	}
}

// TestOwnScore: the figures of a form are those of its reports, whose names have commas.
func TestOwnScore(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"dense/ppl.json": `{"ppl": 24.5, "stderr": 0.5, "tokens": 4088, "model_bytes": 538}`,
		"dense/questions/results.json": `{"results":
			{"general": {"acc,none": 0.25, "acc_stderr,none": 0.16, "sample_len": 8}}}`,
	} {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o777)
		if err := errors.Join(err, os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}

	in := &reader{dir: dir}
	s := in.ownScore("dense", "as it is")
	if in.err != nil || s.Perplexity.Value != 24.5 || s.Questions.Value != 0.25 || *s.Questions.Stderr != 0.16 ||
		s.Questions.N != 8 || s.Bytes != 538 {
		t.Errorf("%+v, %v", s, in.err)
	}
}
