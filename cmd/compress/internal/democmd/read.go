package democmd

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
)

// Report is what the demo measured: figures of the reports that its steps wrote.
type Report struct {
	Command  string     `json:"command"`
	Quick    bool       `json:"quick"`
	Search   Search     `json:"search"`
	Prune    Prune      `json:"prune"`
	Conflict []Conflict `json:"conflict"` // all experts first, then pairs
	Adapt    []Adapter  `json:"adapt"`
	Edit     []Edited   `json:"edit"`
	Scores   []Score    `json:"scores"`
	Tests    []Test     `json:"tests"`
	Stages   []Stage    `json:"stages"`
}

// Stage is what a part of the story took, the only figures that differ from run to run.
type Stage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Search is the outcome of the search.
type Search struct {
	Winner struct {
		Formula string `json:"formula"`
		Size    int    `json:"size"`
	} `json:"winner"`
	Counts struct {
		Generated int `json:"generated"`
		Evaluated int `json:"evaluated"`
	} `json:"counts"`
	Test []struct {
		Windows int      `json:"windows"`
		Metrics []Metric `json:"metrics"`
	} `json:"test"`
	Candidates []struct {
		Size    int      `json:"size"`
		Quality float64  `json:"quality"`
		Full    *float64 `json:"full"`
	} `json:"candidates"`
}

// Metric is a metric on the search's test data, against the winner.
type Metric struct {
	Name       string   `json:"metric"`
	Perplexity float64  `json:"ppl"`
	Stderr     *float64 `json:"stderr"`
	Low        *float64 `json:"ci95_low"`
	High       *float64 `json:"ci95_high"`
	Winner     string   `json:"winner_is"`
}

// Prune is the comparison of pruning methods.
type Prune struct {
	SeqLen int              `json:"seqlen"`
	Dense  Pruned           `json:"dense"`
	Runs   []Pruned         `json:"runs"`
	Sizes  map[string]int64 `json:"packed_bytes"` // by target
}

// Pruned is a pruned model.
type Pruned struct {
	Method     string   `json:"method"`
	Target     string   `json:"target"`
	Perplexity float64  `json:"ppl"`
	Stderr     *float64 `json:"stderr"`
	NLL        float64  `json:"nll"`
	Sparsity   float64  `json:"sparsity"`
	Tokens     int      `json:"tokens"`
	Versus     *struct {
		P float64 `json:"p_holm"`
	} `json:"versus_best"`
}

// Conflict is how much models contradict each other.
type Conflict struct {
	Models  []string `json:"models"`
	Groups  []Group  `json:"groups"`
	Tensors []Group  `json:"per_tensor"`
	Whole   Group    `json:"whole"`
}

// Group is a part of the models.
type Group struct {
	Name     string `json:"name"`
	Layer    int    `json:"layer"`
	Elements int64  `json:"elements"`
	Excess   struct {
		Disagree float64 `json:"disagree"`
	} `json:"excess"`
}

// Adapter is a training.
type Adapter struct {
	Kind      string `json:"kind"`
	Trainable int64  `json:"trainable_parameters"`
	Bytes     int64  `json:"bytes"`
	Steps     []struct {
		Loss float64 `json:"loss"`
	} `json:"steps"`
}

// Edited is a state of the editing study: an editor after so many edits.
type Edited struct {
	Editor string `json:"editor"` // empty: before any edit
	Edits  int    `json:"edits"`
	Held   struct {
		Mean float64 `json:"mean"`
		Low  float64 `json:"low"`
		High float64 `json:"high"`
	} `json:"held"`
	Exact        float64 `json:"exact"`
	Paraphrase   float64 `json:"paraphrase"`
	Neighborhood float64 `json:"neighborhood"`
	Weights      float64 `json:"relative_weight_change"`
	Abilities    map[string]struct {
		Value float64 `json:"value"`
		Lost  int     `json:"lost"`
	} `json:"abilities"`
}

// Score is a model on all tasks.
type Score struct {
	Model      string            `json:"model"`
	What       string            `json:"what"`
	Bytes      int64             `json:"bytes"` // of tensors on the disk, with the base's for an adapter
	Perplexity Figure            `json:"perplexity"`
	Divergence *Divergence       `json:"divergence,omitempty"` // from the base
	Tasks      map[string]Figure `json:"tasks"`
}

// Divergence is how far a model's predictions are from the base's.
type Divergence struct {
	KL     float64  `json:"kl"`
	Stderr *float64 `json:"kl_stderr"`
	Same   float64  `json:"same_top"`
}

// Figure is a measurement with its standard error, as far as there is one.
type Figure struct {
	Value  float64  `json:"value"`
	Stderr *float64 `json:"stderr"`
	N      int      `json:"n"`
}

