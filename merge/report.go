package merge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/stream"
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

// Ties counts the elements that equal a threshold, of which the rule for ties keeps some: their
// magnitudes are the same.
type Ties struct {
	Rule     TieBreak `json:"rule"`
	Elements int64    `json:"elements"` // of all inputs, that were compared with a threshold
	Tied     int64    `json:"tied"`
	Kept     int64    `json:"kept"`
	// that have some; those of thresholds over the whole model stand with its first tensor
	Tensors []TensorTies `json:"tensors,omitempty"`
}

// TensorTies are those of one tensor.
type TensorTies struct {
	Tensor   string `json:"tensor"`
	Elements int64  `json:"elements"`
	Tied     int64  `json:"tied"`
	Kept     int64  `json:"kept"`
}

// Zeros says what became of elements that are 0.
type Zeros struct {
	From     string      `json:"from,omitempty"` // the model whose zeros are kept
	Kept     int64       `json:"kept"`           // elements that are 0 there, and so in the output
	Restored int64       `json:"restored"`       // of these, those that the method had given another value
	Lost     []LostZeros `json:"lost,omitempty"`
}

// LostZeros are matrices of a model of which zeros are a good part, and most of these are gone in the output.
// Fractions are estimates from a sample of the elements.
type LostZeros struct {
	Model    string  `json:"model"`
	Matrices int     `json:"matrices"`
	Before   float64 `json:"before"` // zeros among the elements of the model's matrices
	After    float64 `json:"after"`  // and among those of the output's
}

// Mediation is what a report says about a merge by mediate, which averages groups of tensors where the models
// agree and keeps experts where they conflict.
type Mediation struct {
	Groups      int      `json:"groups"`
	Routed      []string `json:"routed"` // groups
	Experts     []string `json:"experts"`
	ExpertBytes int64    `json:"expert_bytes"` // of all files beside the dense model
	// Kept says in words how many tensors of the experts are kept in which form, and what of their differences is lost.
	Kept string `json:"kept,omitempty"`
	// RouterAccuracy is that on held-out prompts; nil without a router, or if none were held out.
	RouterAccuracy *float64 `json:"router_accuracy,omitempty"`
	// Router says what was chosen for it by cross-validation, and what each kind of features would have given.
	Router []string `json:"router,omitempty"`
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
	OnDevice       int     `json:"-"` // tensors that the device merged; the CPU merged the others
	Threads        int     `json:"-"` // that computed: fewer than the options say where memory is short; 0: unknown
}

