// Package typemix says which type each tensor of a GGUF file gets in the mixtures of llama.cpp: Q4_K_M, for example, is
// not Q4_K throughout.
//
// # Rules
//
// Matrices whose names end in "weight" are quantised, but for norms, the routers of experts and what is small or counts
// positions; everything else keeps its type. The output, or the embedding where there is no output of its own, is Q6_K.
// The values of attention and the second matrix of a feed-forward network suffer most, and get more bits in some
// layers: the first eighth, the last eighth, and every third between. Where heads share keys and values, or there are
// eight experts, the attention is a small part of the model, and gets more bits throughout. A row that a type's blocks
// do not divide gets a type of smaller blocks, and F16 if 32 does not divide it either.
//
// Layers are counted as llama.cpp does: by the tensors of a kind in the order of layers and names, except in models
// with experts, where the number in the name counts. The source is its llama-quant.cpp, of the version with MXFP4 and
// Q2_K_S; testdata/make.py asks its llama-quantize.
package typemix

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Model is what a mixture depends on.
type Model struct {
	Architecture string // as GGUF spells it: llama, qwen3moe
	Layers       int    // decoder layers, block_count
	Heads        int    // attention heads of the first layer
	KVHeads      int    // heads of keys and values of the first layer
	Experts      int    // of a layer; 0 or 1 without
}

// Tensor is a tensor of the file.
type Tensor struct {
	Name string
	// Shape is in GGUF's order: the length of a row first.
	Shape []uint64
	// Type is the one that it has, which it keeps if it is not quantised.
	Type string
}

// Mix is a mixture.
type Mix struct {
	Name     string // q4_k_m
	FileType uint32 // general.file_type
	Base     string // the type of most tensors

	// What is not of the base type, each by the place: the values of attention, the second matrix of the feed-forward
	// network, and the output of attention; nil or "" means nothing else.
	value, down, output func(p place) string
	// expertOutput is whether models of eight experts have Q5_K in the output of attention.
	expertOutput bool
	// experts is whether the matrices of experts are of the base type and all others Q8_0.
	experts bool

	// Weighted: without an importance of their columns nothing useful is left of matrices of the base type, and
	// llama.cpp refuses to make them; those of the tokens and of the head aside, see [Mix.Needs].
	Weighted bool
}

// Needs reports whether a tensor of a type needs an importance of its columns.
func (m Mix) Needs(name, as string) bool {
	return m.Weighted && as == m.Base && name != "token_embd.weight" && name != "output.weight"
}

// place is where a tensor stands among those of its kind.
type place struct {
	*Model
	layer, layers int
	weighted      bool // there is an importance of columns
}

// shared reports whether four and more heads share their keys and values.
func (p place) shared() bool { return p.KVHeads > 0 && p.Heads/p.KVHeads >= 4 }

// within reports whether a layer is in the first of so many parts.
func (p place) within(parts int) bool { return p.layer < p.layers/parts }

// chosen reports whether a layer is one of those that get more bits.
func (p place) chosen() bool {
	eighth := p.layers / 8
	return p.layer < eighth || p.layer >= 7*p.layers/8 || (p.layer-eighth)%3 == 2
}

func (p place) falcon() bool { return p.Architecture == "falcon" }

// large reports whether it is a model of 70 billion weights, of those whose values are an eighth of the queries.
func (p place) large() bool {
	switch p.Architecture {
	case "llama":
		return p.Layers == 80 && p.Heads != p.KVHeads && p.Experts != 8
	case "qwen2", "deci", "olmo":
		return p.Layers == 80
	case "jais2":
		return p.Layers == 68
	}
	return false
}

// always, chosen and the like choose a type by the place.
func always(t string) func(place) string { return func(place) string { return t } }

func chosen(t string) func(place) string {
	return func(p place) string { return either(p.chosen(), t, "") }
}

func shared(t, otherwise string) func(place) string {
	return func(p place) string { return either(p.shared(), t, otherwise) }
}

func either(is bool, t, otherwise string) string {
	if is {
		return t
	}
	return otherwise
}

// early gives the first eighth more, with an importance or without.
func early(t string, weighted bool) func(place) string {
	return func(p place) string { return either(p.within(8) && p.weighted == weighted, t, "") }
}

