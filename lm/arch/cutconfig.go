package arch

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
)

// perLayer are keys of configurations that hold an entry for each block, whether or not the engine reads them.
var perLayer = []string{
	"layer_types", "mlp_layer_types", "no_rope_layers", "attention_layers", "attention_types", "block_types",
	"layers_block_type", "sliding_window_layers", "per_layer_config", "rope_layers",
}

// Config rewrites the text of the config.json whose values c holds for the smaller model, and gives those values. Keys
// that the cut does not concern stay as they are. What is not said in so many words and follows from the number of a
// block (windows, mixtures, rotations) is written down where blocks get other numbers. The result is read again and
// compared with what was meant: an architecture that cannot say it is refused with an error that wraps [ErrCut]. notes
// say what else changed.
func (k *Cut) Config(c *Config, text []byte) (smaller []byte, values *Config, notes []string, err error) {
	if err := k.Check(c); err != nil {
		return nil, nil, nil, err
	}

	object, err := orderedjson.Parse(text)
	if err != nil {
		return nil, nil, nil, err
	}

	w := &configCut{Cut: k, from: c, object: object, done: map[string]bool{}}
	w.want = k.smaller(c)
	for _, step := range []func() error{w.sizes, w.lists, w.blockNumbers, w.others} {
		if err := step(); err != nil {
			return nil, nil, nil, err
		}
	}

	if smaller, values, err = w.settle(); err != nil {
		return nil, nil, nil, err
	}

	return smaller, values, w.notes, nil
}

// smaller is the configuration that a cut means.
func (k *Cut) smaller(c *Config) *Config {
	to := *c
	size := func(into *int, list []int) {
		if list != nil {
			*into = len(list)
		}
	}
	blocks := k.Blocks(c)
	size(&to.Layers, k.Layers)
	size(&to.Hidden, k.Hidden)
	size(&to.Vocab, k.Words)
	if c.EmbedDim == c.Hidden {
		to.EmbedDim = to.Hidden
	}

	to.AttnScales, to.Windows = nil, nil
	to.RopeOf, to.Mixture = nil, nil
	for _, l := range blocks {
		queries, values := k.heads(c, l)
		to.Heads, to.KVHeads = len(queries), len(values)
		to.AttnScales = append(to.AttnScales, c.AttnScales[l])
		to.Windows = append(to.Windows, c.Windows[l])
		to.RopeOf = append(to.RopeOf, c.RopeOf[l])
		to.Mixture = append(to.Mixture, c.Mixture[l])
		if !c.Mixture[l] {
			size(&to.Inner, of(k.Inner, l))
			continue
		}

		size(&to.SharedInner, of(k.SharedInner, l))
		size(&to.Experts, of(k.Experts, l))
		if lists := of(k.ExpertInner, l); lists != nil {
			size(&to.ExpertInner, lists[k.experts(c, l)[0]])
		}
		if _, own := c.Arch.Config["expert_inner"]; !own {
			to.Inner = to.ExpertInner
		}
	}

	return &to
}

// configCut rewrites one configuration.
type configCut struct {
	*Cut
	from, want *Config
	object     *orderedjson.Object
	done       map[string]bool // fields that were written
	notes      []string
}

// size is a field of the configuration that is a size.
type size struct {
	field string
	of    func(c *Config) int
}

var cutSizes = []size{
	{"layers", func(c *Config) int { return c.Layers }},
	{"hidden", func(c *Config) int { return c.Hidden }},
	{"vocab", func(c *Config) int { return c.Vocab }},
	{"heads", func(c *Config) int { return c.Heads }},
	{"kv_heads", func(c *Config) int { return c.KVHeads }},
	{"head_dim", func(c *Config) int { return c.HeadDim }},
	{"inner", func(c *Config) int { return c.Inner }},
	{"experts", func(c *Config) int { return c.Experts }},
	{"expert_inner", func(c *Config) int { return c.ExpertInner }},
	{"shared_inner", func(c *Config) int { return c.SharedInner }},
	{"embed_dim", func(c *Config) int { return c.EmbedDim }},
}

