package arch

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// GGUF says how files of llama.cpp's format spell an architecture. What most of them share stands in common.json:
// which metadata key holds a field of the configuration, and which tensors a role is made of. What follows from the
// rest of a table is not written down again: the format stores every matrix [out, in], norms of [RMSPlusOne] with
// 1 added, a fused projection as all of q, all of k, all of v, and what experts or heads have of their own in one
// tensor.
type GGUF struct {
	Name string `json:"name"` // general.architecture
	// When tells architectures of the same name apart: conditions joined by " & ", and these by " | ". One is a
	// metadata key that is there and neither 0 nor false, a key with "=" and its value, or a tensor's template that
	// some tensor matches; "!" negates it.
	When string `json:"when"`
	// Pairs: the rows of q and k stand as pairs of channels that rotate together, of which the checkpoint has the
	// first ones of a head before the second ones.
	Pairs bool `json:"pairs"`
	// Fused: checkpoints in circulation have experts in the layout of [Arch.Split].
	Fused bool `json:"fused"`
	// WrittenAs is another architecture's name, under which files are written: "experts" has that of models with a
	// mixture, "dense" that of others.
	WrittenAs map[string]string `json:"written_as"`
	// Splitter is the name for tokenizer.ggml.pre that is written where the tokenizer has more than one.
	Splitter string `json:"splitter"`
	// Unadapted lists the roles of matrices that llama.cpp computes without regard to an adapter that is loaded.
	Unadapted []Role `json:"unadapted"`
	// MergesByID: tokens of SentencePiece are joined by their place in the vocabulary, not by their scores.
	MergesByID bool `json:"merges_by_id"`

	Fields  map[string]GGUFKey           `json:"fields"`  // field of a configuration → where it is, over common.json's
	Require map[string][]json.RawMessage `json:"require"` // metadata key → what it may be, if it is there
	// Values are keys of config.json that the format does not hold; a text "=heads" names a field.
	Values map[string]json.RawMessage `json:"values"`
	// Each are keys of config.json that are lists with such a value for every block.
	Each    map[string]json.RawMessage `json:"each"`
	Rope    map[string]json.RawMessage `json:"rope"`    // the same for rotations that are scaled
	Tensors map[string][]string        `json:"tensors"` // see [Arch.Sources], over common.json's
	// Unread are keys that are written for other readers than llama.cpp, which computes as if they were not there.
	Unread []string `json:"unread"`
	Write  []string `json:"write"` // see [Arch.GGUFWrites]; nil: common.json's, empty: it is not written
}

// GGUFKey is where the metadata hold a field of the configuration. Keys stand behind the architecture's name and a dot;
// one that ends in .weight or .bias is the template of a tensor, and its value whether some tensor matches it.
type GGUFKey struct {
	Key   string `json:"key"`   // "": nowhere; Absent is then what the field always is
	Also  string `json:"also"`  // where files without Key have it
	Minus string `json:"minus"` // a key whose value is taken off
	// Absent is what the absence of the key means, in the words of [Key]; nil: what a configuration without the field
	// means, unless the key is required.
	Absent   json.RawMessage `json:"absent"`
	Required bool            `json:"required"`
	// Cases translates values: from their text ("" for an absent key, "*" for all others).
	Cases map[string]json.RawMessage `json:"cases"`
	// ByLayers are values for models with so many layers, for what readers of the format derive from that.
	ByLayers map[string]json.RawMessage `json:"by_layers"`
}

// ggufCommon is what architectures share in files of the format.
type ggufCommon struct {
	Fields  map[string]GGUFKey           `json:"fields"`
	Require map[string][]json.RawMessage `json:"require"`
	Tensors map[string][]string          `json:"tensors"`
	Ignore  []string                     `json:"ignore"`
	Write   []string                     `json:"write"`
}

