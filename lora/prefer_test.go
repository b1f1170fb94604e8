package lora

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// preferred is what testdata/preference.py has made.
type preferred struct {
	LR     float64
	Pairs  [][3][]int32
	Marked []markedAnswer
	Cases  []struct {
		Objective                               string
		Beta, Smoothing, Desirable, Undesirable float64
		Losses                                  []float64
		Rewards                                 [][3]float64
	}
}

// markedAnswer is prompt, answer and mark.
type markedAnswer struct {
	Prompt, Answer []int32
	Good           bool
}

func (m *markedAnswer) UnmarshalJSON(text []byte) error {
	list := []any{&m.Prompt, &m.Answer, &m.Good}
	return json.Unmarshal(text, &list)
}

// sequences lays preferences out as [ReadPreferences] does.
func (w preferred) sequences(objective string) (corpus.Windows, []bool) {
	var ids, labels [][]int32
	var good []bool
	add := func(prompt, answer []int32) {
		ids = append(ids, slices.Concat(prompt, answer))
		labels = append(labels, slices.Concat(slices.Repeat([]int32{corpus.Ignore}, len(prompt)), answer))
	}
	if objective == "kto" {
		for i, m := range w.Marked {
			add(m.Prompt, m.Answer)
			add(m.Prompt, w.Marked[(i+len(w.Marked)-1)%len(w.Marked)].Answer)
			good = append(good, m.Good)
		}
	} else {
		for _, p := range w.Pairs {
			add(p[0], p[1])
			add(p[0], p[2])
		}
	}

	data := corpus.New(ids, "preferences")
	data.Labels = labels
	return data, good
}

// TestPreferencesTrainAsTorch: four steps of AdamW on each loss have the losses and the rewards of torch, to 1e-4 of
// them and 2e-5 besides: float32 sums of another order, four steps deep, of differences that are small. So have steps
// in parts.
func TestPreferencesTrainAsTorch(t *testing.T) {
	var want preferred
	readJSON(t, filepath.Join("testdata", "preference.json"), &want)
	m := openModel(t, filepath.Join("testdata", "peft", "base-llama"), "cpu", lm.Options{})
	close := func(got, want float64) bool { return math.Abs(got-want) <= 1e-4*math.Abs(want)+2e-5 }
	for i, c := range want.Cases {
		for _, micro := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s %d micro %d", c.Objective, i, micro), func(t *testing.T) {
				a, err := Open(filepath.Join("testdata", "peft", "llama_qv"), m)
				if err != nil {
					t.Fatal(err)
				}
				data, good := want.sequences(c.Objective)
				got, err := Train(t.Context(), m, data, Options{
					Init: a, Kind: "lora", Rank: 4, Alpha: 8, Steps: len(c.Losses), Batch: len(data.IDs) / 2,
					Ordered: true,
					LR:      want.LR, MicroBatch: micro, Eval: &data,
					Prefer: &Prefer{
						Objective: c.Objective, Beta: c.Beta, Smoothing: c.Smoothing, Desirable: c.Desirable,
						Undesirable: c.Undesirable, Good: good, EvalGood: good,
					},
				})
				if err != nil {
					t.Fatal(err)
				}

				for k, s := range got.Report().Steps {
					r, w := s.Rewards, c.Rewards[k]
					if !close(s.Loss, c.Losses[k]) || !close(r.Chosen, w[0]) || !close(r.Rejected, w[1]) ||
						!close(r.Accuracy, w[2]) || !close(r.Margin, w[0]-w[1]) {
						t.Errorf("step %d: loss %.6f and rewards %+v, torch has %.6f and %v", k, s.Loss, *r,
							c.Losses[k], w)
					}
				}
				if e := got.Report().Evals; len(e) == 0 || e[len(e)-1].Rewards == nil ||
					e[len(e)-1].Loss >= c.Losses[len(c.Losses)-1] && c.Objective != "kto" {
					t.Errorf("evaluations %+v after a last step with %.6f", e, c.Losses[len(c.Losses)-1])
				}
			})
		}
	}
}

