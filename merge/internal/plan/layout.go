package plan

import (
	"encoding/json"
	"slices"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// Input is a model of a recipe as it lies on disk.
type Input struct {
	Ref     recipe.Ref
	Dir     string             // its folder
	Tensors []safetensors.Info // in the order of the file
	Config  []byte             // the text of config.json, nil if there is none
}

// layout is what the tensors of an input are, by the names that the architecture's table gives them. Without a table a
// name is its own, and the number in it says the layer.
type layout struct {
	input   *Input
	table   *arch.Arch // nil for an architecture that has none
	class   string     // what tells architectures apart: the model_type
	tied    bool       // the configuration says so
	tensors []entry    // in the order of the file
	byName  map[string]*entry
	ignored []string       // buffers, which are no parameters
	layers  map[string]int // number of layers by the prefix before the number
	order   []string       // the prefixes, in order of appearance
	blocks  map[blockKey][]*entry
}

// blockKey is a layer of a stack.
type blockKey struct {
	stack string
	block int
}

// entry is one tensor of an input.
type entry struct {
	name  string // as the table spells it
	info  safetensors.Info
	role  arch.Role
	bias  bool
	block int    // number of the layer, -1 outside
	stack string // what stands before the number
	rest  string // and behind it
}

// newLayout sorts the tensors of an input.
func newLayout(in *Input) *layout {
	l := &layout{input: in, byName: map[string]*entry{}, layers: map[string]int{}, blocks: map[blockKey][]*entry{}}
	l.readConfig()

	index := templateIndex(l.table)
	for _, info := range in.Tensors {
		if l.table != nil && l.table.IsBuffer(info.Name) {
			l.ignored = append(l.ignored, info.Name)
			continue
		}
		l.tensors = append(l.tensors, l.entry(info, index))
	}

	// In a second pass: pointers into the list hold only once it no longer grows.
	for i := range l.tensors {
		e := &l.tensors[i]
		l.byName[e.name] = e
		l.blocks[blockKey{e.stack, e.block}] = append(l.blocks[blockKey{e.stack, e.block}], e)
		if e.block < 0 {
			continue
		}
		if _, known := l.layers[e.stack]; !known {
			// In the order of the file: the first stack is the one that is meant where a recipe names none.
			l.order = append(l.order, e.stack)
		}

		l.layers[e.stack] = max(l.layers[e.stack], e.block+1)
	}

	return l
}

// Layers counts the layers that tensors' names tell of, in the first stack.
func Layers(tensors []safetensors.Info) int {
	x := &resolver{plan: &Plan{layouts: []*layout{newLayout(&Input{Tensors: tensors})}}}
	return x.layers(0)
}

// readConfig finds the architecture's table.
func (l *layout) readConfig() {
	o, err := orderedjson.Parse(l.input.Config)
	if err != nil {
		return
	}

	o.Decode("model_type", &l.class)

	if l.input.Ref.Class != "" {
		if table, err := arch.ByClass([]string{l.input.Ref.Class}); err == nil {
			l.class = table.ModelType
		}
	}

	if table, err := arch.Lookup(l.class); err == nil {
		l.table = table
		if key, ok := table.Config["tied"]; ok {
			l.tied = truth(o, key)
		}
		return
	}

	o.Decode("tie_word_embeddings", &l.tied)
}

// truth reads a truth value of a configuration by its key's description.
func truth(o *orderedjson.Object, key arch.Key) bool {
	var value bool
	for _, name := range append([]string{key.Key}, key.Also...) {
		if name != "" && o.Decode(name, &value) {
			return value
		}
	}
	_ = json.Unmarshal(key.Default, &value) // a default that is no truth value counts as false
	return value
}

// entry sorts one tensor in.
func (l *layout) entry(info safetensors.Info, index map[string]*arch.Tensor) entry {
	e := entry{name: info.Name, info: info}
	candidates := []string{info.Name}
	if l.table != nil && l.table.OptionalPrefix != "" {
		candidates = append(candidates, l.table.OptionalPrefix+info.Name)
	}

	for _, name := range candidates {
		if t := lookupTemplate(index, name); t != nil {
			e.name = name
			e.role = t.Role
			e.bias = t.Part == "bias"
			break
		}
	}

	e.stack, e.block, e.rest = splitLayer(e.name)
	if e.role == "" && e.block < 0 {
		e.role, e.bias = usualRole(e.name)
	}

	return e
}

// vocabAxis gives the axis of an entry over the vocabulary, -1 for none.
func (e *entry) vocabAxis() int {
	if e.role == arch.Embed || e.role == arch.Head {
		return 0
	}
	return -1
}

// embedding gives the token table, nil if there is none.
func (l *layout) embedding() *entry {
	for i := range l.tensors {
		if e := &l.tensors[i]; e.role == arch.Embed && !e.bias {
			return e
		}
	}
	return nil
}

// has reports whether an input stores a tensor of a role.
func (l *layout) has(role arch.Role) bool {
	return slices.ContainsFunc(l.tensors, func(e entry) bool { return e.role == role })
}

// final reports whether a tensor outside of the layers comes after them: the table's final norm and head.
func (e *entry) final() bool {
	switch e.role {
	case arch.FinalNorm, arch.Head, arch.EmbedOut:
		return true
	}
	return false
}