// sizes writes the sizes that change.
func (w *configCut) sizes() error {
	for _, s := range cutSizes {
		if s.of(w.from) != s.of(w.want) {
			if err := w.put(s.field, s.of(w.want)); err != nil {
				return err
			}
		}
	}

	// Keys that may only repeat another one go with it.
	for _, rule := range w.from.Arch.Refuse {
		i := slices.IndexFunc(cutSizes, func(s size) bool { return s.field == rule.SameAs })
		if i >= 0 && w.object.Has(rule.Key) {
			if err := w.object.Put(rule.Key, cutSizes[i].of(w.want)); err != nil {
				return err
			}
		}
	}

	// Runtimes take hidden/heads for the size of a head that is not written down.
	if w.want.Heads != w.from.Heads || w.want.Hidden != w.from.Hidden {
		return w.put("head_dim", w.want.HeadDim)
	}

	return nil
}

// put writes a field under its key and under the other spellings that the file has. A field without a key is left to
// the comparison of [configCut.settle].
func (w *configCut) put(field string, value any) error {
	key, ok := w.from.Arch.Config[field]
	if !ok || key.Key == "" {
		return nil
	}

	w.done[field] = true
	spelt := slices.DeleteFunc(append([]string{key.Key}, key.Also...), func(s string) bool { return !w.object.Has(s) })
	if len(spelt) == 0 {
		spelt = []string{key.Key}
	}

	for _, s := range spelt {
		if err := w.object.Put(s, value); err != nil {
			return err
		}
	}

	return nil
}

// lists cuts what has an entry for each block, also where the engine does not read it.
func (w *configCut) lists() error {
	if w.Layers == nil {
		return nil
	}

	for _, key := range w.object.Keys() {
		known := slices.Contains(perLayer, key)
		if !known && !slices.Contains(w.from.Unknown, key) {
			continue
		}

		var entries []json.RawMessage
		if !w.object.Decode(key, &entries) {
			continue
		}
		if len(entries) != w.from.Layers {
			if known {
				return fmt.Errorf("config.json: %s: %w: %d entries for %d layers",
					key, ErrCut, len(entries), w.from.Layers)
			}
			continue
		}

		var stay []json.RawMessage
		for _, l := range w.Layers {
			stay = append(stay, entries[l])
		}
		if err := w.object.Put(key, stay); err != nil {
			return err
		}
		if !known {
			w.notes = append(w.notes,
				fmt.Sprintf("config.json: %s, which is unknown and has an entry for each layer, was cut, too", key))
		}
	}

	return nil
}

// blockNumbers renumbers what names blocks or counts those before one.
func (w *configCut) blockNumbers() error {
	if w.Layers == nil {
		return nil
	}

	for _, field := range []string{"window_from", "dense_first"} {
		key, ok := w.from.Arch.Config[field]
		var from int
		if !ok || !w.object.Decode(key.Key, &from) {
			continue
		}

		before, _ := slices.BinarySearch(w.Layers, from)
		if err := w.put(field, before); err != nil {
			return err
		}
	}

	key, ok := w.from.Arch.Config["dense_layers"]
	var dense []int
	if !ok || !w.object.Decode(key.Key, &dense) {
		return nil
	}

	stay := []int{}
	for _, l := range dense {
		if i, ok := slices.BinarySearch(w.Layers, l); ok {
			stay = append(stay, i)
		}
	}

	return w.put("dense_layers", stay)
}

// others are keys that follow from what is left out.
func (w *configCut) others() error {
	if w.want.Hidden != w.from.Hidden && w.object.Has("mamba_expand") {
		return fmt.Errorf("config.json: hidden_size: %w: sizes of layers that this model does not have, mamba_expand "+
			"and others, are tied to it", ErrCut)
	}

	if w.want.SharedInner != w.from.SharedInner || w.want.ExpertInner != w.from.ExpertInner {
		if _, ok := w.from.Arch.Config["shared_experts"]; ok && w.want.ExpertInner > 0 {
			if err := w.put("shared_experts", w.want.SharedInner/w.want.ExpertInner); err != nil {
				return err
			}
		}
	}

	// Blocks behind the last one, which predict further tokens, are not part of the smaller model.
	const extra = "num_nextn_predict_layers"
	var behind int
	if w.from.Arch.ExtraBlocks && w.object.Decode(extra, &behind) && behind > 0 {
		w.notes = append(w.notes, fmt.Sprintf("config.json: %s is 0: the %d blocks behind the last one are left out",
			extra, behind))
		return w.object.Put(extra, 0)
	}

	return nil
}

