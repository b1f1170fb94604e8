package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// Config is a model's configuration: what config.json says, with the defaults of its architecture filled in and every
// value checked. Sizes are counts of elements. It must not be changed.
type Config struct {
	ModelType string
	Arch      *Arch

	Vocab        int // V
	Hidden       int // C
	EmbedDim     int // width of the token table; C unless it is projected to it
	Layers       int // L
	Heads        int // H
	KVHeads      int // K
	HeadDim      int // D
	Inner        int // F
	MaxPositions int // positions the model was made for; a hard limit only where positions are learned

	// Latent attention; 0 where there is none. HeadDim is then the wider of a head's keys and values, and every head
	// has keys and values of its own.
	QRank, KVRank          int // widths of the latents; QRank 0: queries have none
	NopeDim, RopeDim, VDim int // unrotated and rotated channels of a head's keys, and its values
	LatentEps              float32

	Eps        float32 // of every norm but those of latents
	Activation Activation
	Tied       bool // the head is the token table
	Parallel   bool // attention and MLP read the same input
	PostNorm   bool // the stream is normed after each branch instead of before
	EmbedScale float32
	// ResidualScale multiplies what a branch adds to the stream, LogitScale the logits before the final cap.
	ResidualScale, LogitScale float32
	QKNorm                    QKNorm // "" where queries and keys are not normed

	AttnScales   []float32 // per block: factor on the attention scores
	Windows      []int     // per block: positions a query sees, itself included; 0: all
	AttnSoftcap  float32   // 0: off
	FinalSoftcap float32   // 0: off
	ClipQKV      float32   // queries, keys and values are clamped to ±ClipQKV; 0: off
	Rope         *Rope     // nil where positions are not rotated; of several rotations, that of full attention
	Ropes        []*Rope   // the different rotations
	RopeOf       []int     // per block: which of them; -1: none

	Experts     int    // 0: no mixture
	TopK        int    // experts per token
	NormTopK    bool   // their weights are divided by their sum
	ExpertInner int    // inner size of an expert
	SharedInner int    // inner size of the shared expert; 0: none
	Mixture     []bool // per block: the MLP is a mixture
	Groups      int    // groups of experts, of which a token's experts come from the TopGroups best
	TopGroups   int
	RoutedScale float32 // factor on the weights of the chosen experts
	GateAlpha   float32 // of [ClampedGate]
	GateLimit   float32

	DType   string   // as the configuration names it; "" where it doesn't
	BOS     int32    // -1: none
	EOS     []int32  // empty: none
	Unknown []string // keys that neither the engine nor its tables know, sorted; they have no effect

	flags  map[string]bool
	absent []string // keys that the architecture has and the file does not give, in order
}

// ConfigError says which key of which file is wrong.
type ConfigError struct {
	File, Key, Problem string
	Err                error // the cause, if there is a more specific one
}

// Error gives one line.
func (e *ConfigError) Error() string {
	if e.Key == "" {
		return e.File + ": " + e.Problem
	}
	return e.File + ": " + e.Key + ": " + e.Problem
}

// Unwrap gives the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

// maxDim bounds every size of a configuration, so that products of three fit an int64; maxLayers bounds what is
// listed per block.
const (
	maxDim    = 1 << 20
	maxVocab  = 1 << 24
	maxLayers = 1 << 14
)

// ParseConfig reads the text of a config.json; file is its name for messages. Every error is a [ConfigError], around
// [ErrUnknown] for an architecture without a table.
func ParseConfig(file string, text []byte) (*Config, error) {
	r := &configReader{file: file, used: map[string]bool{}}
	if err := json.Unmarshal(text, &r.raw); err != nil {
		return nil, &ConfigError{File: file, Problem: "not a JSON object: " + err.Error(), Err: err}
	}
	if r.raw == nil {
		return nil, &ConfigError{File: file, Problem: "not a JSON object"}
	}

	if key := orderedjson.Twice(text); key != "" { // another reader may take the other value
		return nil, &ConfigError{File: file, Key: key, Problem: "given twice"}
	}

	c := &Config{flags: map[string]bool{}}
	for _, step := range []func(*Config){
		r.architecture, r.refusals, r.sizes, r.attention, r.mlp, r.windows, r.rope, r.tokens, r.unknown,
	} {
		step(c)
		if r.err != nil {
			return nil, r.err
		}
	}

	return c, nil
}

