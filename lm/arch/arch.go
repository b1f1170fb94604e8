// Package arch holds the architectures of language models as data: one embedded JSON file per model_type says
// which tensors a checkpoint has, what each is for, how its shape follows from the configuration, how the
// configuration spells its keys, what an absent key means, and which details of the computation (norm,
// rotation, windows) apply. The engine reads these tables; adding a model that is built of known parts means
// adding a file, not code.
//
// # Use
//
//	c, err := arch.ParseConfig("config.json", text) // c.Hidden, c.Layers, …, with the defaults that transformers has
//	layout, err := arch.Resolve(c, source, false)   // what each tensor of the checkpoint is, with its role and shape
//
// Programs that run a model need neither: lm.Load calls both.
//
// # The files
//
// models/<model_type>.json decodes strictly into [Arch]. Tensor names are templates in which {l} is the number
// of the block, {e} the number of the expert and {h} that of the head. Shapes are lists of dimension names
// ([Dims]) that the engine computes from the configuration. "when" makes a tensor depend on conditions
// ([Conditions]), "!" negates one. Details that the tensors show are not written down beside them: a block of
// parallel branches without a second norm feeds one norm to both, a branch without a norm before it sees the
// stream as it is, post norms after a branch exist where a tensor has that role, and so do latent attention and
// sinks. common.json holds what is true of every architecture.
package arch

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Version is the version of the table format that this package reads.
const Version = 1

// ErrUnknown is the error for a model_type without a table.
var ErrUnknown = errors.New("unknown architecture")

// Arch describes one architecture.
type Arch struct {
	Version   int      `json:"version"`
	ModelType string   `json:"model_type"` // as in config.json
	Classes   []string `json:"classes"`    // accepted entries of the configuration's "architectures"

	Norm           Norm       `json:"norm"`
	QKNorm         QKNorm     `json:"qk_norm"`     // "" where queries and keys are not normed
	QKV            QKVLayout  `json:"qkv"`         // order of a fused projection's outputs; "" where q, k, v are separate
	Rope           *RopeKeys  `json:"rope"`        // nil where positions are not rotated
	RopeLocal      *RopeKeys  `json:"rope_local"`  // of blocks that attend to a window, where they have one of their own
	RopeBlocks     RopeRule   `json:"rope_blocks"` // which blocks are rotated; "" is all
	Window         Window     `json:"window"`      // which blocks attend to a sliding window; "" is none
	Router         RouterKind `json:"router"`      // how a mixture's router scores experts; "" is softmax
	Gate           GateStyle  `json:"gate"`        // how a gated MLP joins its halves; "" is act(gate)·up
	EmbedScale     Scale      `json:"embed_scale"`
	PositionOffset int        `json:"position_offset"` // position p uses row p + offset of the position table

	// OptionalPrefix starts the templates but is left out by some checkpoints in circulation.
	OptionalPrefix string `json:"optional_prefix"`
	// name templates of tensors that files may hold and that are not parameters
	Buffers []string `json:"buffers"`
	// ExtraBlocks: files may hold blocks behind the last one of the configuration, which predict further tokens
	// and have no part in the model.
	ExtraBlocks bool `json:"extra_blocks"`

	Config     map[string]Key `json:"config"`      // field (see [Fields]) → how the configuration spells it
	Refuse     []Rule         `json:"refuse"`      // keys that are only accepted with certain values
	IgnoreKeys []string       `json:"ignore_keys"` // keys known to have no influence on the computation
	Tensors    []Tensor       `json:"tensors"`     // in order of use

	GGUF *GGUF `json:"gguf"` // how llama.cpp's files spell it; nil where they don't
}

// Key says where a field of the configuration stands and what its absence means. A default that is a string
// naming other fields ("heads", "hidden/heads", "4*hidden") is computed from them.
type Key struct {
	Key     string          `json:"key"`     // "" for a constant that the configuration does not hold
	Also    []string        `json:"also"`    // other spellings of the key
	Default json.RawMessage `json:"default"` // nil: the key is required
	Null    json.RawMessage `json:"null"`    // meaning of an explicit null; nil: the same as absent
}

// Rule accepts a key only with the listed values (null stands for an absent key too), or with the value of a field.
type Rule struct {
	Key    string            `json:"key"`
	Allow  []json.RawMessage `json:"allow"`
	SameAs string            `json:"same_as"`
}

// RopeKeys says how positions are rotated and where the configuration keeps the numbers.
type RopeKeys struct {
	Style   string `json:"style"`   // "half": channels (i, i+d/2); "interleaved": (2i, 2i+1)
	Theta   Key    `json:"theta"`   // base of the frequencies
	Partial *Key   `json:"partial"` // fraction of a head's channels that is rotated; nil: all
	// number of rotated channels, where the configuration gives it directly
	Dim      *Key              `json:"dim"`
	Original *Key              `json:"original"` // the original length, where it stands outside of the rope section
	Aliases  map[string]string `json:"aliases"`  // older names of rope types
	// text that must be "rope" for positions to be rotated at all
	Switch     *Key `json:"switch"`
	Interleave *Key `json:"interleave"` // false: pairs are those of "half" whatever the style
	// ScoreGain multiplies attention scores by the square of YaRN's gain for mscale_all_dim.
	ScoreGain bool `json:"score_gain"`
}