// Source is an input as it lay on disk.
type Source struct {
	Name  string   `json:"name"`
	Files []string `json:"files"` // base names
	Bytes int64    `json:"bytes"` // of tensors, as stored
	// in which form values are stored that are decoded; empty where none are
	Quantisation string `json:"quantization,omitempty"`
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

// newSummary is what a merge that takes so much memory would do.
func newSummary(w *job.Work, memory int64) *Summary {
	p := w.Plan.Summary()
	s := &Summary{
		Method: p.Method, Models: p.Models, Base: p.Base, Donor: p.Donor, Tensors: p.Tensors, Copied: p.Copied,
		Parameters: p.Parameters, Blocks: p.Blocks, BytesIn: p.BytesIn, BytesOut: p.BytesOut, Largest: p.Largest,
		LargestIn: p.LargestIn, DTypes: p.DTypes, Vocabulary: p.Vocabulary, Warnings: w.Warnings, Memory: memory,
	}
	for _, t := range w.Plan.Tensors {
		s.Plan = append(s.Plan, planned(w.Plan, &t))
	}

	return s
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

// newReport is what is known before the work.
func newReport(w *job.Work, o Options, key string) *Report {
	s := w.Plan.Summary()
	r := &Report{
		Version: build.Version(), Job: output.JobKept(key), Method: s.Method, Models: s.Models, Base: s.Base,
		ConfigFrom: s.Donor, Options: o, Tensors: s.Tensors,
		Parameters: s.Parameters, BytesIn: s.BytesIn, BytesOut: s.BytesOut, DTypes: s.DTypes, Vocabulary: s.Vocabulary,
		Recipe: string(w.Recipe.Text),
	}

	r.Options.Threads, r.Options.Memory = 0, 0 // without effect on the output

	for _, in := range w.Inputs {
		dir := w.Models[in.Ref].Dir
		src := Source{Name: in.Ref.String(), Bytes: dir.DataSize(), Quantisation: dir.Quantisation()}
		for _, f := range w.Models[in.Ref].Files() {
			src.Files = append(src.Files, filepath.Base(f))
		}
		r.Inputs = append(r.Inputs, src)
	}

	return r
}

// A pattern of zeros is lost if that fraction of a matrix is 0 and less than half as much of the merged one.
const pattern = 0.3

// noted puts what was noted of all tensors into the report.
func (d *document) noted(notes map[string]json.RawMessage) error {
	ties, zeros := &Ties{Rule: cmp.Or(d.o.Ties, TieDraw)}, &Zeros{}
	lost := map[string]*LostZeros{}
	weight := map[string]float64{}
	d.report.NonFinite = nil
	for _, name := range slices.Sorted(maps.Keys(notes)) {
		var n stream.Note
		if err := json.Unmarshal(notes[name], &n); err != nil {
			return fmt.Errorf("what is noted of tensor %q: %w", name, err)
		}

		for _, x := range n.NonFinite {
			d.report.NonFinite = append(d.report.NonFinite, NonFinite(x))
		}

		if t := n.Ties; t != nil {
			ties.Elements += t.Elements
			ties.Tied += t.Tied
			ties.Kept += t.Kept
			if t.Tied > 0 {
				ties.Tensors = append(ties.Tensors, TensorTies{name, t.Elements, t.Tied, t.Kept})
			}
		}

		if z := n.Zeros; z != nil {
			zeros.Kept += z.Kept
			zeros.Restored += z.Restored
			lose(lost, weight, z)
		}
	}

	if ties.Tied > 0 {
		d.report.Ties = ties
	}

	for _, name := range slices.Sorted(maps.Keys(lost)) {
		l := lost[name]
		l.Before /= weight[name]
		l.After /= weight[name]
		zeros.Lost = append(zeros.Lost, *l)
	}

	if d.o.KeepZeros {
		zeros.From = d.zerosOf()
	}
	if d.o.KeepZeros || len(zeros.Lost) > 0 {
		d.report.Zeros = zeros
	}

	d.report.Warnings = append(slices.Clip(d.report.Warnings), d.lostWarnings(zeros.Lost)...)
	return nil
}

// lose adds the zeros of a matrix that are gone, by the models that had them.
func lose(lost map[string]*LostZeros, weight map[string]float64, z *stream.Zeros) {
	if z.Sampled == 0 {
		return
	}

	after := float64(z.Output) / float64(z.Sampled)
	for i, name := range z.Models[:min(len(z.Models), len(z.Inputs))] {
		before := float64(z.Inputs[i]) / float64(z.Sampled)
		if before < pattern || after >= before/2 {
			continue
		}

		l := lost[name]
		if l == nil {
			l = &LostZeros{Model: name}
			lost[name] = l
		}

		n := float64(z.Elements)
		l.Matrices++
		l.Before += before * n
		l.After += after * n
		weight[name] += n
	}
}

// zerosOf is the model whose zeros Options.KeepZeros keeps.
func (d *document) zerosOf() string {
	if d.Plan.Base >= 0 {
		return d.Plan.Models[d.Plan.Base].String()
	}
	for i := range d.Plan.Models {
		return d.Plan.Models[i].String()
	}
	return ""
}

// lostWarnings warns of patterns of zeros that are gone, and says how they could have stayed.
func (d *document) lostWarnings(lost []LostZeros) (list []string) {
	for _, l := range lost {
		kept := "they"
		if d.zerosOf() != l.Model {
			kept = "only those of " + d.zerosOf()
		}

		list = append(list, fmt.Sprintf(
			"the zeros of %s are lost: of %d of its matrices about %.1f %% are 0, of the merged ones %.1f %%; "+
				"%s can be kept",
			l.Model, l.Matrices, 100*l.Before, 100*l.After, kept))
	}

	return list
}

// manifestLimit bounds what is read of a report.
const manifestLimit = 64 << 20

// readReport reads the report of a finished output.
func readReport(dir string) (*Report, error) {
	text, err := safefile.ReadFile(filepath.Join(dir, output.ManifestName), manifestLimit)
	if err != nil {
		return nil, err
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, output.ManifestName), err)
	}
	return &r, nil
}
