package task

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// open loads a shipped model.
func open(t testing.TB, dir string) *opened {
	t.Helper()
	m, err := lm.Load(context.Background(), dir, cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { m.Close() })
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}

	return &opened{m, tok}
}

// evaluate runs tasks and gives the results and the samples.
func evaluate(t testing.TB, ctx context.Context, o *opened, tasks []string, options Options) (*Results, string, error) {
	t.Helper()
	s, err := Load(tasks)
	if err != nil {
		t.Fatal(err)
	}

	var b bytes.Buffer
	options.Sample = func(_ string, line []byte) error {
		b.Write(line)
		return nil
	}

	r, err := Run(ctx, o.m, o.tok, s, options)
	return r, b.String(), err
}

func nanoTasks() []string { return []string{nano + "/tasks"} }

// Texts generated alone or side by side are the same to the last bit of every figure, as is everything else.
func TestBatchSizes(t *testing.T) {
	o := open(t, nano+"/sums")
	var first string
	for _, n := range []int{1, 2, 5, 16} {
		_, samples, err := evaluate(t, t.Context(), o, nanoTasks(), Options{BatchSize: n, Bootstrap: -1, Limit: 20})
		if err != nil {
			t.Fatal(err)
		}

		if first == "" {
			first = samples
		}
		if samples != first {
			t.Errorf("batch size %d: other samples", n)
		}
	}
}