// mixes is the table.
var mixes = []Mix{
	{Name: "f32", FileType: 0, Base: "F32"},
	{Name: "f16", FileType: 1, Base: "F16"},
	{Name: "bf16", FileType: 32, Base: "BF16"},
	{Name: "q8_0", FileType: 7, Base: "Q8_0"},
	{Name: "q4_0", FileType: 2, Base: "Q4_0", down: early("Q4_1", true)},
	{Name: "q4_1", FileType: 3, Base: "Q4_1"},
	{Name: "q5_0", FileType: 8, Base: "Q5_0", down: early("Q5_1", true)},
	{Name: "q5_1", FileType: 9, Base: "Q5_1"},
	{
		Name: "q2_k", FileType: 10, Base: "Q2_K", expertOutput: true,
		value: shared("Q4_K", "Q3_K"), down: always("Q3_K"), output: always("Q3_K"),
	},
	{
		Name: "q2_k_s", FileType: 21, Base: "Q2_K", Weighted: true, value: shared("Q4_K", ""),
		down: func(p place) string { return either(p.within(8), "Q4_K", "") },
	},
	{Name: "q3_k_s", FileType: 11, Base: "Q3_K", expertOutput: true},
	{
		Name: "q3_k_m", FileType: 12, Base: "Q3_K", expertOutput: true, output: always("Q4_K"),
		value: func(p place) string { return either(p.layer < 2, "Q5_K", "Q4_K") },
		down: func(p place) string {
			return either(p.within(16), "Q5_K", either(!p.falcon() || p.chosen(), "Q4_K", "Q3_K"))
		},
	},
	{
		Name: "q3_k_l", FileType: 13, Base: "Q3_K", value: always("Q5_K"),
		down:   func(p place) string { return either(p.falcon(), "Q4_K", "Q5_K") },
		output: func(p place) string { return either(p.falcon(), "Q4_K", "Q5_K") },
	},
	{
		Name: "q4_k_s", FileType: 14, Base: "Q4_K", expertOutput: true,
		value: func(p place) string { return either(p.layer < 4, "Q5_K", "") },
		down:  func(p place) string { return either(p.within(8) && !p.falcon(), "Q5_K", "") },
	},
	{
		Name: "q4_k_m", FileType: 15, Base: "Q4_K", expertOutput: true, value: chosen("Q6_K"),
		down: func(p place) string {
			if p.falcon() {
				return either(p.within(16), "Q6_K", either(p.chosen(), "Q5_K", ""))
			}
			return either(p.chosen(), "Q6_K", "")
		},
	},
	{Name: "q5_k_s", FileType: 16, Base: "Q5_K"},
	{Name: "q5_k_m", FileType: 17, Base: "Q5_K", value: chosen("Q6_K"), down: chosen("Q6_K")},
	{Name: "q6_k", FileType: 18, Base: "Q6_K"},
	{
		Name: "iq4_nl", FileType: 25, Base: "IQ4_NL", expertOutput: true, value: shared("Q5_K", ""),
		down: early("Q5_K", false),
	},
	{
		Name: "iq4_xs", FileType: 30, Base: "IQ4_XS", expertOutput: true, value: shared("Q5_K", ""),
		down: early("Q5_K", false),
	},
	{Name: "mxfp4", FileType: 38, Base: "MXFP4", experts: true},
}

// Named finds a mixture by its name in lower case.
func Named(name string) (Mix, bool) {
	i := slices.IndexFunc(mixes, func(m Mix) bool { return m.Name == name })
	if i < 0 {
		return Mix{}, false
	}
	return mixes[i], true
}

// Names lists the mixtures.
func Names() (names []string) {
	for _, m := range mixes {
		names = append(names, m.Name)
	}
	return names
}

// Types gives the type of each tensor, in their order. weighted is whether there is an importance of the columns. The
// error names a tensor of a model with experts whose layer is not to be seen.
func (m Mix) Types(model Model, tensors []Tensor, weighted bool) ([]string, error) {
	types, err := m.Wanted(model, tensors, weighted)
	if err != nil {
		return nil, err
	}
	for i, t := range tensors {
		types[i] = Fit(types[i], t.Shape[0])
	}
	return types, nil
}

// Wanted is [Mix.Types] without regard to the lengths of rows.
func (m Mix) Wanted(model Model, tensors []Tensor, weighted bool) ([]string, error) {
	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(layerOf(tensors[a].Name)-layerOf(tensors[b].Name), cmp.Compare(tensors[a].Name, tensors[b].Name))
	})

	c := counter{Mix: m, model: &model, weighted: weighted, tied: true}
	for _, t := range tensors {
		switch kindOf(t.Name) {
		case value:
			c.values++
		case output:
			c.tied = false
		}
	}

	types := make([]string, len(tensors))
	for _, i := range order {
		t := tensors[i]
		types[i] = t.Type
		if !quantised(model.Architecture, t) {
			continue
		}
		to, err := c.next(t)
		if err != nil {
			return nil, err
		}
		types[i] = to
	}
	return types, nil
}

// layerOf is the layer in a name, -1 without one.
func layerOf(name string) int {
	rest, ok := strings.CutPrefix(name, "blk.")
	number, _, dot := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	if !ok || !dot || err != nil {
		return -1
	}
	return layer
}

// counter goes through the tensors in llama.cpp's order.
type counter struct {
	Mix
	model    *Model
	weighted bool
	tied     bool // the embedding is the output too
	values   int  // how many matrices of values there are
	value    int  // how many have been seen
	down     int
}

// next is the type of one more tensor that is quantised.
func (c *counter) next(t Tensor) (string, error) {
	if _, is := blockOf[c.Base]; !is { // floats need no blocks
		return c.Base, nil
	}
	return c.wanted(t)
}

