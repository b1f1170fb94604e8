package moe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// Config is a recipe for a mixture.
type Config struct {
	Base         recipe.Ref
	Gate         string
	DType        safetensors.DType // 0: the base's
	PerToken     int
	Architecture string // "": the first that fits
	Experts      []Expert
	Shared       []Expert
	Text         []byte

	source *strictyaml.Source
	places struct{ top, experts, shared strictyaml.Place }
}

// Expert is a model whose MLPs become an expert.
type Expert struct {
	strictyaml.Place
	Source             recipe.Ref
	Positive, Negative []string
	Noise              float64 // standard deviation
	Residual           float64 // 1: as it is
}

// modes are the ways to make gates.
var modes = []string{"hidden", "hidden_last", "hidden_avg", "cheap_embed", "random", "uniform_random"}

// drawn reports whether a mode needs no prompts.
func drawn(mode string) bool { return mode == "random" || mode == "uniform_random" }

// Parse reads a recipe; file is its name for messages. The error is a *strict.Problems with every fault.
func Parse(file string, text []byte) (*Config, error) {
	src, err := strictyaml.Parse(file, text)
	if err != nil {
		return nil, err
	}

	r := src.NewReader()
	if len(src.Documents) != 1 {
		r.Add(strictyaml.Place{Line: 1, Column: 1}, strictyaml.ErrValue,
			"a recipe for a mixture is one document, not %d", len(src.Documents))
		return nil, r.Err()
	}

	c := &Config{Gate: "hidden", PerToken: 2, Text: text, source: src}
	c.decode(r, src.Documents[0])
	if err := r.Err(); err != nil {
		return nil, err
	}

	return c, nil
}

// decode reads the keys of a recipe.
func (c *Config) decode(r *strictyaml.Reader, n *strictyaml.Node) {
	c.places.top = n.Place
	o := r.Object(n, "a recipe for a mixture")
	if v := o.Need("base_model"); v != nil {
		c.Base = recipe.DecodeRef(r, v, "base_model")
	}
	if v := o.Get("gate_mode"); v != nil {
		c.Gate = r.Choice(v, "gate_mode", modes...)
	}

	c.DType = recipe.DecodeDType(r, o.Get("dtype"), "dtype")
	if v := o.Get("experts_per_token"); v != nil {
		c.PerToken = r.Int(v, "experts_per_token", 1, 1<<16)
	}

	if v := o.Get("architecture"); v != nil {
		c.Architecture = strings.ToLower(r.Text(v, "architecture"))
		if !slices.ContainsFunc(families, func(f family) bool { return f.name == c.Architecture }) {
			why := fmt.Sprintf(", not %q", c.Architecture)
			if c.Architecture == "deepseek" {
				why = ": mixtures of deepseek's first kind only run with Python code of their own"
			}
			r.Add(v.Place, strictyaml.ErrValue, "architecture must be one of mixtral, qwen, qwen3%s", why)
		}
	}

	if v := o.Need("experts"); v != nil {
		c.places.experts = v.Place
		c.Experts = experts(r, v)
	}

	if v := o.Get("shared_experts"); v != nil {
		c.places.shared = v.Place
		c.Shared = experts(r, v)
	}

	o.Close()
	c.check(r)
}

// experts decodes a list of experts.
func experts(r *strictyaml.Reader, n *strictyaml.Node) []Expert {
	var out []Expert
	for _, item := range r.List(n, "experts") {
		e := Expert{Place: item.Place, Residual: 1}
		o := r.Object(item, "an expert")
		if v := o.Need("source_model"); v != nil {
			e.Source = recipe.DecodeRef(r, v, "source_model")
		}

		e.Positive, e.Negative = prompts(r, o.Get("positive_prompts")), prompts(r, o.Get("negative_prompts"))

		if v := o.Get("noise_scale"); v != nil {
			if e.Noise = r.Number(v, "noise_scale"); e.Noise < 0 {
				r.Add(v.Place, strictyaml.ErrValue, "noise_scale must not be negative")
			}
		}

		if v := o.Get("residual_scale"); v != nil {
			e.Residual = r.Number(v, "residual_scale")
		}

		o.Close()
		out = append(out, e)
	}

	return out
}

