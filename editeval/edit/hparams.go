package edit

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// HParams are the hyper-parameters of a method; which ones count is the method's business. In YAML, keys that
// are left out keep their defaults. Layers are decoder layers, from 0.
type HParams struct {
	// decoder layers to write to, from 0; values are optimised at the last
	Layers []int `yaml:"layers" json:"layers"`
	// iterations of an optimisation, the last without a step (FT, GRACE, LoRA: with one)
	Steps        int     `yaml:"steps" json:"steps"`
	LearningRate float64 `yaml:"learning_rate" json:"learning_rate"` // of Adam
	WeightDecay  float64 `yaml:"weight_decay" json:"weight_decay"`   // factor of ‖d‖/‖v0‖²
	Clamp        float64 `yaml:"clamp" json:"clamp"`                 // ‖d‖ is at most this times ‖v0‖
	// of the divergence of the sentence about the subject
	KL float64 `yaml:"kl_factor" json:"kl_factor"`
	// KL(initial ‖ edited) instead of KL(edited ‖ initial)
	ReverseKL bool `yaml:"reverse_kl" json:"reverse_kl,omitempty"`
	// ROME, R-ROME: use the covariance of keys (mom2_adjustment); else the identity
	Statistics bool `yaml:"statistics" json:"statistics"`
	// R-ROME: the prompt alone gives the key everywhere
	BareKey bool `yaml:"bare_key" json:"bare_key,omitempty"`
	// MEMIT, PMET: weight of the covariance; 0: so that 95 % of an edit is taken up
	Lambda float64 `yaml:"lambda" json:"lambda,omitempty"`
	// MEMIT, PMET: keys of earlier edits weigh like those of the batch
	Accumulate bool `yaml:"accumulate" json:"accumulate,omitempty"`
	// MEMIT, PMET: a search ends once the target's tokens have been top-1 after all prefixes so many times; 0: it
	// ends by its loss and steps alone
	Settled int `yaml:"settled" json:"settled,omitempty"`
	// bring values to one length (NAS): anchor_norm, or the mean over facts
	Anchor     bool    `yaml:"anchor" json:"anchor,omitempty"`
	AnchorNorm float64 `yaml:"anchor_norm" json:"anchor_norm,omitempty"` // 0: the mean
	// LyapLock: the damage that edits may do, as a multiple of the first batch's
	Budget float64 `yaml:"budget" json:"budget,omitempty"`
	Weight float64 `yaml:"weight" json:"weight,omitempty"` // EMMET: weight of the covariance
	// EMMET: added to the weighed covariance's diagonal; MEMIT, PMET: with lambda the same, without one a fraction of
	// the mean of the diagonal
	NormLambda  float64 `yaml:"norm_lambda" json:"norm_lambda,omitempty"`
	EmmetLambda float64 `yaml:"emmet_lambda" json:"emmet_lambda,omitempty"` // EMMET: slack of the equality
	// AlphaEdit: eigenvalues below it span the null space; one value, or one a layer; none: the directions with
	// the least 5 % of the trace
	NullThreshold []float64 `yaml:"null_threshold" json:"null_threshold,omitempty"`
	L2            float64   `yaml:"l2" json:"l2,omitempty"` // AlphaEdit: ridge
	// FT: largest change of an element, 0 none; GRACE: radius of a new key
	Eps float64 `yaml:"eps" json:"eps,omitempty"`
	// GRACE: values start at the present output instead of random numbers
	Warm bool `yaml:"warm" json:"warm,omitempty"`
	Rank int  `yaml:"rank" json:"rank,omitempty"` // LoRA
	// WISE, MEMOIR: tokens of a fact's prompts that learn it, "subject" (its last) or "answer" (those that predict it)
	Rows string `yaml:"rows" json:"rows,omitempty"`
	// WISE: of the least distance of a fact, from which on a token is answered; MEMOIR: of the columns that a token
	// must share with a fact's
	Threshold float64 `yaml:"threshold" json:"threshold,omitempty"`
	// WISE: α, β and γ of the distances (see wise.go), in units of the mean length of what ordinary text gets
	Margin []float64 `yaml:"margin" json:"margin,omitempty"`
	Clip   float64   `yaml:"clip" json:"clip,omitempty"`   // WISE, MEMOIR: length of a gradient at most; 0: any
	Mask   float64   `yaml:"mask" json:"mask,omitempty"`   // WISE: fraction of the elements that may change
	Shard  int       `yaml:"shard" json:"shard,omitempty"` // WISE: facts of a copy; 0: all
	Top    float64   `yaml:"top" json:"top,omitempty"`     // MEMOIR: fraction of the columns that a fact writes to
	// UltraEdit: roles of the matrices to write to, in the layers above or in their own, "up:18-24"; none: gate and up
	Matrices []string `yaml:"matrices" json:"matrices,omitempty"`
	// groups of prefixes, "{}" is the prompt; the first is "{}" alone
	Templates [][]string `yaml:"templates" json:"templates"`

	Source string `yaml:"-" json:"source"` // "published (MODEL)" or "automatic", and what was changed
}