// architecture finds the table by model_type, or by the class where an old file has no model_type.
func (r *configReader) architecture(c *Config) {
	modelType := r.text("model_type", "")
	classes := r.strings("architectures")
	if r.err != nil {
		return
	}

	var err error
	if modelType != "" {
		r.arch, err = Lookup(modelType)
	} else {
		r.arch, err = ByClass(classes)
	}
	if err != nil {
		r.err = &ConfigError{File: r.file, Problem: err.Error(), Err: err}
		return
	}

	c.Arch, c.ModelType = r.arch, r.arch.ModelType
	c.DType = r.text("dtype", r.text("torch_dtype", ""))
}

// refusals checks the keys that would change the computation in ways the engine does not have.
func (r *configReader) refusals(*Config) {
	shared, err := loadCommon()
	if err != nil {
		r.err = err
		return
	}
	r.ignore = slices.Concat(shared.IgnoreKeys, r.arch.IgnoreKeys)
	for _, rule := range slices.Concat(shared.Refuse, r.arch.Refuse) {
		r.refuse(rule)
	}
}

func (r *configReader) refuse(rule Rule) {
	value, ok := r.get(rule.Key)
	if !ok {
		return
	}

	allowed := slices.ContainsFunc(rule.Allow, func(a json.RawMessage) bool { return string(a) == string(value) })
	if allowed {
		return
	}
	if rule.SameAs == "" {
		r.fail(rule.Key, "%s is not supported for %s", clip(value), r.arch.ModelType)
		return
	}

	if n, _ := r.integer(rule.SameAs, 1, maxDim); string(value) != fmt.Sprint(n) {
		r.fail(rule.Key, "%s is not supported for %s, which has %d here", clip(value), r.arch.ModelType, n)
	}
}

// sizes reads the dimensions and what follows from them.
func (r *configReader) sizes(c *Config) {
	c.Vocab, _ = r.integer("vocab", 1, maxVocab)
	c.Hidden, _ = r.integer("hidden", 1, maxDim)
	c.EmbedDim = r.integerOr("embed_dim", 1, maxDim, c.Hidden)
	c.Layers, _ = r.integer("layers", 1, maxLayers)
	c.Heads, _ = r.integer("heads", 1, maxDim)
	c.KVHeads = r.integerOr("kv_heads", 1, maxDim, c.Heads)
	if r.err == nil && c.Heads%c.KVHeads != 0 {
		r.fail(r.key("heads"), "%d is not a multiple of the %d key/value heads", c.Heads, c.KVHeads)
	}

	if head, ok := r.integer("head_dim", 1, maxDim); ok {
		c.HeadDim = head
	} else if r.err == nil {
		c.HeadDim = r.quotient("hidden", "heads")
	}

	r.latent(c)
	r.falconHeads(c)
	c.Inner, _ = r.integer("inner", 1, maxDim*8)
	c.MaxPositions, _ = r.integer("positions", 1, 1<<30)
	eps, _ := r.float("eps")
	if r.err == nil {
		c.Eps = float32(eps)
		if eps < 0 || c.Eps > 1 {
			r.fail(r.key("eps"), "%g is not between 0 and 1", eps)
		}
	}

	c.Tied, c.Parallel = r.flag("tied"), r.flag("parallel")
	c.EmbedScale = r.factor("embed_multiplier")
	if c.Arch.EmbedScale == SqrtHidden {
		c.EmbedScale = float32(math.Sqrt(float64(c.Hidden)))
	}
	c.ResidualScale = r.factor("residual_multiplier")
	c.LogitScale = r.factor("logit_scale") / r.factor("logit_divisor")

	c.PostNorm = r.has("norm_first") && !r.flag("norm_first")
	for _, name := range Conditions() {
		c.flags[name] = r.flag(name)
	}

	c.flags["projected"] = c.EmbedDim != c.Hidden
	c.flags["parallel"] = c.Parallel
	c.flags["q_latent"] = c.QRank > 0
	c.flags["two_norms"] = r.twoNorms(c)
	c.QKNorm = c.Arch.QKNorm
	if r.has("qk_norm") && !r.flag("qk_norm") {
		c.QKNorm = ""
	}
	c.flags["no_final_norm"] = c.flags["no_final_norm"] || c.PostNorm
}