// A run that is cut off again and again ends with the same bytes as one that is not.
func TestResume(t *testing.T) {
	o := open(t, nano+"/base")
	_, want, err := evaluate(t, t.Context(), o, nanoTasks(), Options{Bootstrap: -1, Limit: 30})
	if err != nil {
		t.Fatal(err)
	}

	journal := filepath.Join(t.TempDir(), "answers")
	for cuts := 0; ; cuts++ {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		r, got, err := evaluate(t, ctx, o, nanoTasks(),
			Options{Bootstrap: -1, Limit: 30, Journal: journal, Progress: func(string, int64, int64) {
				n++
				if n > 40 {
					cancel()
				}
			}})

		cancel()
		if err == nil {
			if got != want {
				t.Error("other samples")
			}
			if cuts == 0 || r.Audits["base"].Cached != r.Audits["base"].Requests {
				t.Errorf("%d cuts, %+v", cuts, r.Audits["base"])
			}

			break
		}

		if !errors.Is(err, context.Canceled) || cuts > 50 {
			t.Fatal(err)
		}

		f, err := os.OpenFile(journal, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.WriteString(`{"k": "torn`)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	if _, _, err := evaluate(t, t.Context(), open(t, nano+"/news"), nanoTasks(),
		Options{Bootstrap: -1, Limit: 2, Journal: journal}); !errors.Is(err, ErrOtherModel) {
		t.Errorf("the journal of another model: %v", err)
	}

	if err := os.WriteFile(journal, []byte("something else\n"), 0o666); err != nil {
		t.Fatal(err)
	}

	if _, _, err := evaluate(t, t.Context(), o, nanoTasks(),
		Options{Bootstrap: -1, Limit: 2, Journal: journal}); err == nil {
		t.Error("a file of something else is taken for a journal")
	}
}

// A cache answers for the model that filled it alone; a wider run asks only what is new.
func TestCache(t *testing.T) {
	o, cache := open(t, nano+"/base"), t.TempDir()
	run := func(o *opened, limit int) *Audit {
		r, _, err := evaluate(t, t.Context(), o, []string{nano + "/tasks/base.yaml"},
			Options{Bootstrap: -1, Limit: limit, Cache: cache})
		if err != nil {
			t.Fatal(err)
		}
		return r.Audits["base"]
	}

	first := run(o, 5)
	if first.Cached != 0 || first.Requests == 0 {
		t.Errorf("%+v", first)
	}
	if a := run(o, 8); a.Cached != first.Requests || a.Requests <= a.Cached {
		t.Errorf("wider: %+v", a)
	}
	if a := run(open(t, nano+"/news"), 5); a.Cached != 0 {
		t.Errorf("another model: %+v", a)
	}
}

// Likelihoods do not depend on what shares a pass with them: those of single requests are the same to rounding.
func TestSharing(t *testing.T) {
	o := open(t, nano+"/base")
	dir := write(t,
		map[string]string{"small.yaml": small("small.jsonl", "d.jsonl"), "d.jsonl": strings.Repeat(smallData, 20)})
	_, samples, err := evaluate(t, t.Context(), o, []string{filepath.Join(dir, "small.yaml")}, Options{})
	if err != nil {
		t.Fatal(err)
	}

	for line := range strings.Lines(samples) {
		r := &row{}
		if err := json.Unmarshal([]byte(line), r); err != nil {
			t.Fatal(err)
		}

		for i := range r.Resps {
			ctx, err := o.tok.Encode(r.arg(t, i, 0), tokenizer.EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}

			ids, err := o.tok.Encode(r.arg(t, i, 0)+r.arg(t, i, 1), tokenizer.EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}

			f, err := o.m.Forward(t.Context(), [][]int32{ids}, lm.ForwardOptions{})
			if err != nil {
				t.Fatal(err)
			}

			want, got := 0.0, 0.0
			for _, l := range f.LossPerToken[0][len(ctx)-1:] {
				want -= l
			}

			fmt.Sscan(r.Resps[i][0].([]any)[0].(string), &got)
			if math.Abs(got-want) > 1e-4 { // sums of F32 in another order
				t.Errorf("document %d, request %d: %g, want %g", r.DocID, i, got, want)
			}
		}
	}
}

// What does not fit is cut from the left and counted; what cannot fit is an error; a right choice that is none
// is counted.
func TestLimits(t *testing.T) {
	o := open(t, nano+"/base")
	long := `{"q": "` + strings.Repeat("the swan and the bear ",
		60) + `", "c": ["a", "the swan and the bear"], "g": 0}` + "\n"
	dir := write(t, map[string]string{
		"small.yaml": small(), "small.jsonl": long + smallData + `{"q": "x", "c": ["a", "b"], "g": 7}` + "\n",
		"gen.yaml": small("task: small", "task: gen", "multiple_choice", "generate_until", `doc_to_choice: "{{c}}"`,
			"generation_kwargs: {max_gen_toks: 60}",
			"metric: acc}, {metric: acc_norm", "metric: exact_match", "small.jsonl", "small.jsonl"),
	})

	r, _, err := evaluate(t, t.Context(), o, []string{filepath.Join(dir, "small.yaml")}, Options{MaxLength: 64})
	if err != nil {
		t.Fatal(err)
	}

	a := r.Audits["small"]
	if a.Truncated != 1 || a.OutOfRange != 1 || a.Documents != 5 || a.Right["acc,none"] > 4 || r.MaxLength != 64 {
		t.Errorf("%+v", a)
	}

	if _, _, err := evaluate(t, t.Context(), o, []string{filepath.Join(dir, "small.yaml")},
		Options{MaxLength: 2}); err == nil || !strings.Contains(err.Error(), "document 0: request 1") {
		t.Errorf("a continuation longer than the context: %v", err)
	}

	if _, _, err := evaluate(t, t.Context(), o, []string{filepath.Join(dir, "gen.yaml")},
		Options{MaxLength: 50}); err == nil || !strings.Contains(err.Error(), "max_gen_toks") {
		t.Errorf("no room for a prompt: %v", err)
	}

	if _, _, err := evaluate(t, t.Context(), o, []string{filepath.Join(dir, "small.yaml")},
		Options{Limit: -1, MaxLength: 1, BatchSize: -2}); err == nil || strings.Count(err.Error(), "bad option") != 3 {
		t.Errorf("not every fault is named: %v", err)
	}
}

// A model whose weights are not finite has no right answers, and the audit says so.
func TestNonFinite(t *testing.T) {
	o := open(t, nano+"/base")
	w, err := o.m.MutableParam(o.m.Linears(0)[0].Name)
	if err != nil {
		t.Fatal(err)
	}

	for i := range w.Buf.Bytes() {
		w.Buf.Bytes()[i] = 0xff
	}

	w.Buf.Changed()
	r, _, err := evaluate(t, t.Context(), o, nanoTasks(), Options{Limit: 12, Bootstrap: -1})
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"base", "subtract"} {
		a := r.Audits[name]
		if a.NonFinite != 12 || len(a.Signs()) == 0 {
			t.Errorf("%s: %+v", name, a)
		}

		for key, n := range a.Right {
			if n != 0 {
				t.Errorf("%s: %d right by %s", name, n, key)
			}
		}
	}
}

// Two runs of the same model do not differ; those of two models are paired by document.
func TestCompareRuns(t *testing.T) {
	runs := t.TempDir()
	for _, name := range []string{"base", "news"} {
		o := open(t, nano+"/"+name)
		r, samples, err := evaluate(t, t.Context(), o, []string{nano + "/tasks/base.yaml"},
			Options{Bootstrap: -1, Limit: 60})
		if err != nil {
			t.Fatal(err)
		}

		text, err := json.Marshal(r)
		if err == nil {
			err = os.MkdirAll(filepath.Join(runs, name), 0o777)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(runs, name, "results.json"), text, 0o666)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(runs, name, "samples_base.jsonl"), []byte(samples), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	at := func(name string) string { return filepath.Join(runs, name) }
	c, err := Compare(at("base"), at("base"), CompareOptions{Draws: 200})
	if err != nil {
		t.Fatal(err)
	}

	if r := c.Rows[0]; r.Difference != 0 || r.P != 1 || r.N != 60 || r.Test != "mcnemar" {
		t.Errorf("%+v", r)
	}

	c, err = Compare(at("base"), at("news"), CompareOptions{Draws: 200})
	if err != nil {
		t.Fatal(err)
	}

	if r := c.Rows[0]; math.Abs(r.Difference-float64(r.OnlyB-r.OnlyA)/60) > 1e-12 {
		t.Errorf("%+v", r)
	}
	if _, err := Compare(at("base"), at("none"), CompareOptions{}); !errors.Is(err, ErrNoRun) {
		t.Error(err)
	}

	samples, err := os.ReadFile(filepath.Join(at("news"), "samples_base.jsonl"))
	if err != nil {
		t.Fatal(err)
	}

	other := bytes.Replace(samples, []byte(`"doc_hash": "`), []byte(`"doc_hash": "0`), 1)
	if err := os.WriteFile(filepath.Join(at("news"), "samples_base.jsonl"), other, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Compare(at("base"), at("news"), CompareOptions{}); !errors.Is(err, ErrDiffer) {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(at("news"), "samples_base.jsonl")); err != nil {
		t.Fatal(err)
	}
	if _, err := Compare(at("base"), at("news"), CompareOptions{}); !errors.Is(err, ErrNoSamples) {
		t.Error(err)
	}
}

// The definitions of this package write the prompts of the reference runs, from the data as published.
func TestOracleShipped(t *testing.T) {
	dir := oracle(t)
	data := filepath.Join(dir, "..", "data", "tasks")
	if _, err := os.Stat(data); err != nil {
		t.Skipf("%s is not there", data)
	}

	refs := map[string]string{
		"gsm8k": "gsm8k.5shot", "lambada_openai": "lambada_openai.5shot", "commonsense_qa": "commonsense_qa.5shot",
		"mmlu_anatomy":                  "mmlu_anatomy.5shot",
		"mmlu_college_computer_science": "mmlu_college_computer_science.5shot",
		"truthfulqa_mc1":                "truthfulqa_mc1.0shot", "truthfulqa_mc2": "truthfulqa_mc2.0shot",
		"bbh_cot_fewshot_boolean_expressions":      "bbh_cot_fewshot_boolean_expressions.3shot",
		"bbh_cot_fewshot_date_understanding":       "bbh_cot_fewshot_date_understanding.3shot",
		"bbh_cot_fewshot_multistep_arithmetic_two": "bbh_cot_fewshot_multistep_arithmetic_two.3shot",
	}

	for _, name := range slices.Sorted(maps.Keys(refs)) {
		file := filepath.Join(dir, "eval", "stories260k", refs[name]+".samples.jsonl")
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}

		if err != nil {
			t.Fatal(err)
		}

		shots := int(refs[name][strings.LastIndex(refs[name], ".")+1] - '0')
		s, err := Load([]string{name}, data)
		if err != nil {
			t.Fatal(err)
		}

		comparePrompts(t, s, name, shots, string(text))
	}
}

func comparePrompts(t *testing.T, s *Suite, name string, shots int, text string) {
	t.Helper()
	p, err := s.prompter(t.Context(), name, &Options{Shots: &shots})
	if err != nil {
		t.Fatal(err)
	}

	wants := slices.Collect(strings.Lines(text))
	n := 0
	err = p.Documents(len(wants), func(d *prompt.Document) error {
		var w sampleOf
		if err := json.Unmarshal([]byte(wants[n]), &w); err != nil {
			return err
		}

		n++
		if got := d.Requests[0].Context; got != *w.Context {
			t.Errorf("%s, document %d: %q, want %q", name, d.ID, got, *w.Context)
		}

		for i, q := range w.Requests {
			if got := d.Requests[i].Continuation; got != q.Cont {
				t.Errorf("%s, document %d: %q, want %q", name, d.ID, got, q.Cont)
			}
		}

		return nil
	})
	if err != nil || n == 0 {
		t.Errorf("%s: %d documents, %v", name, n, err)
	}
}

// TestFlippedAnswers: whichever record of the kept answers is damaged, it is counted and asked again, and the
// results do not tell of it.
func TestFlippedAnswers(t *testing.T) {
	o := open(t, nano+"/base")
	journal := filepath.Join(t.TempDir(), "answers")
	run := func() (*Results, string) {
		r, samples, err := evaluate(t, t.Context(), o, []string{nano + "/tasks/base.yaml"},
			Options{Bootstrap: -1, Limit: 3, Journal: journal})
		if err != nil {
			t.Fatal(err)
		}

		r.Date = 0
		r.Start = 0
		r.End = 0
		r.Seconds = ""
		for _, a := range r.Audits {
			a.Cached = 0
		}

		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}

		return r, samples + string(text)
	}

	_, want := run()
	text, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}

	lines := bytes.SplitAfter(text, []byte("\n"))
	at := len(lines[0])
	for i, line := range lines[1 : len(lines)-1] {
		bad := bytes.Clone(text)
		bad[at+len(line)*(i+1)/(len(lines)+1)] ^= 1 << (i % 8)
		at += len(line)
		if err := os.WriteFile(journal, bad, 0o666); err != nil {
			t.Fatal(err)
		}
		if r, got := run(); r.Damaged == 0 || got != want {
			t.Errorf("record %d: %d damaged, other results: %t", i, r.Damaged, got != want)
		}
		if r, got := run(); r.Damaged != 0 || got != want {
			t.Errorf("record %d, again: %d damaged, other results: %t", i, r.Damaged, got != want)
		}
	}
}