// defaultTemplates are the prefixes: the prompt alone in a group of its own, and five texts that begin as the
// published ones do.
var defaultTemplates = [][]string{{"{}"}, {
	"The room was quiet and warm. {}", "Therefore they went home at noon. {}", "Because of the rain we stayed. {}",
	"I read about it once. {}", "You can see it on the map. {}",
}}

//go:embed hparams.yaml
var published []byte

// preset is one entry of hparams.yaml.
type preset struct {
	Models []struct {
		Name   string `yaml:"name"`
		Type   string `yaml:"type"`
		Layers int    `yaml:"layers"`
		Hidden int    `yaml:"hidden"`
	} `yaml:"models"`
	Methods presetMethods `yaml:"methods"`
}

// presetMethods are the hyper-parameters of each method as the file has them: what they leave out depends on the model.
type presetMethods map[string]*strictyaml.Node

// DecodeYAML keeps the maps.
func (m *presetMethods) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node) {
	*m = presetMethods{}
	for _, e := range n.Entries {
		(*m)[e.Key] = e.Value
	}
}

// presets reads the table of published values. It does not depend on anything but the program.
var presets = sync.OnceValues(func() (list []preset, err error) {
	src, err := strictyaml.Parse("hparams.yaml", published)
	if err != nil {
		return nil, err
	}

	r := src.NewReader()
	r.Decode(r.Only(src, "the table"), "the table", &list)
	return list, r.Err()
})

// keepMemory is how many bytes of activations a search may keep, so that decoder layers are not computed twice.
const keepMemory = 1 << 30

// search are the hyper-parameters of a search for values.
func (h *HParams) search() optimize.Params {
	return optimize.Params{
		Steps: h.Steps, LearningRate: h.LearningRate, WeightDecay: h.WeightDecay, Clamp: h.Clamp, KL: h.KL,
		ReverseKL: h.ReverseKL, Settled: h.Settled, Keep: keepMemory,
	}
}

// A step of Adam moves every element by the learning rate, whatever the size of the matrix, so that the product
// of a wide one moves further. What small models need destroys wide ones: ten CounterFact edits one by one in
// SmolLM2-135M (576 wide) leave 0.30 of the top-1 tokens and a drift of 4.69 nats with 1e-3, and 0.60 and
// 0.73 with 2e-4, for 0.7 and 0.6 of the edits exact.
const (
	wide     = 512
	wideRate = 2e-4
)