// wanted is the type without regard to the length of rows.
func (c *counter) wanted(t Tensor) (string, error) {
	kind := kindOf(t.Name)
	p := place{Model: c.model, layers: c.model.Layers, weighted: c.weighted}
	to := ""
	switch {
	case kind == output || kind == embedding && c.tied:
		return c.head(t), nil
	case c.experts:
		return either(len(t.Shape) > 2 && t.Shape[2] > 1, c.Base, "Q8_0"), nil
	case kind == value:
		p.layer = c.value
		p.layers = c.values
		c.value++
		to = c.valueType(p)
	case kind == key && c.model.Experts == 8:
		to = "Q8_0"
	case kind == down:
		p.layer = c.down
		c.down++
		if c.model.Experts > 1 {
			p.layer = layerOf(t.Name)
			if p.layer < 0 || p.layer >= p.layers {
				return "", fmt.Errorf("tensor %q: its layer is not one of %d", t.Name, p.layers)
			}
		}
		to = choice(c.Mix.down, p)
	case kind == attention && c.model.Experts == 8 && !p.falcon():
		to = either(c.expertOutput, "Q5_K", "")
	case kind == attention && (!p.falcon() || c.Name == "q3_k_l"):
		to = choice(c.output, p)
	}
	return cmp.Or(to, c.Base), nil
}

// valueType is that of a matrix of values.
func (c *counter) valueType(p place) string {
	to := cmp.Or(choice(c.Mix.value, p), c.Base)
	if p.large() && (to == "Q3_K" || to == "Q4_K") {
		to = "Q5_K"
	}
	return either(p.Experts == 8, "Q8_0", to)
}

// choice is what a rule says; "" if there is none.
func choice(rule func(place) string, p place) string {
	if rule == nil {
		return ""
	}
	return rule(p)
}

// head is the type of the output.
func (c *counter) head(t Tensor) string {
	if c.experts || c.Base == "Q8_0" || c.model.Architecture == "falcon" || t.Shape[0]%blockOf[c.Base] != 0 {
		return "Q8_0"
	}
	return "Q6_K"
}

// blockOf is how many elements a block has.
var blockOf = map[string]uint64{
	"Q8_0": 32, "Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q5_1": 32, "IQ4_NL": 32, "MXFP4": 32,
	"Q2_K": 256, "Q3_K": 256, "Q4_K": 256, "Q5_K": 256, "Q6_K": 256, "IQ4_XS": 256,
}

// smaller is the type of smaller blocks that is taken for rows of another length.
var smaller = map[string]string{
	"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
}

// Fit is the type for rows of so many elements: t, or where its blocks do not divide them the one of smaller blocks
// that llama.cpp takes in its place, and in the end F16.
func Fit(t string, cols uint64) string {
	if block, is := blockOf[t]; !is || cols%block == 0 { // floats need no blocks
		return t
	}
	if s, ok := smaller[t]; ok && cols%blockOf[s] == 0 {
		return s
	}
	return "F16"
}

// kind is what a tensor is to a mixture.
type kind int

const (
	other kind = iota
	embedding
	output
	value     // of attention, also as a part of one matrix with queries and keys
	key       // of attention
	attention // its output
	down      // the second matrix of a feed-forward network
)

func kindOf(name string) kind {
	switch name {
	case "output.weight":
		return output
	case "token_embd.weight", "per_layer_token_embd.weight":
		return embedding
	}

	for _, k := range []struct {
		part string
		kind kind
	}{
		{"attn_qkv.weight", value},
		{"attn_kv_b.weight", value},
		{"attn_v.weight", value},
		{"attn_k.weight", key},
		{"attn_q.weight", other},
		{"attn_output.weight", attention},
		{"ffn_up", other},
		{"ffn_gate", other},
		{"ffn_down", down},
	} {
		if strings.Contains(name, k.part) {
			return k.kind
		}
	}
	return other
}

// kept are parts of the names of matrices that are not quantised.
var kept = []string{
	"_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
	"ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight",
	"time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight",
	"time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight",
	"time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
	"time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_",
	".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
}

// quantised reports whether a tensor gets a type of the mixture.
func quantised(architecture string, t Tensor) bool {
	dims := len(t.Shape)
	for dims > 0 && t.Shape[dims-1] == 1 { // GGUF has no dimensions of 1 at the end
		dims--
	}
	if dims < 2 || !strings.HasSuffix(t.Name, "weight") {
		return false
	}

	switch t.Name {
	case "position_embd.weight", "token_types.weight":
		// Where an architecture has none, the name is as good as any other.
		return !positions[architecture]
	}
	return !slices.ContainsFunc(kept, func(part string) bool { return strings.Contains(t.Name, part) })
}

// positions are the architectures with an embedding of positions.
var positions = map[string]bool{"gpt2": true, "bert": true, "starcoder": true, "nomic-bert": true}

// Mostly is the mixture for files most of whose matrices have a type: the plainest one, where several have it.
func Mostly(t string) string {
	for _, m := range mixes {
		if m.Base == t && !m.experts && !strings.HasSuffix(m.Name, "_m") && !strings.HasSuffix(m.Name, "_l") {
			return m.Name
		}
	}
	for _, m := range mixes {
		if m.Base == t {
			return m.Name
		}
	}
	return ""
}
