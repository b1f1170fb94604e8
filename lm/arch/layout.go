package arch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ways in which the tensors of a checkpoint can disagree with its configuration.
var (
	ErrMissingTensor = errors.New("tensor is missing")
	ErrExtraTensor   = errors.New("tensor is not part of the model")
	ErrShape         = errors.New("shape disagrees with the configuration")
)

// Source is the tensors of a checkpoint.
type Source interface {
	// Names lists the tensors.
	Names() []string
	// Shape gives a tensor's dimensions; false if there is none of that name.
	Shape(name string) ([]int64, bool)
	// File is the path of the file that holds a tensor, of the folder for an unknown one.
	File(name string) string
}

// Param is one parameter of a checkpoint.
type Param struct {
	Name       string
	Role       Role
	Bias       bool
	Block      int // -1 outside of blocks
	Expert     int // -1 outside of mixtures
	Shape      []int64
	Transposed bool // a matrix stored [in, out]

	table  *Tensor
	copied int    // number of the expert or head that it belongs to; 0 where there is none
	prefix string // what the checkpoint leaves out of the name
}

// Layout is what the tensors of a checkpoint are.
type Layout struct {
	Params []Param  // those outside of the blocks, then block by block, in the table's order
	Extra  []string // known buffers, and with allowExtra everything else, in the order of the source
	Heads  []string // stored heads of a tied model, which must equal the token table
}

// Resolve finds every parameter of the configuration in a checkpoint and compares the shapes. The errors wrap
// [ErrMissingTensor], [ErrExtraTensor] or [ErrShape]. Nothing is allocated that exceeds the number of tensors
// in the source.
func Resolve(c *Config, src Source, allowExtra bool) (*Layout, error) {
	r := &resolver{c: c, src: src, taken: map[string]bool{}}
	r.choosePrefix()
	if err := r.count(); err != nil {
		return nil, err
	}
	if err := r.params(); err != nil {
		return nil, err
	}
	return &r.layout, r.leftovers(allowExtra)
}

type resolver struct {
	c       *Config
	src     Source
	prefix  string // what the checkpoint leaves out of the names
	taken   map[string]bool
	missing []string
	layout  Layout
}

// choosePrefix finds out whether the checkpoint leaves the optional prefix out.
func (r *resolver) choosePrefix() {
	a := r.c.Arch
	for _, t := range a.Tensors {
		if t.Role != Embed || a.OptionalPrefix == "" {
			continue
		}

		_, long := r.src.Shape(t.Name)
		_, short := r.src.Shape(strings.TrimPrefix(t.Name, a.OptionalPrefix))
		if short && !long {
			r.prefix = a.OptionalPrefix
		}
	}
}

// count refuses a configuration that asks for more tensors than there are, before anything of that size is made.
func (r *resolver) count() error {
	c := r.c
	mixtures := 0
	for _, m := range c.Mixture {
		if m {
			mixtures++
		}
	}

	want := 0
	for _, t := range c.Arch.Tensors {
		switch {
		case t.PerExpert():
			want += mixtures * c.Experts
		case t.PerBlock() && t.When == "":
			want += c.Layers
		}
	}

	have := len(r.src.Names())
	if want <= have {
		return nil
	}

	experts := ""
	if c.Experts > 0 {
		experts = fmt.Sprintf(", %d experts", c.Experts)
	}

	return fmt.Errorf("%s: %w: the configuration (%d layers%s) asks for at least %d tensors, the files hold %d",
		r.src.File(""), ErrMissingTensor, c.Layers, experts, want, have)
}

// params takes the tensors outside of the blocks, then block by block.
func (r *resolver) params() error {
	for l := -1; l < r.c.Layers; l++ {
		for i := range r.c.Arch.Tensors {
			t := &r.c.Arch.Tensors[i]
			if t.PerBlock() != (l >= 0) || !r.c.Holds(t.When, l) {
				continue
			}

			for e := range r.c.Copies(t) {
				if err := r.take(t, l, e); err != nil {
					return err
				}
			}
		}
	}

	if len(r.missing) > 0 {
		return r.missingError()
	}

	return nil
}

// take finds one tensor and compares its shape.
func (r *resolver) take(t *Tensor, l, expert int) error {
	name := strings.TrimPrefix(Expand(t.Name, l, expert), r.prefix)
	have, ok := r.src.Shape(name)
	if !ok {
		r.missing = append(r.missing, name)
		return nil
	}

	want := make([]int64, len(t.Shape))
	for i, d := range t.Shape {
		want[i] = r.c.Dim(d)
	}

	if !slices.Equal(want, have) {
		return fmt.Errorf("%s: tensor %q: %w: shape %v, but config.json gives %v (%s)",
			r.src.File(name), name, ErrShape, have, want, strings.Join(r.c.keysOf(t.Shape, want, have), ", "))
	}

	copied := expert
	if !t.PerExpert() {
		expert = -1
	}

	r.taken[name] = true
	r.layout.Params = append(r.layout.Params, Param{
		Name: name, Role: t.Role, Bias: t.Part == "bias", Block: l, Expert: expert, Shape: want,
		Transposed: t.Transposed, table: t, copied: copied, prefix: r.prefix,
	})
	return nil
}