// GGUFSource is one way in which files of the format store a tensor of a role.
type GGUFSource struct {
	Parts []GGUFPart
	// Alternate: the rows of the parts take turns, instead of following one another.
	Alternate bool
	// Written: files are written so where When holds, rather than in the first way that is not marked.
	Written bool
	When    string // see [Config.Holds]
}

// GGUFPart is a tensor of the file, or some of its rows.
type GGUFPart struct {
	Name string // template without the ending for weight or bias, unless it has one
	// Rows is which of the rows: "" for all, "q", "k" or "v" of a fused projection, "gate" or "up" of a fused pair,
	// which are halves.
	Rows string
	// Transposed: each matrix is stored [in, out].
	Transposed bool
}

// ByGGUF lists the architectures that files call by a name.
func ByGGUF(name string) ([]*Arch, error) {
	all, err := load()
	if err != nil {
		return nil, err
	}

	var list []*Arch
	for _, known := range Known() {
		if a := all[known]; a.GGUF != nil && a.GGUF.Name == name {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: general.architecture %.100q; known: %s", ErrUnknown, name,
			strings.Join(GGUFNames(), ", "))
	}

	return list, nil
}

// GGUFNames lists the names that files call architectures by, sorted.
func GGUFNames() []string {
	all, err := load()
	if err != nil {
		return nil
	}

	var names []string
	for _, a := range all {
		if a.GGUF != nil {
			names = append(names, a.GGUF.Name)
		}
	}

	slices.Sort(names)
	return slices.Compact(names)
}

// GGUFField is where files have a field; false where they don't.
func (a *Arch) GGUFField(field string) (GGUFKey, bool) {
	if k, ok := a.GGUF.Fields[field]; ok {
		return k, k.Key != "" || k.Absent != nil
	}

	shared, err := loadCommon()
	if err != nil {
		return GGUFKey{}, false
	}

	k, ok := shared.GGUF.Fields[field]
	return k, ok
}

// GGUFRequire lists the metadata keys that must have certain values, if they are there.
func (a *Arch) GGUFRequire() map[string][]json.RawMessage {
	rules := map[string][]json.RawMessage{}
	if shared, err := loadCommon(); err == nil {
		for key, allowed := range shared.GGUF.Require {
			rules[key] = allowed
		}
	}
	for key, allowed := range a.GGUF.Require {
		rules[key] = allowed
	}
	return rules
}

// GGUFIgnores reports whether a tensor of a file has no part in a model of any architecture.
func GGUFIgnores(name string) bool {
	shared, err := loadCommon()
	return err == nil && slices.ContainsFunc(shared.GGUF.Ignore, func(template string) bool {
		return template == name || matches(template, name)
	})
}

// Sources lists the ways in which files store a tensor, of which the first one applies that the file has the tensors
// for. The tables have them under the tensor's role, with "/expert" behind it for what every expert has, as texts:
// templates joined by " + " follow one another, those joined by " ~ " alternate; "#q" behind one takes some rows only,
// and "'" marks one that is transposed. A text that begins with "> ", or with a condition and " > ", is the way in
// which files are written; see [Config.GGUFWritten].
func (a *Arch) Sources(t *Tensor) []GGUFSource {
	key := string(t.Role)
	if t.PerExpert() {
		key += "/expert"
	}

	texts, ok := a.GGUF.Tensors[key]
	if !ok {
		shared, err := loadCommon()
		if err != nil {
			return nil
		}
		texts = shared.GGUF.Tensors[key]
	}

	list := make([]GGUFSource, len(texts))
	for i, text := range texts {
		list[i] = parseSource(text, t.Part)
	}

	return list
}

