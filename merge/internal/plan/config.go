package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// perLayer are the keys of config.json that hold a list with an entry per layer.
var perLayer = []string{
	"layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers", "attn_types",
	"moe_layer_freq",
}

// layerNumbers are the keys that hold a list of layer numbers.
var layerNumbers = []string{"mlp_only_layers", "moe_layers", "full_attn_idxs"}

// OutputConfig gives the text of the output's config.json: the donor's, with its keys in their order, and the number of
// layers, the lists over layers, the vocabulary's size, the type and the tie of head and token table as the plan has
// them. Where the recipe takes another model's tokenizer, the numbers of the special tokens are that model's.
func (p *Plan) OutputConfig(donor []byte) ([]byte, error) {
	o, err := orderedjson.Parse(donor)
	if err != nil {
		return nil, fmt.Errorf("config.json of %s: %w", p.Models[p.Donor], err)
	}

	text, inner := o, ""
	if !o.Has(p.key("layers", "num_hidden_layers")) && o.Has("text_config") {
		inner = "text_config" // several modules: the language model's part
		if text, err = orderedjson.Parse(o.Get(inner)); err != nil {
			return nil, fmt.Errorf("config.json of %s: text_config: %w", p.Models[p.Donor], err)
		}
	}

	if err := p.editConfig(o, text); err != nil {
		return nil, err
	}

	if inner != "" {
		part, err := text.Compact()
		if err != nil {
			return nil, err
		}
		o.Set(inner, part)
	}

	return o.Indent()
}

// editConfig changes what the merge changed: o is the whole configuration, text the language model's part of it.
func (p *Plan) editConfig(o, text *orderedjson.Object) error {
	changed := map[string]any{}
	if p.relayered() {
		changed[p.key("layers", "num_hidden_layers")] = p.Blocks
		p.editLayers(text, changed)
	}

	if p.rows > 0 {
		changed[p.key("vocab", "vocab_size")] = p.rows
		p.editTokens(changed)
	}

	key := p.key("tied", "tie_word_embeddings")
	if p.writesHead() && p.layouts[p.Donor].tied || p.losesHead() {
		// Multimodal configurations say it twice, inside and outside of the text model's part.
		changed[key] = !p.writesHead()
		if o != text && o.Has(key) {
			o.Set(key, json.RawMessage(strconv.FormatBool(!p.writesHead())))
		}
	}

	// Sorted, so that a key that is new to the file has the same place in every run.
	for _, key := range slices.Sorted(maps.Keys(changed)) {
		if err := text.Put(key, changed[key]); err != nil {
			return err
		}
	}

	if name := p.mainType(); name != "" {
		for _, part := range []*orderedjson.Object{o, text} {
			// Newer versions of transformers write dtype, older ones torch_dtype; only the name that is there is
			// kept up to date.
			if part.Has("dtype") {
				part.Set("dtype", json.RawMessage(`"`+name+`"`))
			} else if part.Has("torch_dtype") || part == o {
				part.Set("torch_dtype", json.RawMessage(`"`+name+`"`))
			}
		}
	}

	return nil
}

// key gives the donor's spelling of a field of the configuration.
func (p *Plan) key(field, usual string) string {
	if table := p.layouts[p.Donor].table; table != nil && table.Config[field].Key != "" {
		return table.Config[field].Key
	}
	return usual
}

// relayered reports whether the output's layers are not the donor's one by one.
func (p *Plan) relayered() bool {
	l := p.layouts[p.Donor]
	if len(l.order) == 0 {
		return false
	}
	if p.Blocks != l.layers[l.order[0]] {
		return true
	}
	return slices.ContainsFunc(p.origins, func(o origin) bool { return o.model != p.origins[0].model }) || !p.inOrder()
}

// inOrder reports whether layer i of the output comes from layer i of an input throughout.
func (p *Plan) inOrder() bool {
	for i, from := range p.origins {
		if from.layer != i {
			return false
		}
	}
	return true
}

// editLayers brings the lists over layers in line: each layer has the entry of the layer that it comes from.
func (p *Plan) editLayers(text *orderedjson.Object, changed map[string]any) {
	configs := map[int]*orderedjson.Object{}
	for _, from := range p.origins {
		if configs[from.model] == nil {
			o, err := orderedjson.Parse(p.inputs[from.model].Config)
			if err != nil {
				// Only lists are looked up in it, so a configuration that cannot be read gives no entries, which
				// leaves the key alone.
				o = text
			}
			configs[from.model] = o
		}
	}

	for _, key := range perLayer {
		var entries []json.RawMessage
		for _, from := range p.origins {
			var list []json.RawMessage
			if configs[from.model].Decode(key, &list) && from.layer < len(list) {
				entries = append(entries, list[from.layer])
			}
		}

		// A list for some layers only would be read as one for the first of them.
		if text.Has(key) && len(entries) == len(p.origins) {
			changed[key] = entries
		}
	}

	for _, key := range layerNumbers {
		var old []int
		if !text.Decode(key, &old) {
			continue
		}

		out := []int{}
		for i, from := range p.origins {
			var list []int
			// Numbers are those of the layer in its own model, and become those of the output.
			if configs[from.model].Decode(key, &list) && slices.Contains(list, from.layer) {
				out = append(out, i)
			}
		}

		changed[key] = out
	}
}

// editTokens takes over the numbers of the special tokens from the model whose tokenizer the output has.
func (p *Plan) editTokens(changed map[string]any) {
	if p.Tokenizer == nil || p.Tokenizer.Vocabulary != recipe.FromRef {
		return
	}

	i := slices.Index(p.Models, p.Tokenizer.Model)
	o, err := orderedjson.Parse(p.inputs[i].Config)
	if err != nil {
		return
	}

	for _, key := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
		if o.Has(key) {
			changed[key] = o.Get(key)
		}
	}
}

// writesHead reports whether the output has a head of its own.
func (p *Plan) writesHead() bool {
	return slices.ContainsFunc(p.Tensors, func(t Tensor) bool { return t.Role == arch.Head })
}

// losesHead reports whether the configuration speaks of a head of its own that the output does not have, as after a
// last slice of a model whose head is its token table: without a word of the tie, a reader would make one up.
func (p *Plan) losesHead() bool {
	known := slices.ContainsFunc(p.layouts, func(l *layout) bool { return l.tied || l.has(arch.Head) })
	return known && !p.layouts[p.Donor].tied && !p.writesHead() &&
		slices.ContainsFunc(p.Tensors, func(t Tensor) bool { return t.Role == arch.Embed })
}

// mainType names the type of most of the output's bytes, "" for none that a configuration names.
func (p *Plan) mainType() string {
	bytes := map[safetensors.DType]int64{}
	var best safetensors.DType

	for _, t := range p.Tensors {
		if size, err := t.DType.ByteSize(t.Shape); err == nil {
			bytes[t.DType] += size
		}
	}

	for _, d := range []safetensors.DType{safetensors.BF16, safetensors.F16, safetensors.F32, safetensors.F64} {
		if bytes[d] > bytes[best] {
			best = d
		}
	}

	return dtype.Torch(best)
}