// Tensor is one parameter, or one per block or expert.
type Tensor struct {
	Role Role   `json:"role"`
	Part string `json:"part"` // "" for the weight, "bias"
	Name string `json:"name"`
	// where it lies in the layout of [Arch.Split]; "": under its own name there too
	Fused string `json:"fused"`
	// another name of the tensor that Fused names, or of its own: as version 5 of the transformers library has it in
	// memory, where its files call it otherwise; "": none
	Also       string   `json:"also"`
	Shape      []string `json:"shape"`      // dimension names, outermost first
	Transposed bool     `json:"transposed"` // a matrix stored [in, out]
	When       string   `json:"when"`       // conditions, joined by " & "; "" is always
}

// PerBlock reports whether every block has the tensor.
func (t *Tensor) PerBlock() bool { return strings.Contains(t.Name, "{l}") }

// PerExpert reports whether every expert has the tensor.
func (t *Tensor) PerExpert() bool { return strings.Contains(t.Name, "{e}") }

// PerHead reports whether every head has the tensor: of the queries, or of the keys for a norm of keys.
func (t *Tensor) PerHead() bool { return strings.Contains(t.Name, "{h}") }

// Copies is how many tensors a template stands for in a block: one, or one per expert or head.
func (c *Config) Copies(t *Tensor) int {
	switch {
	case t.PerExpert():
		return c.Experts
	case t.PerHead() && t.Role == KNorm:
		return c.KVHeads
	case t.PerHead():
		return c.Heads
	}
	return 1
}

// Expand fills the numbers of block, and of expert or head, into a name template.
func Expand(template string, block, number int) string {
	s := strings.Replace(template, "{l}", strconv.Itoa(block), 1)
	s = strings.Replace(s, "{e}", strconv.Itoa(number), 1)
	return strings.Replace(s, "{h}", strconv.Itoa(number), 1)
}

// IsBuffer reports whether a tensor of that name is a known buffer, which is no parameter and may be ignored.
func (a *Arch) IsBuffer(name string) bool {
	return slices.ContainsFunc(a.Buffers, func(template string) bool {
		return matches(template, name) ||
			a.OptionalPrefix != "" && matches(strings.TrimPrefix(template, a.OptionalPrefix), name)
	})
}

// matches compares a name with a template that holds {l}.
func matches(template, name string) bool {
	before, after, _ := strings.Cut(template, "{l}")
	rest, ok := strings.CutPrefix(name, before)
	if !ok {
		return false
	}
	number, ok := strings.CutSuffix(rest, after)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

//go:embed models/*.json common.json
var files embed.FS

// Known lists the model_type of every architecture, sorted.
func Known() []string {
	entries, err := files.ReadDir("models")
	if err != nil {
		panic("arch: embedded tables are missing")
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), ".json")
	}
	return names
}

// Lookup gives the architecture of a model_type. The error wraps [ErrUnknown] and lists the known ones. The result is
// shared: it must not be changed.
func Lookup(modelType string) (*Arch, error) {
	all, err := load()
	if err != nil {
		return nil, err
	}
	a, ok := all[modelType]
	if !ok {
		return nil, unknown(modelType)
	}
	return a, nil
}

// unknown is the error for a model_type without a table; it says what one would need, where that is known.
func unknown(modelType string) error {
	shared, err := loadCommon()
	if err != nil {
		return err
	}

	why := ""
	if text := shared.Missing[modelType]; text != "" {
		why = ", which needs " + text
	}

	return fmt.Errorf("%w: model_type %.100q%s; known: %s", ErrUnknown, modelType, why, strings.Join(Known(), ", "))
}

// common is what holds for every architecture.
type common struct {
	Version    int      `json:"version"`
	Refuse     []Rule   `json:"refuse"`
	IgnoreKeys []string `json:"ignore_keys"`
	// what the engine lacks for the architectures that some people have and that have no table
	Missing map[string]string `json:"missing"`
	GGUF    ggufCommon        `json:"gguf"`
}

var loadCommon = sync.OnceValues(func() (*common, error) {
	var c common
	return &c, read("common.json", &c)
})

var load = sync.OnceValues(func() (map[string]*Arch, error) {
	all := map[string]*Arch{}
	for _, name := range Known() {
		a := &Arch{}
		if err := read(path.Join("models", name+".json"), a); err != nil {
			return nil, err
		}
		all[name] = a
	}
	return all, nil
})

// read decodes an embedded table; unknown keys are errors.
func read(file string, into any) error {
	text, err := files.ReadFile(file)
	if err != nil {
		return err
	}

	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}

	return nil
}

// ByClass gives the architecture that one of the classes ("LlamaForCausalLM") belongs to, for configurations without a
// model_type. The error wraps [ErrUnknown].
func ByClass(classes []string) (*Arch, error) {
	all, err := load()
	if err != nil {
		return nil, err
	}

	for _, name := range Known() {
		if slices.ContainsFunc(all[name].Classes, func(c string) bool { return slices.Contains(classes, c) }) {
			return all[name], nil
		}
	}

	return nil, fmt.Errorf("%w: no model_type, and architectures %.100q is none of the known; known: %s", ErrUnknown,
		classes, strings.Join(Known(), ", "))
}
