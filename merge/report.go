package merge

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/plan"
)

// NonFinite counts the values of a tensor that are not finite.
type NonFinite struct {
	Tensor string `json:"tensor"`
	Model  string `json:"model"`
	NaN    int64  `json:"nan"`
	Inf    int64  `json:"inf"`
	First  int64  `json:"first"` // index of the first one
	// Output is how many values of the merged tensor are not finite: methods that drop or choose values may
	// drop these, others spread them.
	Output int64 `json:"output"`
}

// Mediation is what a report says about a merge by mediate, which averages groups of tensors where the models
// agree and keeps experts where they conflict.
type Mediation struct {
	Groups      int      `json:"groups"`
	Routed      []string `json:"routed"` // groups
	Experts     []string `json:"experts"`
	ExpertBytes int64    `json:"expert_bytes"` // of all files beside the dense model
	// RouterAccuracy is that on held-out prompts; nil without a router, or if none were held out.
	RouterAccuracy *float64 `json:"router_accuracy,omitempty"`
}

// Report says what was merged and how. It lies in the output as merge.json.
type Report struct {
	Version    string         `json:"version"`
	Job        string         `json:"job"` // hash of recipe, choices and the inputs' names and sizes
	Method     string         `json:"method"`
	Models     []string       `json:"models"`
	Base       string         `json:"base,omitempty"`
	ConfigFrom string         `json:"config_from"`
	Options    Options        `json:"options"`
	Tensors    int            `json:"tensors"`
	Parameters int64          `json:"parameters"`
	BytesIn    int64          `json:"bytes_in"`
	BytesOut   int64          `json:"bytes_out"`
	DTypes     map[string]int `json:"dtypes"` // tensors by type
	Vocabulary int64          `json:"vocabulary,omitempty"`
	Inputs     []Source       `json:"inputs"`
	NonFinite  []NonFinite    `json:"non_finite,omitempty"` // only if they were allowed
	Ties       *Ties          `json:"ties,omitempty"`       // only if a method with thresholds met some
	Zeros      *Zeros         `json:"zeros,omitempty"`      // only if they were to be kept, or are lost
	Mediation  *Mediation     `json:"mediation,omitempty"`  // of mediate
	Warnings   []string       `json:"warnings,omitempty"`
	// Files are the SHA-256 of the files beside the weights; a merge with Resume that finds the output complete
	// compares them.
	Files  map[string]string `json:"files,omitempty"`
	Recipe string            `json:"recipe"`

	Seconds        float64 `json:"-"` // of this run; not in the file, which is the same for every run
	BytesPerSecond float64 `json:"-"` // of output
	There          int     `json:"-"` // tensors that the device merged; the others were merged on the host
	Threads        int     `json:"-"` // that computed: fewer than the options say where memory is short; 0: not told
}

// Source is an input as it lay on disk.
type Source struct {
	Name  string   `json:"name"`
	Files []string `json:"files"` // base names
	Bytes int64    `json:"bytes"` // of tensors
}

// Summary is what a merge would do.
type Summary struct {
	Method     string         `json:"method"`
	Models     []string       `json:"models"`
	Base       string         `json:"base,omitempty"`
	Donor      string         `json:"config_from"`
	Tensors    int            `json:"tensors"`
	Copied     int            `json:"tensors_copied"`
	Parameters int64          `json:"parameters"`
	Blocks     int            `json:"blocks"`   // decoder layers
	BytesIn    int64          `json:"bytes_in"` // of the inputs' tensors, each counted as often as it is read
	BytesOut   int64          `json:"bytes_out"`
	Largest    string         `json:"largest_tensor"`
	LargestIn  int64          `json:"largest_bytes_in"` // of all sources of the largest tensor together
	DTypes     map[string]int `json:"dtypes"`           // tensors by output type
	Vocabulary int64          `json:"vocabulary,omitempty"`
	Warnings   []string       `json:"warnings,omitempty"`

	Document string     `json:"document,omitempty"` // of a recipe with several
	Memory   int64      `json:"memory_bytes"`       // that buffers and statistics take at most
	Plan     []Planned  `json:"plan"`
	Before   []*Summary `json:"before,omitempty"` // the documents that are merged before this one
}

// Planned is one tensor of a plan.
type Planned struct {
	Name    string   `json:"name"`
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Copied  bool     `json:"copied,omitempty"`
	Sources []string `json:"sources"` // MODEL: TENSOR PARAMETERS
	Shared  string   `json:"parameters,omitempty"`
}

// planned describes a tensor of a plan.
func planned(p *plan.Plan, t *plan.Tensor) Planned {
	out := Planned{
		Name: t.Name, DType: t.DType.String(), Shape: t.Shape, Copied: t.Copy,
		Shared: t.Params.String(),
	}
	for _, s := range t.Sources {
		text := p.Models[s.Model].String() + ": " + s.Info.Name
		if v := s.Params.String(); v != "" {
			text += " " + v
		}
		out.Sources = append(out.Sources, text)
	}

	return out
}

// report is what is known before the work.
func (w *work) report(job string) *Report {
	s := w.plan.Summary()
	r := &Report{
		Version: build.Version(), Job: output.JobKept(job), Method: s.Method, Models: s.Models, Base: s.Base,
		ConfigFrom: s.Donor, Options: w.o, Tensors: s.Tensors,
		Parameters: s.Parameters, BytesIn: s.BytesIn, BytesOut: s.BytesOut, DTypes: s.DTypes, Vocabulary: s.Vocabulary,
		Recipe: string(w.recipe.text),
	}

	r.Options.Workers, r.Options.Memory = 0, 0 // without effect on the output

	for _, in := range w.inputs {
		src := Source{Name: in.Ref.String(), Bytes: w.models[in.Ref].Dir.DataSize()}
		for _, f := range w.models[in.Ref].Files() {
			src.Files = append(src.Files, filepath.Base(f))
		}
		r.Inputs = append(r.Inputs, src)
	}

	return r
}

// readReport reads the report of a finished output.
func readReport(dir string) (*Report, error) {
	text, err := readFile(filepath.Join(dir, output.ManifestName))
	if err != nil {
		return nil, err
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, output.ManifestName), err)
	}
	return &r, nil
}
