package merge

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// MixtureSpec is a recipe for a mixture of experts as a Go value, with the words of a recipe file and their meaning.
// NewMixture makes a Recipe of it, for [Mix]. Models are named as in [Spec].
type MixtureSpec struct {
	Base string // the model that all but the experts' MLPs is taken from
	// Gate is how the router is made: "hidden", "hidden_last", "hidden_avg", "cheap_embed", "random" or
	// "uniform_random"; "": hidden.
	Gate         string
	DType        string // of the mixture: bfloat16, float16 or float32; "": that of the base
	PerToken     int    // experts that each token visits; 0: 2
	Architecture string // mixtral, qwen or qwen3; "": the first that fits
	Experts      []Expert
	Shared       []Expert       // that every token visits; of architecture qwen, one
	Refs         map[string]Ref // see [Spec]
}

// Expert is a model whose MLPs become an expert of a mixture.
type Expert struct {
	Model    string
	Positive []string // prompts that the gate shall send to it; none are needed for random gates
	Negative []string // prompts that it shall not get
	Noise    float64  // standard deviation of what is added to its weights; 0: nothing
	Residual *float64 // factor of its output; nil: 1
}

// NewMixture makes a recipe of a spec, as [Parse] does of a text. The recipe's Text is the same as YAML, for a file.
// The error lists every fault, by line and column of that text, which [Excerpts] shows; it wraps [ErrOption] for a
// value that no recipe can have.
func NewMixture(m MixtureSpec) (Recipe, error) {
	w := &specWriter{refs: m.Refs}
	perToken := scalar("")
	if m.PerToken != 0 {
		perToken = scalar(strconv.Itoa(m.PerToken))
	}
	if len(m.Experts) == 0 {
		w.bad("a mixture without experts")
	}

	node := fields(
		entry("base_model", w.model(m.Base)), entry("gate_mode", w.text(m.Gate)), entry("dtype", w.text(m.DType)),
		entry("experts_per_token", perToken), entry("architecture", w.text(m.Architecture)),
		entry("experts", w.experts(m.Experts)), entry("shared_experts", w.experts(m.Shared)),
	)
	text := strings.TrimSpace(string(strictyaml.Marshal(node))) + "\n"
	if err := failure.Join(w.faults...); err != nil {
		return Recipe{}, err
	}
	return Parse("recipe", []byte(text))
}

// experts is a list of experts.
func (w *specWriter) experts(all []Expert) *strictyaml.Node {
	out := list()
	for _, e := range all {
		noise, residual := scalar(""), scalar("")
		if e.Noise != 0 {
			noise = w.number("Noise", reflect.ValueOf(e.Noise))
		}
		if e.Residual != nil {
			residual = w.number("Residual", reflect.ValueOf(*e.Residual))
		}
		out.Items = append(out.Items, fields(
			entry("source_model", w.model(e.Model)), entry("positive_prompts", w.texts(e.Positive)),
			entry("negative_prompts", w.texts(e.Negative)), entry("noise_scale", noise),
			entry("residual_scale", residual),
		))
	}
	return out
}

// texts is a list of strings.
func (w *specWriter) texts(all []string) *strictyaml.Node {
	out := list()
	for _, s := range all {
		if s == "" {
			w.bad("an empty prompt")
			continue
		}
		out.Items = append(out.Items, w.text(s))
	}
	return out
}