// attention reads the score scale and the caps.
func (r *configReader) attention(c *Config) {
	scale := 1 / math.Sqrt(float64(c.HeadDim))
	if c.KVRank > 0 {
		scale = 1 / math.Sqrt(float64(c.NopeDim+c.RopeDim))
	}
	if n, ok := r.float("query_scalar"); ok {
		if n <= 0 {
			r.fail(r.key("query_scalar"), "%g is not positive", n)
			return
		}
		scale = 1 / math.Sqrt(n)
	}

	if n, ok := r.float("attn_scale"); ok {
		scale = n
	}
	if r.has("scale_attn") && !r.flag("scale_attn") {
		scale = 1
	}

	c.AttnScales = make([]float32, c.Layers)
	byLayer := r.flag("scale_by_layer")
	for l := range c.AttnScales {
		c.AttnScales[l] = float32(scale)
		if byLayer {
			c.AttnScales[l] = float32(scale / float64(l+1))
		}
	}

	c.AttnSoftcap = r.cap("attn_softcap")
	c.FinalSoftcap = r.cap("final_softcap")
	c.ClipQKV = r.cap("clip_qkv")
}

// mlp reads the activation and the mixture.
func (r *configReader) mlp(c *Config) {
	name := r.text(r.key("activation"), r.fallback("activation"))
	f, ok := activations[name]
	if !ok && r.err == nil {
		r.fail(r.key("activation"), "unknown activation %.60q; known: %s", name, strings.Join(activationNames(), ", "))
	}

	c.Activation = f
	c.Mixture = make([]bool, c.Layers)
	c.SharedInner = r.integerOr("shared_inner", 0, maxDim*8, 0)
	c.flags["shared"] = c.SharedInner > 0
	if !r.has("experts") || r.err != nil {
		return
	}

	if c.Experts, _ = r.integer("experts", 0, 1<<14); c.Experts == 0 {
		r.used[r.key("top_k")] = true
		return
	}
	c.TopK, _ = r.integer("top_k", 1, 1<<14)
	if r.err == nil && c.TopK > c.Experts {
		r.fail(r.key("top_k"), "%d of %d experts", c.TopK, c.Experts)
	}

	c.NormTopK = r.flag("norm_top_k")
	c.ExpertInner = r.integerOr("expert_inner", 1, maxDim*8, c.Inner)
	if r.has("shared_experts") {
		c.SharedInner = r.integerOr("shared_experts", 0, 1<<10, 0) * c.ExpertInner
		c.flags["shared"] = c.SharedInner > 0
	}
	r.routing(c)
	step := r.integerOr("sparse_step", 1, maxLayers, 1)
	dense := r.integers("dense_layers", c.Layers)
	first := r.integerOr("dense_first", 0, maxLayers, 0)
	for l := range c.Mixture {
		c.Mixture[l] = (l+1)%max(step, 1) == 0 && l >= first && !slices.Contains(dense, l)
	}
	r.mlpTypes(c)
}

// Activation names an element-wise function of the MLP.
type Activation string

// The activations. Configurations spell some of them in several ways.
const (
	SiLU     Activation = "silu"      // x·sigmoid(x)
	GELU     Activation = "gelu"      // with the error function
	GELUTanh Activation = "gelu_tanh" // the approximation by tanh
	ReLU     Activation = "relu"      // max(x, 0)
)

// activations are the names that configurations use.
var activations = map[string]Activation{
	"silu": SiLU, "swish": SiLU, "gelu": GELU, "gelu_new": GELUTanh, "gelu_pytorch_tanh": GELUTanh,
	"gelu_fast": GELUTanh, "relu": ReLU,
}