// missingError lists the first missing tensors.
func (r *resolver) missingError() error {
	hint := ""
	if len(r.missing) == 1 && !r.c.Tied && r.isHead(r.missing[0]) {
		hint = " (where the head is the token table, config.json says tie_word_embeddings: true)"
	}
	return fmt.Errorf("%s: %w: %d of a %s with %d layers: %s%s",
		r.src.File(""), ErrMissingTensor, len(r.missing), r.c.ModelType, r.c.Layers, listed(r.missing), hint)
}

// leftovers deals with the tensors that the table does not name.
func (r *resolver) leftovers(allowExtra bool) error {
	var unexpected []string
	for _, name := range r.src.Names() {
		switch {
		case r.taken[name]:
			continue
		case r.c.Tied && r.isHead(name):
			r.layout.Heads = append(r.layout.Heads, name)
		case !allowExtra && !r.c.Arch.IsBuffer(name) && !r.behind(name):
			unexpected = append(unexpected, name)
		}

		r.layout.Extra = append(r.layout.Extra, name)
	}

	if len(unexpected) == 0 {
		return nil
	}

	return fmt.Errorf("%s: %w: a %s does not have these %d: %s",
		r.src.File(unexpected[0]), ErrExtraTensor, r.c.ModelType, len(unexpected), listed(unexpected))
}

// behind reports whether a tensor belongs to a block behind the last one, in an architecture that allows them.
func (r *resolver) behind(name string) bool {
	if !r.c.Arch.ExtraBlocks {
		return false
	}

	i := slices.IndexFunc(r.c.Arch.Tensors, func(t Tensor) bool { return t.PerBlock() })
	prefix, _, _ := strings.Cut(r.c.Arch.Tensors[i].Name, "{l}")
	rest, ok := strings.CutPrefix(name, prefix)
	number, _, _ := strings.Cut(rest, ".")
	l, err := strconv.Atoi(number)

	return ok && err == nil && l >= r.c.Layers
}

func (r *resolver) isHead(name string) bool {
	return slices.ContainsFunc(r.c.Arch.Tensors, func(t Tensor) bool {
		return t.Role == Head && t.Part == "" &&
			t.Name == name
	})
}

// HeadName is what a checkpoint calls a head that is not the token table; "" where there cannot be one.
func (a *Arch) HeadName() string {
	for _, t := range a.Tensors {
		if t.Role == Head && t.Part == "" {
			return t.Name
		}
	}
	return ""
}

// listed joins the first names.
func listed(names []string) string {
	if len(names) > 8 {
		return strings.Join(names[:8], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// keysOf names the configuration keys behind the dimensions that disagree.
func (c *Config) keysOf(dims []string, want, have []int64) []string {
	var keys []string
	for i, d := range dims {
		if len(want) == len(have) && want[i] == have[i] {
			continue
		}

		for _, f := range dimFields[d] {
			if k := c.Arch.Config[f].Key; k != "" && !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}

	return keys
}

// DimFields lists the configuration fields that a dimension is computed from.
func DimFields(dim string) []string { return dimFields[dim] }

// dimFields lists the configuration fields that a dimension is computed from.
var dimFields = map[string][]string{
	"vocab": {"vocab"}, "hidden": {"hidden"}, "embed_dim": {"embed_dim"}, "q": {"heads", "head_dim", "hidden"},
	"kv":  {"kv_heads", "head_dim", "hidden"},
	"qkv": {"heads", "kv_heads", "head_dim", "hidden"}, "head_dim": {"head_dim"}, "inner": {"inner"},
	"gate_up":   {"inner"},
	"positions": {"positions"}, "experts": {"experts"}, "expert_inner": {"expert_inner"},
	"shared_inner": {"shared_inner"}, "shared_gate_up": {"shared_inner"}, "heads": {"heads"}, "kv_heads": {"kv_heads"},
	"qk": {"heads", "nope_dim", "rope_dim"}, "v": {"heads", "v_dim"}, "q_rank": {"q_rank"}, "kv_rank": {"kv_rank"},
	"kv_a": {"kv_rank", "rope_dim"}, "kv_b": {"heads", "nope_dim", "v_dim"},
}