// parseSource reads the text of a source for a part of a role.
func parseSource(text, part string) (s GGUFSource) {
	if when, rest, ok := strings.Cut(text, "> "); ok {
		s.Written = true
		s.When = strings.TrimSpace(when)
		text = rest
	}

	separator := " + "
	if strings.Contains(text, " ~ ") {
		separator = " ~ "
		s.Alternate = true
	}

	for one := range strings.SplitSeq(text, separator) {
		var p GGUFPart
		p.Name, p.Rows, _ = strings.Cut(one, "#")
		p.Name, p.Transposed = strings.CutSuffix(p.Name, "'")

		if !strings.HasSuffix(p.Name, ".weight") && !strings.HasSuffix(p.Name, ".bias") {
			ending := ".weight"
			if part == "bias" {
				ending = ".bias"
			}
			p.Name += ending
		}

		s.Parts = append(s.Parts, p)
	}

	return s
}

// GGUFWritten is the way in which files are written for a tensor in a block (-1 outside of blocks); false where the
// format has no place for it.
func (c *Config) GGUFWritten(t *Tensor, l int) (GGUFSource, bool) {
	sources := c.Arch.Sources(t)
	for _, s := range sources {
		if s.Written && c.Holds(s.When, l) {
			return s, true
		}
	}

	for _, s := range sources {
		if !s.Written && !slices.ContainsFunc(s.Parts, func(p GGUFPart) bool { return p.Rows != "" }) {
			return s, true
		}
	}

	return GGUFSource{}, false
}

// GGUFWrite is a key of the metadata that is written.
type GGUFWrite struct {
	Key string
	// Value is what it is: fields joined by "+", what package ggufmodel derives from a configuration, or JSON; "": the
	// field that the key holds.
	Value  string
	Given  bool            // only where config.json has the field
	Unless json.RawMessage // only where it is another value, which the absence of the key means; nil: always
}

// GGUFWrites lists the keys that files are written with, in their order; those of fields that a configuration does not
// have are left out. The tables have them as texts: a key, which "?" behind it makes one that depends on config.json,
// and "~" with JSON one that is only written where it has another value, and behind " = " what it is. "*" stands for
// those of common.json, of which the ones that are listed again are replaced.
func (a *Arch) GGUFWrites() []GGUFWrite {
	shared, err := loadCommon()
	if err != nil {
		return nil
	}

	texts := a.GGUF.Write
	if texts == nil {
		texts = []string{"*"}
	}

	var list []GGUFWrite
	for _, text := range texts {
		if text != "*" {
			list = replace(list, parseWrite(text))
			continue
		}
		for _, common := range shared.GGUF.Write {
			list = append(list, parseWrite(common))
		}
	}

	return list
}

// replace puts a key into a list, in the place where it stands already.
func replace(list []GGUFWrite, w GGUFWrite) []GGUFWrite {
	if i := slices.IndexFunc(list, func(o GGUFWrite) bool { return o.Key == w.Key }); i >= 0 {
		list[i] = w
		return list
	}
	return append(list, w)
}

// parseWrite reads the text of a key that is written.
func parseWrite(text string) (w GGUFWrite) {
	w.Key, w.Value, _ = strings.Cut(text, " = ")
	if key, unless, ok := strings.Cut(w.Key, "~"); ok {
		w.Key = key
		w.Unless = json.RawMessage(unless)
	}
	w.Key, w.Given = strings.CutSuffix(w.Key, "?")
	return w
}

// GGUFWritable reports whether files of the format are written of an architecture.
func (a *Arch) GGUFWritable() bool {
	return a.GGUF != nil && (a.GGUF.Write == nil || len(a.GGUF.Write) > 0)
}

// GGUFName is the general.architecture of the files that are written of a model, and what stands before their keys.
func (c *Config) GGUFName() string {
	kind := "dense"
	if c.Experts > 0 {
		kind = "experts"
	}
	if as := c.Arch.GGUF.WrittenAs[kind]; as != "" {
		return as
	}
	return c.Arch.GGUF.Name
}

// GGUFTypes lists the model_type of every architecture that files of the format are written of, sorted.
func GGUFTypes() []string {
	all, err := load()
	if err != nil {
		return nil
	}

	var names []string
	for _, name := range Known() {
		if all[name].GGUFWritable() {
			names = append(names, name)
		}
	}

	return names
}