// prompts decodes a list of prompts.
func prompts(r *strictyaml.Reader, n *strictyaml.Node) []string {
	if n == nil {
		return nil
	}
	var out []string
	for _, item := range r.List(n, "prompts") {
		out = append(out, r.Text(item, "a prompt"))
	}
	return out
}

// maxExperts bounds the size of a mixture.
const maxExperts = 4096

// check notes what does not go together.
func (c *Config) check(r *strictyaml.Reader) {
	if n := len(c.Experts); n > maxExperts {
		r.Add(c.places.experts, strictyaml.ErrLimit, "%d experts; at most %d are possible", n, maxExperts)
	} else if n < c.PerToken {
		r.Add(c.places.experts, strictyaml.ErrValue, "%d experts, where every token visits %d (experts_per_token)", n,
			c.PerToken)
	}

	// Drawn gates take no prompts.
	if drawn(c.Gate) || len(c.Experts) == 0 {
		return
	}

	for _, e := range slices.Concat(c.Experts, c.Shared) {
		if len(e.Positive) == 0 {
			r.Add(e.Place, strictyaml.ErrMissingKey,
				"an expert needs positive_prompts, from which gate_mode %s makes its gate", c.Gate)
		}
	}

	first := c.Experts[0]
	alike := func(e Expert) bool {
		return slices.Equal(e.Positive, first.Positive) && slices.Equal(e.Negative, first.Negative)
	}

	// Equal rows of a router give every token to the same experts.
	if len(c.Experts) > 1 && len(first.Positive) > 0 &&
		!slices.ContainsFunc(c.Experts, func(e Expert) bool { return !alike(e) }) {
		r.Add(c.places.experts, strictyaml.ErrValue,
			"all experts have the same prompts: no router could tell them apart")
	}
}

// References lists the models of the recipe, the base first, each once.
func (c *Config) References() []recipe.Ref {
	out := []recipe.Ref{c.Base}
	for _, e := range slices.Concat(c.Experts, c.Shared) {
		if !slices.Contains(out, e.Source) {
			out = append(out, e.Source)
		}
	}
	return out
}

// family is a kind of mixture that is written.
type family struct {
	name      string   // of Config.Architecture
	modelType string   // of the output's configuration
	class     string   // its "architectures"
	inputs    []string // model_type of the models that it is made of
	shared    int      // number of shared experts
	bias      bool     // it has biases of queries, keys and values; models without get zeros
	router    string   // name of a layer's router
	expert    string   // name of an expert's matrix: {e} its number, {m} the matrix
	matrices  [3]string
	fused     bool // the layout "fused" exists
}

// families are the kinds of mixtures; the first that fits is taken.
var families = []family{
	{
		name: "mixtral", modelType: "mixtral", class: "MixtralForCausalLM", inputs: []string{"llama", "mistral"},
		router: "block_sparse_moe.gate.weight", expert: "block_sparse_moe.experts.{e}.{m}.weight",
		matrices: [3]string{"w1", "w3", "w2"}, fused: true,
	},
	{
		name: "qwen", modelType: "qwen2_moe", class: "Qwen2MoeForCausalLM",
		inputs: []string{"llama", "mistral", "qwen2"}, shared: 1, bias: true,
		router: "mlp.gate.weight", expert: "mlp.experts.{e}.{m}.weight",
		matrices: [3]string{"gate_proj", "up_proj", "down_proj"},
	},
	{
		name: "qwen3", modelType: "qwen3_moe", class: "Qwen3MoeForCausalLM", inputs: []string{"qwen3"},
		router: "mlp.gate.weight", expert: "mlp.experts.{e}.{m}.weight",
		matrices: [3]string{"gate_proj", "up_proj", "down_proj"}, fused: true,
	},
}

// NeedsStates reports whether the gates are made of the base's hidden states.
func (c *Config) NeedsStates() bool { return !drawn(c.Gate) && c.Gate != "cheap_embed" }