// Defaults are the published hyper-parameters of a method for a model, if there are any: models are known by
// type, number of layers and width. For others they are derived from the number of layers. The error wraps
// [ErrMethod].
func Defaults(method string, c *lm.Config) (HParams, error) {
	if _, err := find(method); err != nil {
		return HParams{}, err
	}

	h := automatic(method, c.Layers)
	if (method == "ft" || method == "ft-m") && c.Hidden >= wide {
		h.LearningRate = wideRate
	}

	list, err := presets()
	if err != nil {
		return h, err
	}

	for _, p := range list {
		for _, m := range p.Models {
			keys, ok := p.Methods[method]
			if !ok && method == "memit-seq" { // which is MEMIT with a memory
				keys, ok = p.Methods["memit"]
			}
			if !ok || m.Type != c.ModelType || m.Layers != c.Layers || m.Hidden != c.Hidden {
				continue
			}

			// Only the keys that were published are read over the automatic ones; the others keep these.
			var r strictyaml.Reader
			r.Decode(keys, "the hyper-parameters", &h)
			h.Source = "published (" + m.Name + ")"
			return h, r.Err()
		}
	}

	return h, nil
}

// automatic are defaults from the number of layers. Layers lie where the published ones lie: at about a third
// of the depth for one layer, five that end there for several; those that only look up facts, lower for ROME
// and at three quarters for codebooks and fine-tuning.
func automatic(method string, blocks int) HParams {
	last := min(blocks-1, (blocks+2)/3)
	if blocks < 10 {
		last = min(blocks-1, blocks/2)
	}

	h := HParams{
		Steps: 25, LearningRate: 0.5, WeightDecay: 1e-3, Clamp: 4, KL: 0.0625, Templates: defaultTemplates,
		Source: "automatic",
		Layers: []int{last}, Statistics: true,
	}

	several := func() {
		h.Layers = nil
		for l := max(min(1, last), last-4); l <= last; l++ {
			h.Layers = append(h.Layers, l)
		}
	}

	switch method {
	case "rome", "r-rome":
		h.Layers = []int{min(blocks-1, max(1, blocks/5))}
		if method == "r-rome" { // the bare key leaves other subjects alone far better than the mean one does
			h.Clamp, h.BareKey = 8, true
		}
	case "memit", "memit-seq", "encore", "lyaplock":
		several()
		h.Clamp, h.Steps = 8, 50 // 25 leave one target in six behind on a small model
		switch method {
		case "memit-seq":
			h.Accumulate = true
		case "encore":
			h.Accumulate = true
			h.Settled = 2
			h.NormLambda = 0.01
		case "lyaplock":
			h.Budget = 60
		}
	case "pmet":
		several()
		h.Clamp = 4
	case "alphaedit", "nas":
		several()
		h.L2 = 1
		h.Clamp = 8
		h.Steps = 50
		h.Anchor = method == "nas"
	case "ultraedit":
		// Chosen on SmolLM2-135M; the published rate, 1e-6, is for models of 7B, and changes nothing there.
		h.LearningRate = 3e-4
		h.Matrices = []string{string(arch.Down)}
		h.Layers = nil
		for l := blocks * 2 / 3; l < blocks-1 || l == blocks*2/3; l++ {
			h.Layers = append(h.Layers, l)
		}
	case "emmet":
		h.Layers = []int{min(blocks-1, (blocks+2)/3)}
		h.Weight = 0.1
		h.NormLambda = 1e-3
		h.EmmetLambda = 0.1
	case "ft", "ft-m":
		h.LearningRate = 1e-3
	case "lora":
		h.LearningRate, h.Rank = 4e-3, 8
	case "ft-l":
		h.LearningRate, h.Eps = 2e-3, 0.01
	case "grace":
		h.Layers = []int{min(blocks-1, blocks*3/4)}
		h.LearningRate = 1
		h.Steps = 50
		h.Eps = 1
		h.Warm = true
	case "wise", "memoir":
		// Chosen on SmolLM2-135M, whose gradients are too short for the published rate, 1, and with a row to an edit:
		// where the subject is, as low as ROME writes.
		h.Layers = []int{min(blocks-1, max(1, blocks/5))}
		h.LearningRate, h.Clip = 5, 1
		h.Rows = rowsSubject
		h.Threshold, h.Top = 0.4, 0.29
		if method == "wise" {
			h.Threshold, h.Top = 0.88, 0
			h.Mask, h.Shard = 0.2, 25
			h.Margin = []float64{0.25, 1, 0.5}
		}
	}

	return h
}