func activationNames() []string {
	names := make([]string, 0, len(activations))
	for n := range activations {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// windows works out which blocks slide: layer_types if given, the architecture's rule otherwise.
func (r *configReader) windows(c *Config) {
	window := r.integerOr("window", 0, 1<<30, 0)
	if r.has("use_window") && !r.flag("use_window") {
		window = 0
	}

	from := r.integerOr("window_from", 0, 1<<30, 0)
	period := max(r.integerOr("window_pattern", 1, maxLayers, 1), 1)
	c.Windows = make([]int, c.Layers)
	for l := range c.Windows {
		slides := map[Window]bool{
			AllBlocks: true, EvenBlocks: l%2 == 0, FromBlock: l >= from, Pattern: (l+1)%period != 0,
			Unrotated: c.Arch.Window == Unrotated && !r.rotates(c, l),
		}[c.Arch.Window]
		if slides {
			c.Windows[l] = window
		}
	}

	if types := r.strings("layer_types"); r.err == nil && types != nil {
		r.layerTypes(c, types, window)
	}
}

func (r *configReader) layerTypes(c *Config, types []string, window int) {
	if len(types) != c.Layers {
		r.fail("layer_types", "%d entries for %d layers", len(types), c.Layers)
		return
	}

	for l, t := range types {
		switch {
		case t == "full_attention", t == "attention":
			c.Windows[l] = 0
		case t == "sliding_attention" && window > 0:
			c.Windows[l] = window
		case t == "sliding_attention":
			r.fail("layer_types", "layer %d slides, but the configuration gives no window", l)
			return
		default:
			r.fail("layer_types", "layer %d: unknown type %.60q; known: full_attention, sliding_attention", l, t)
			return
		}
	}
}

// tokens reads the special tokens.
func (r *configReader) tokens(c *Config) {
	c.EOS = r.ids("eos_token_id")
	c.BOS = -1
	if bos := r.ids("bos_token_id"); len(bos) > 0 {
		c.BOS = bos[0]
	}
}

// unknown lists the keys that nobody asked for.
func (r *configReader) unknown(c *Config) {
	for key := range r.raw {
		if !r.used[key] && !slices.Contains(r.ignore, key) {
			c.Unknown = append(c.Unknown, key)
		}
	}
	slices.Sort(c.Unknown)

	absent := func(key string) bool { _, there := r.raw[key]; return !there }
	for key := range r.used {
		if absent(key) {
			c.absent = append(c.absent, key)
		}
	}
	slices.Sort(c.absent)
}

// Meant is the key that an unknown one is likely to be a misspelling of, among those that the architecture has and the
// file does not give; "" if none is near.
func (c *Config) Meant(unknown string) string {
	// Keys of other programs are similar to many of ours (hidden_sizes, hidden_act) without standing for them: a slip
	// of the fingers changes a letter or two.
	near := strictyaml.Near(unknown, c.absent)
	if near == "" || strictyaml.Distance(unknown, near) > 1+len(unknown)/10 {
		return ""
	}
	return near
}

// Dim gives the size that a shape's dimension name stands for.
func (c *Config) Dim(name string) int64 {
	q, kv := int64(c.Heads)*int64(c.HeadDim), int64(c.KVHeads)*int64(c.HeadDim)
	switch name {
	case "vocab":
		return int64(c.Vocab)
	case "hidden":
		return int64(c.Hidden)
	case "embed_dim":
		return int64(c.EmbedDim)
	case "q":
		return q
	case "kv":
		return kv
	case "qkv":
		return q + 2*kv
	case "head_dim":
		return int64(c.HeadDim)
	case "inner":
		return int64(c.Inner)
	case "gate_up":
		return 2 * int64(c.Inner)
	case "positions":
		return int64(c.MaxPositions) + int64(c.Arch.PositionOffset)
	case "experts":
		return int64(c.Experts)
	case "expert_inner":
		return int64(c.ExpertInner)
	case "shared_inner":
		return int64(c.SharedInner)
	case "one":
		return 1
	case "heads":
		return int64(c.Heads)
	case "kv_heads":
		return int64(c.KVHeads)
	case "shared_gate_up":
		return 2 * int64(c.SharedInner)
	}

	if n, ok := c.latentDim(name); ok {
		return n
	}

	panic("arch: architecture table names an unknown dimension")
}

// Holds evaluates a table's condition for block l (-1 outside of blocks).
func (c *Config) Holds(when string, l int) bool {
	if when == "" {
		return true
	}
	for one := range strings.SplitSeq(when, " & ") {
		name, negated := strings.CutPrefix(one, "!")
		is := c.flags[name]
		if name == "moe" {
			is = c.Mixture[l]
		}
		if is == negated {
			return false
		}
	}
	return true
}