// TestPreferenceRefusals: settings that go with nothing are refused.
func TestPreferenceRefusals(t *testing.T) {
	m := openModel(t, filepath.Join("testdata", "peft", "base-llama"), "cpu", lm.Options{})
	var want preferred
	readJSON(t, filepath.Join("testdata", "preference.json"), &want)
	data, _ := want.sequences("dpo")
	for _, p := range []Prefer{
		{},
		{Objective: "ppo"},
		{Objective: "dpo", Beta: -1},
		{Objective: "dpo", Smoothing: 0.5},
		{Objective: "orpo", Smoothing: 0.1},
		{Objective: "dpo", Desirable: 2},
		{Objective: "kto"},
	} {
		o := Options{Kind: "lora", Steps: 1, Prefer: &p}
		if _, err := Train(t.Context(), m, data, o); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", p, err)
		}
	}

	o := Options{Kind: "full", Steps: 1, Prefer: &Prefer{Objective: "dpo"}}
	if _, err := Tune(t.Context(), m, data, o); !errors.Is(err, ErrConfig) {
		t.Errorf("full: %v", err)
	}
}

// TestReadPreferences: pairs of texts and of conversations become sequences of which the answers count; pairs without
// a difference are counted, and bad records are named by their lines.
func TestReadPreferences(t *testing.T) {
	dir := filepath.Join("..", "testdata", "nano", "base")
	m := openModel(t, dir, "cpu", lm.Options{})
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	template := `{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}` +
		`{% if add_generation_prompt %}<assistant>{% endif %}`
	read := func(objective, text string) (corpus.Windows, []bool, DataCounts, error) {
		path := filepath.Join(t.TempDir(), "p.jsonl")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return ReadPreferences(t.Context(), path, m, tok, DataOptions{SeqLen: 24, Template: template}, objective)
	}
	answer := func(w corpus.Windows, i int) string {
		var ids []int32
		for _, y := range w.Labels[i] {
			if y >= 0 {
				ids = append(ids, y)
			}
		}
		if eos, ok := tok.EOS(); ok && ids[len(ids)-1] == eos {
			ids = ids[:len(ids)-1]
		}
		return strings.TrimSpace(tok.Decode(ids, true))
	}

	w, _, n, err := read("dpo", `{"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
{"prompt": "same", "chosen": "x", "rejected": "x"}

{"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant", "content": "c"}]}
{"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]}
{"prompt": "long", "chosen": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen", "rejected": "no"}
`)
	if err != nil || len(w.IDs) != 8 || n.Same != 1 || n.Records != 5 || n.Blank != 1 || n.Cut != 1 {
		t.Fatalf("%d sequences, %+v (%v)", len(w.IDs), n, err)
	}
	for i, want := range []string{"4", "5", "b;", "c;", "b;", "c;"} {
		if got := answer(w, i); got != want {
			t.Errorf("answer %d: %q, want %q", i, got, want)
		}
	}

	w, good, _, err := read("kto", `{"prompt": "1", "completion": " a", "label": true}
{"prompt": "2", "completion": " b", "label": false}
{"prompt": "3", "chosen": " c", "rejected": " d"}
`)
	if err != nil || !slices.Equal(good, []bool{true, false, true, false}) || len(w.IDs) != 8 {
		t.Fatalf("%v, %d sequences (%v)", good, len(w.IDs), err)
	}
	for i, want := range []string{"a", "d", "b", "a", "c", "b", "d", "c"} {
		if got := answer(w, i); got != want {
			t.Errorf("answer %d: %q, want %q", i, got, want)
		}
	}

	for _, c := range []struct{ objective, text, want string }{
		{"dpo", `{"prompt": "a", "completion": "b"}`, "line 1"},
		{"dpo", `{"chosen": "a", "rejected": "b"}`, "without a prompt"},
		{"dpo", `{"prompt": "a", "chosen": "b", "rejected": "b"}`, "is the rejected one"},
		{"dpo", `{"prompt": "a", "chosen": null, "rejected": "b"}`, "no chosen and rejected"},
		{"kto", `{"prompt": "a", "completion": "b"}`, "label"},
		{"kto", `{"prompt": "a", "completion": "b", "label": true}`, "nothing is preferred"},
		{"dpo", ``, "p.jsonl"},
	} {
		if _, _, _, err := read(c.objective, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}