// maxYAML bounds a file of hyper-parameters: far more than anyone writes.
const maxYAML = 64 << 10

// Merge overwrites the values that a YAML text has. Unknown keys are an error.
func (h *HParams) Merge(text []byte) error { return h.MergeFile("", text) }

// MergeFile is Merge of a file, whose name stands in errors.
func (h *HParams) MergeFile(name string, text []byte) error {
	if len(text) > maxYAML {
		return fmt.Errorf("%w: %s: more than %d bytes", ErrOptions, cmp.Or(name, "YAML"), maxYAML)
	}

	src, err := strictyaml.Parse(name, text)
	if err != nil {
		return strictyaml.OneLine(ErrOptions, err)
	}

	r := src.NewReader()
	top := r.Only(src, "hyper-parameters")
	if top == nil {
		return nil
	}

	t := *h // which stays as it is if anything is wrong
	r.Decode(top, "the hyper-parameters", &t)
	if err := r.Err(); err != nil {
		return strictyaml.OneLine(ErrOptions, err)
	}

	*h = t
	return nil
}

// locating are the methods that search for values and write them where the subject is.
var locating = []string{
	"rome", "r-rome", "memit", "memit-seq", "encore", "pmet", "emmet", "alphaedit", "nas", "lyaplock",
}

// readBy are the hyper-parameters that some methods alone read, by their keys.
var readBy = map[string][]string{
	"weight_decay": locating, "clamp": locating, "kl_factor": locating, "reverse_kl": locating, "settled": locating,
	"anchor": locating, "anchor_norm": locating, "norm_lambda": locating,
	"statistics": {"rome", "r-rome"}, "bare_key": {"r-rome"},
	"lambda":     {"memit", "memit-seq", "encore", "pmet", "lyaplock", "rome", "r-rome"},
	"accumulate": {"memit", "memit-seq", "encore", "pmet"},
	"budget":     {"lyaplock"}, "weight": {"emmet"}, "emmet_lambda": {"emmet"},
	"null_threshold": {"alphaedit", "nas"}, "l2": {"alphaedit", "nas"},
	"eps": {"ft-l", "grace"}, "warm": {"grace"}, "rank": {"lora"},
	"rows": {kindWISE, kindMEMOIR}, "threshold": {kindWISE, kindMEMOIR}, "clip": {kindWISE, kindMEMOIR},
	"margin": {kindWISE}, "mask": {kindWISE}, "shard": {kindWISE}, "top": {kindMEMOIR}, "matrices": {"ultraedit"},
}

// Idle lists the keys of a YAML text of hyper-parameters that a method does not read, in their order.
func Idle(method string, text []byte) []string {
	src, err := strictyaml.Parse("", text)
	if err != nil {
		return nil
	}
	top := src.NewReader().Only(src, "hyper-parameters")
	if top == nil {
		return nil
	}

	var list []string
	for _, e := range top.Entries {
		if some, ok := readBy[e.Key]; ok && !slices.Contains(some, method) {
			list = append(list, e.Key)
		}
	}
	return list
}