// settle reads what was written, writes down what an absent key would now say otherwise, and compares.
func (w *configCut) settle() ([]byte, *Config, error) {
	for {
		text, err := w.object.Indent()
		if err != nil {
			return nil, nil, err
		}

		have, err := ParseConfig("config.json", text)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: the smaller model would have no valid configuration: %w", ErrCut, err)
		}

		more, err := w.spell(have)
		if err != nil {
			return nil, nil, err
		}
		if !more {
			return text, have, w.compare(have)
		}
	}
}

// spell writes the fields down that the text leaves to a rule which gives something else now; false: there is none
// that is not written already.
func (w *configCut) spell(have *Config) (bool, error) {
	for _, s := range cutSizes {
		key, ok := w.from.Arch.Config[s.field]
		if s.of(have) != s.of(w.want) && ok && key.Key != "" && !w.done[s.field] {
			return true, w.put(s.field, s.of(w.want))
		}
	}

	if !slices.Equal(have.Windows, w.want.Windows) && !w.done["layer_types"] {
		w.done["layer_types"] = true
		return true, w.object.Put("layer_types", named(w.want.Layers, "full_attention", "sliding_attention",
			func(l int) bool { return w.want.Windows[l] > 0 }))
	}

	_, listed := w.from.Arch.Config["rope_layers"]
	if listed && !slices.Equal(have.RopeOf, w.want.RopeOf) && !w.done["rope_layers"] {
		return true, w.put("rope_layers", named(w.want.Layers, 0, 1, func(l int) bool { return w.want.RopeOf[l] >= 0 }))
	}

	_, dense := w.from.Arch.Config["dense_layers"]
	if dense && !slices.Equal(have.Mixture, w.want.Mixture) && !w.done["sparse_step"] {
		var list []int
		for l, mixture := range w.want.Mixture {
			if !mixture {
				list = append(list, l)
			}
		}
		if err := w.put("dense_layers", list); err != nil {
			return false, err
		}
		w.done["sparse_step"] = true
		return true, w.put("sparse_step", 1)
	}

	return false, nil
}

// named lists one of two names for each block.
func named[T any](n int, no, yes T, is func(l int) bool) []T {
	list := make([]T, n)
	for l := range list {
		list[l] = no
		if is(l) {
			list[l] = yes
		}
	}
	return list
}

// compare refuses a configuration that does not say what was meant.
func (w *configCut) compare(have *Config) error {
	var wrong []string
	for _, s := range cutSizes {
		name := w.from.Arch.Config[s.field].Key
		if name == "" {
			name = s.field
		}
		if a, b := s.of(have), s.of(w.want); a != b {
			wrong = append(wrong, fmt.Sprintf("%s %d instead of %d", name, a, b))
		}
	}

	// What follows from sizes is not told besides them.
	if wrong == nil {
		if have.EmbedScale != w.want.EmbedScale {
			wrong = append(wrong, "another factor on embeddings, which follows from the hidden size")
		}
		if !slices.Equal(have.AttnScales, w.want.AttnScales) {
			wrong = append(wrong, "other factors on attention scores, which follow from the numbers of layers")
		}
		if !slices.Equal(have.Windows, w.want.Windows) {
			wrong = append(wrong, "other attention windows")
		}
		if !slices.Equal(have.Mixture, w.want.Mixture) {
			wrong = append(wrong, "mixtures in other layers")
		}
		if !reflect.DeepEqual(have.rotations(), w.want.rotations()) {
			wrong = append(wrong, "other rotations")
		}
	}
	if wrong == nil {
		return nil
	}

	return fmt.Errorf("%w: config.json of a %s cannot say it, it would give %s", ErrCut, w.from.ModelType,
		strings.Join(wrong, ", "))
}

// rotations lists the rotation of each block; nil: none.
func (c *Config) rotations() []*Rope {
	list := make([]*Rope, len(c.RopeOf))
	for l, i := range c.RopeOf {
		if i >= 0 {
			list[l] = c.Ropes[i]
		}
	}
	return list
}