// Test is a paired test of two models on a task.
type Test struct {
	A          string   `json:"a"`
	B          string   `json:"b"`
	Task       string   `json:"task"`
	Metric     string   `json:"metric"`
	N          int      `json:"n"`
	ValueA     float64  `json:"value_a"`
	ValueB     float64  `json:"value_b"`
	Difference float64  `json:"difference"`
	Low        float64  `json:"low"`
	High       float64  `json:"high"`
	P          *float64 `json:"p"`
	Test       string   `json:"test"`
}

// reader reads the files of a demo and keeps the first error.
type reader struct {
	dir string
	err error
}

// maxReport bounds what is read of a report.
const maxReport = 256 << 20

// json reads a file into a value.
func (r *reader) json(path string, into any) {
	if r.err != nil {
		return
	}

	data, err := safefile.ReadFile(filepath.Join(r.dir, filepath.FromSlash(path)), maxReport)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		r.err = fmt.Errorf("%s: %w", path, err)
	}
}

// bytes is the size of a model or adapter: its .safetensors or .gguf files, and the manifest of a mediated folder.
func (r *reader) bytes(path string) (n int64) {
	err := filepath.WalkDir(filepath.Join(r.dir, filepath.FromSlash(path)),
		func(p string, e fs.DirEntry, err error) error {
			if err == nil && (strings.HasSuffix(p, ".safetensors") || strings.HasSuffix(p, ".gguf") ||
				e.Name() == "mediator.json") {
				st, err := e.Info()
				if err != nil {
					return err
				}
				n += st.Size()
			}
			return err
		})
	if r.err == nil {
		r.err = err
	}

	return n
}

// read puts together what the steps wrote.
func read(dir string, quick bool) (*Report, error) {
	b, in := builder{dir: dir, quick: quick}, &reader{dir: dir}
	r := &Report{Command: command, Quick: quick, Prune: Prune{Sizes: map[string]int64{}}}
	in.json("search/report.json", &r.Search)
	in.json("prune/compared/report.json", &r.Prune)
	for _, s := range b.sparsities() {
		r.Prune.Sizes[s] = in.bytes("prune/" + packed(s))
	}

	for _, p := range append([]string{"all"}, b.pairs()...) {
		var c Conflict
		in.json("conflict/"+p+".json", &c)
		r.Conflict = append(r.Conflict, c)
	}

	for _, kind := range []string{"lora", "mos"} {
		a := Adapter{Kind: kind, Bytes: in.bytes("adapt/" + kind)}
		in.json("adapt/"+kind+"/training.json", &a)
		r.Adapt = append(r.Adapt, a)
	}

	var study struct {
		Models []struct {
			Rows []Edited `json:"rows"`
		} `json:"models"`
	}

	in.json("edit/study/results.json", &study)
	for _, m := range study.Models {
		r.Edit = append(r.Edit, m.Rows...)
	}
	for _, m := range b.models() {
		r.Scores = append(r.Scores, in.score(m))
	}
	for _, c := range b.contests() {
		r.Tests = append(r.Tests, in.test(c)...)
	}

	return r, in.err
}

// score reads what a model reached.
func (r *reader) score(m model) Score {
	s := Score{Model: m.name, What: m.what, Tasks: map[string]Figure{}}
	s.Bytes = r.bytes(strings.TrimPrefix(m.path, "@/"))
	if _, adapter, ok := strings.Cut(m.flags, "--adapter @/"); ok {
		s.Bytes += r.bytes(adapter)
	}

	var results struct {
		Results map[string]map[string]any `json:"results"`
	}
	r.json("score/"+m.name+"/results.json", &results)

	for task, values := range results.Results {
		for _, metric := range []string{"acc,none", "exact_match,strip", "bits_per_byte,none"} {
			v, ok := values[metric].(float64)
			if !ok {
				continue
			}

			f := Figure{Value: v}
			name, filter, _ := strings.Cut(metric, ",")
			if e, ok := values[name+"_stderr,"+filter].(float64); ok {
				f.Stderr = &e
			}
			if n, ok := values["sample_len"].(float64); ok {
				f.N = int(n)
			}

			s.Tasks[task] = f
		}
	}

	var ppl struct {
		Value  float64  `json:"ppl"`
		Stderr *float64 `json:"stderr"`
		Tokens int      `json:"tokens"`

		Against *Divergence `json:"against"`
	}

	r.json("score/"+m.name+".json", &ppl)
	s.Divergence = ppl.Against
	s.Perplexity = Figure{ppl.Value, ppl.Stderr, ppl.Tokens}
	return s
}

// test reads the paired tests of two models, one for each task.
func (r *reader) test(c [2]string) (list []Test) {
	var report struct {
		Rows []struct {
			Test
			ValueA float64 `json:"a"`
			ValueB float64 `json:"b"`
		} `json:"rows"`
	}

	r.json("score/"+contestFile(c), &report)

	for _, row := range report.Rows {
		switch row.Metric {
		case "acc", "exact_match", "bits_per_byte":
			t := row.Test
			t.A = c[0]
			t.B = c[1]
			t.ValueA = row.ValueA
			t.ValueB = row.ValueB
			list = append(list, t)
		}
	}

	return list
}