// Validate returns every fault, for a model with so many decoder layers.
func (h *HParams) Validate(blocks int) error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, a...)...))
	}
	if len(h.Layers) == 0 {
		bad("layers: none")
	}

	// Upwards, because residuals are spread from the first layer to the last and each is computed after the edits
	// below it.
	for i, l := range h.Layers {
		if l < 0 || l >= blocks {
			bad("layers[%d]: %d, the model has 0 to %d", i, l, blocks-1)
		}
		if i > 0 && l <= h.Layers[i-1] {
			bad("layers[%d]: %d after %d, they go upwards", i, l, h.Layers[i-1])
		}
	}

	if h.Steps < 1 || h.Steps > 100_000 {
		bad("steps: %d, not 1 to 100000", h.Steps)
	}

	for _, v := range []struct {
		name  string
		value float64
		above bool
	}{
		{"learning_rate", h.LearningRate, true},
		{"weight_decay", h.WeightDecay, false},
		{"clamp", h.Clamp, true},
		{"kl_factor", h.KL, false},
		{"lambda", h.Lambda, false},
		{"weight", h.Weight, false},
		{"norm_lambda", h.NormLambda, false},
		{"emmet_lambda", h.EmmetLambda, false},
		{"l2", h.L2, false},
		{"eps", h.Eps, false},
		{"anchor_norm", h.AnchorNorm, false},
		{"budget", h.Budget, false},
		{"threshold", h.Threshold, false},
		{"mask", h.Mask, false},
		{"top", h.Top, false},
		{"clip", h.Clip, false},
	} {
		// Negated, so that NaN fails too.
		if !(v.value >= 0) || math.IsInf(v.value, 0) || v.above && v.value == 0 {
			bad("%s: %g is out of range", v.name, v.value)
		}
	}

	if n := len(h.NullThreshold); n > 1 && n != len(h.Layers) {
		bad("null_threshold: %d values for %d layers", n, len(h.Layers))
	}
	if slices.ContainsFunc(h.NullThreshold, func(v float64) bool { return !(v > 0) }) {
		bad("null_threshold: not above zero")
	}
	if h.Rank < 0 || h.Rank > 1<<16 {
		bad("rank: %d", h.Rank)
	}
	if h.Settled < 0 {
		bad("settled: %d", h.Settled)
	}

	return failure.Join(append(errs, h.validateTemplates())...)
}

// besides refuses what a method with a side memory cannot do without.
func (h *HParams) besides(method string) error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, a...)...))
	}
	if !NeedsBackground(method) {
		return nil
	}

	if h.Rows != rowsSubject && h.Rows != rowsAnswer {
		bad("rows: %.100q, not %s or %s", h.Rows, rowsSubject, rowsAnswer)
	}
	if !(h.Threshold > 0 && h.Threshold <= 1) {
		bad("threshold: %g is out of range: a fraction above 0", h.Threshold)
	}
	if method == kindMEMOIR && !(h.Top > 0 && h.Top <= 1) {
		bad("top: %g is out of range: a fraction above 0", h.Top)
	}
	if method == kindWISE {
		if !(h.Mask > 0 && h.Mask <= 1) {
			bad("mask: %g is out of range: a fraction above 0", h.Mask)
		}
		if h.Shard < 0 {
			bad("shard: %d", h.Shard)
		}
		if len(h.Margin) != 3 || slices.ContainsFunc(h.Margin, func(v float64) bool { return !(v >= 0) || v > 1e30 }) {
			bad("margin: %v, not three distances", h.Margin)
		}
	}

	return failure.Join(errs...)
}

func (h *HParams) validateTemplates() error {
	if len(h.Templates) == 0 || len(h.Templates[0]) == 0 || h.Templates[0][0] != "{}" {
		return fmt.Errorf("%w: templates: the first is not \"{}\"", ErrOptions)
	}

	for i, g := range h.Templates {
		if len(g) == 0 {
			return fmt.Errorf("%w: templates[%d]: empty group", ErrOptions, i)
		}

		for k, t := range g {
			if strings.Count(t, "{}") != 1 || !strings.HasSuffix(t, "{}") {
				return fmt.Errorf("%w: templates[%d][%d]: not one {}, at the end", ErrOptions, i, k)
			}
		}
	}

	return nil
}
