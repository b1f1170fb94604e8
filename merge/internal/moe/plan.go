package moe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/input"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// The ways in which models can be unfit for a mixture.
var (
	ErrModels = errors.New("models do not make a mixture")
	ErrTensor = errors.New("tensor does not fit")
	ErrOption = errors.New("option out of range")
)

// Layouts of the output.
const (
	Split = "split" // a tensor per matrix of an expert
	Fused = "fused" // the experts of a layer in one tensor
)

// Options are the choices that a recipe does not make. The zero value is ready, except that hidden gates need a device.
type Options struct {
	Layout    string            // Split (the default) or Fused
	Seed      uint64            // of random gates and noise
	Threads   int               // goroutines; 0: GOMAXPROCS. The output does not depend on it
	Memory    int64             // bytes of anonymous memory for buffers, gates and activations; 0: 1 GiB. Nor on that
	DType     safetensors.DType // 0: as the recipe says
	AllowSame bool              // all experts may be the same model, for training afterwards
}

// Mixture is a recipe with its models opened: what is going to be written. Close closes the models.
type Mixture struct {
	Config   *Config
	Family   string // mixtral, qwen or qwen3
	Warnings []string

	options Options
	family  *family
	refs    []recipe.Ref
	models  []*input.Model
	dirs    []string
	base    *arch.Config
	text    *orderedjson.Object // the base's config.json
	dtype   safetensors.DType
	tensors []tensor
	gates   [][]float32 // by layer: a row per expert
	shared  [][]float32 // by layer: the shared expert's row

	workers int   // goroutines
	chunk   int64 // elements that each holds at a time
	tokens  int   // of prompts that go through the base together
}

// tensor is a tensor of the output: its pieces one after another.
type tensor struct {
	info   safetensors.Info
	pieces []piece
}

// piece is a tensor of a model, or values that are computed.
type piece struct {
	model  int // -1: values
	name   string
	size   int64            // elements
	expert *Expert          // whose noise and scale apply, nil: none
	down   bool             // it is a down projection
	values func() []float32 // of a model of -1; nil: zeros
}

// Open opens the models of a recipe and plans the output. The errors are a *strict.Problems, or wrap ErrModels,
// ErrTensor, ErrOption, recipe.ErrNotFound or an error of package safetensors.
func Open(ctx context.Context, c *Config, places recipe.Places, o Options) (*Mixture, error) {
	m := &Mixture{Config: c, options: o, refs: c.References()}
	if o.Layout == "" {
		m.options.Layout = Split
	}
	if l := m.options.Layout; l != Split && l != Fused {
		return nil, fmt.Errorf("%w: layout %q, not split or fused", ErrOption, l)
	}
	if err := m.open(ctx, places); err != nil {
		return nil, errors.Join(err, m.Close())
	}

	return m, nil
}

// open does Open's work.
func (m *Mixture) open(ctx context.Context, places recipe.Places) error {
	for _, ref := range m.refs {
		dir, err := recipe.Locate(ref.Model, places)
		if err != nil {
			return err
		}

		adapter := ""
		if ref.Adapter.Path != "" {
			if adapter, err = recipe.Locate(ref.Adapter, places); err != nil {
				return err
			}
		}

		x, err := input.Open(ctx, ref.String(), dir, adapter)
		if err != nil {
			return err
		}

		m.models, m.dirs = append(m.models, x), append(m.dirs, dir)
	}

	// After all are open: the family depends on what the models have in common.
	if err := m.chooseFamily(); err != nil {
		return err
	}

	m.warnings()
	if err := m.plan(); err != nil {
		return err
	}

	return m.divide()
}

// Close closes the models.
func (m *Mixture) Close() error {
	var errs []error
	for _, x := range m.models {
		errs = append(errs, x.Close())
	}
	m.models = nil
	return errors.Join(errs...)
}

// maxConfig bounds what is read of a configuration.
const maxConfig = 4 << 20

// configs reads the configurations of all models, the base's first.
func (m *Mixture) configs() ([]*arch.Config, error) {
	var out []*arch.Config
	for i, dir := range m.dirs {
		path := weights.Place(dir, "config.json")
		text, err := weights.ReadFile(dir, "config.json", maxConfig)
		if err != nil {
			return nil, err
		}

		c, err := arch.ParseConfig(path, text)
		if err != nil {
			return nil, err
		}

		if i == 0 {
			if m.text, err = orderedjson.Parse(text); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}

		out = append(out, c)
	}

	return out, nil
}

// chooseFamily finds the kind of mixture that the models can make.
func (m *Mixture) chooseFamily() error {
	all, err := m.configs()
	if err != nil {
		return err
	}

	m.base = all[0]
	for i, c := range all[1:] {
		switch {
		case c.ModelType != m.base.ModelType:
			return fmt.Errorf("%w: %s is a %q, the base %s a %q", ErrModels, m.refs[i+1], c.ModelType, m.refs[0],
				m.base.ModelType)
		case c.Layers != m.base.Layers || c.Hidden != m.base.Hidden || c.Inner != m.base.Inner:
			return fmt.Errorf("%w: %s has %d layers of %d with an inner size of %d, the base %s %d of %d with %d",
				ErrModels,
				m.refs[i+1], c.Layers, c.Hidden, c.Inner, m.refs[0], m.base.Layers, m.base.Hidden, m.base.Inner)
		}
	}

	var reasons []string
	for i := range families {
		f := &families[i]
		// "qwen" alone leaves the choice between its kinds to what the models have.
		if !strings.HasPrefix(f.name, m.Config.Architecture) {
			continue
		}

		if reason := m.unfit(f); reason != "" {
			reasons = append(reasons, f.name+": "+reason)
			continue
		}

		m.family, m.Family = f, f.name
		return nil
	}

	return fmt.Errorf("%w: %s", ErrModels, strings.Join(reasons, "; "))
}

// unfit says why a kind of mixture cannot be made, "" if it can.
func (m *Mixture) unfit(f *family) string {
	switch {
	case !slices.Contains(f.inputs, m.base.ModelType):
		return fmt.Sprintf("made of %s, not of %s", strings.Join(f.inputs, " or "), m.base.ModelType)
	case len(m.Config.Shared) != f.shared:
		return fmt.Sprintf("has %d shared experts, not %d", f.shared, len(m.Config.Shared))
	case m.options.Layout == Fused && !f.fused:
		return "has no fused layout"
	}
	return ""
}

// warnings notes what the recipe's author may not have meant.
func (m *Mixture) warnings() {
	n := len(m.Config.Experts)
	if n&(n-1) != 0 {
		m.warn("%d experts, which is no power of two: some programs do not run such mixtures", n)
	}
}

// warn notes something for the report.
func (m *Mixture) warn(format string, args ...any) {
	m.Warnings = append(m.Warnings, fmt.Sprintf(format, args...))
}

// plan lists the output's tensors: the base's without its MLPs, and for each layer router and experts.
func (m *Mixture) plan() error {
	if err := m.checkSame(); err != nil {
		return err
	}

	m.dtype = m.Config.DType
	if m.options.DType != 0 {
		m.dtype = m.options.DType
	}

	for _, info := range m.models[0].Infos() {
		switch {
		case m.base.Arch.IsBuffer(info.Name):
			m.warn("%s of the base is no parameter and is left out", info.Name)
		case !strings.Contains(info.Name, ".mlp."):
			if err := m.add(info.Name, info.Shape, piece{name: info.Name}); err != nil {
				return err
			}
		}
	}

	m.gates, m.shared = make([][]float32, m.base.Layers), make([][]float32, m.base.Layers)

	for l := range m.base.Layers {
		if err := m.layer(l); err != nil {
			return err
		}
	}

	return nil
}

// checkSame refuses experts that are all the same model.
func (m *Mixture) checkSame() error {
	e := m.Config.Experts
	if m.options.AllowSame || len(e) == 1 ||
		slices.ContainsFunc(e, func(x Expert) bool { return x.Source != e[0].Source }) {
		return nil
	}
	r := m.Config.source.NewReader()
	r.Add(m.Config.places.experts, strictyaml.ErrValue,
		"all experts are %s: without training such a mixture does what that model does", e[0].Source)
	return r.Err()
}

// layer plans router and experts of a layer.
func (m *Mixture) layer(l int) error {
	prefix := fmt.Sprintf("model.layers.%d.", l)
	f := m.family
	if f.bias {
		if err := m.biases(prefix); err != nil {
			return err
		}
	}

	router := f.router
	if m.options.Layout == Fused {
		router = "mlp.gate.weight"
	}

	hidden := int64(m.base.Hidden)
	if err := m.add(prefix+router, []int64{int64(len(m.Config.Experts)), hidden},
		piece{model: -1, values: func() []float32 { return m.gates[l] }}); err != nil {
		return err
	}

	if m.options.Layout == Fused {
		if err := m.fused(prefix); err != nil {
			return err
		}
	} else if err := m.split(prefix); err != nil {
		return err
	}

	for i := range m.Config.Shared {
		e := &m.Config.Shared[i]
		for j, name := range []string{"gate_proj", "up_proj", "down_proj"} {
			if err := m.expert(prefix+"mlp.shared_expert."+name+".weight", prefix, name, e, j == 2); err != nil {
				return err
			}
		}

		if err := m.add(prefix+"mlp.shared_expert_gate.weight", []int64{1, hidden},
			piece{model: -1, values: func() []float32 { return m.shared[l] }}); err != nil {
			return err
		}
	}

	return nil
}

// biases plans the biases of a layer that the family has and the base does not: zeros.
func (m *Mixture) biases(prefix string) error {
	heads := map[string]int{"q_proj": m.base.Heads, "k_proj": m.base.KVHeads, "v_proj": m.base.KVHeads}
	for _, name := range []string{"q_proj", "k_proj", "v_proj"} {
		full := prefix + "self_attn." + name + ".bias"
		if slices.ContainsFunc(m.tensors, func(t tensor) bool { return t.info.Name == full }) {
			continue
		}
		if err := m.add(full, []int64{int64(heads[name] * m.base.HeadDim)}, piece{model: -1}); err != nil {
			return err
		}
	}

	return nil
}

// split plans a tensor per matrix of an expert.
func (m *Mixture) split(prefix string) error {
	for i := range m.Config.Experts {
		for j, name := range []string{"gate_proj", "up_proj", "down_proj"} {
			out := strings.NewReplacer("{e}", strconv.Itoa(i), "{m}", m.family.matrices[j]).Replace(m.family.expert)
			if err := m.expert(prefix+out, prefix, name, &m.Config.Experts[i], j == 2); err != nil {
				return err
			}
		}
	}
	return nil
}

// fused plans the experts of a layer in two tensors: gate rows, then up rows of each expert; and the down projections.
func (m *Mixture) fused(prefix string) error {
	n := int64(len(m.Config.Experts))
	inner := int64(m.base.Inner)
	hidden := int64(m.base.Hidden)

	var both, down []piece
	for i := range m.Config.Experts {
		e := &m.Config.Experts[i]
		model := slices.Index(m.refs, e.Source)
		for _, name := range []string{"gate_proj", "up_proj"} {
			both = append(both, piece{model: model, name: prefix + "mlp." + name + ".weight", expert: e})
		}
		down = append(down, piece{model: model, name: prefix + "mlp.down_proj.weight", expert: e, down: true})
	}

	if err := m.add(prefix+"mlp.experts.gate_up_proj", []int64{n, 2 * inner, hidden}, both...); err != nil {
		return err
	}

	return m.add(prefix+"mlp.experts.down_proj", []int64{n, hidden, inner}, down...)
}

// expert plans one matrix of an expert.
func (m *Mixture) expert(out, prefix, name string, e *Expert, down bool) error {
	shape := []int64{int64(m.base.Inner), int64(m.base.Hidden)}
	if down {
		shape = []int64{int64(m.base.Hidden), int64(m.base.Inner)}
	}
	return m.add(out, shape,
		piece{model: slices.Index(m.refs, e.Source), name: prefix + "mlp." + name + ".weight", expert: e, down: down})
}

// add plans a tensor and checks that its pieces fill it.
func (m *Mixture) add(name string, shape []int64, pieces ...piece) error {
	t := tensor{info: safetensors.Info{Name: name, DType: m.dtype, Shape: slices.Clone(shape)}, pieces: pieces}
	total := t.info.Elements()
	var sum int64
	for i := range t.pieces {
		p := &t.pieces[i]
		if p.model < 0 {
			p.size = total
		} else {
			info, ok := m.models[p.model].Info(p.name)
			if !ok {
				return fmt.Errorf("%w: %s has no %s", ErrTensor, m.refs[p.model], p.name)
			}

			p.size = info.Elements()
			if t.info.DType == 0 {
				t.info.DType = info.DType
			}
		}

		sum += p.size
	}

	if t.info.DType == 0 { // computed: as the layer's norm
		t.info.DType = m.mainType()
	}

	if sum != total {
		return fmt.Errorf("%w: %s of %s has %d elements, %s needs %d", ErrTensor, pieces[0].name,
			m.refs[max(pieces[0].model, 0)], sum, name, total)
	}

	m.tensors = append(m.tensors, t)
	return nil
}

// mainType is the type of the base's token table.
func (m *Mixture) mainType() safetensors.DType {
	if info, ok := m.models[0].Info("model.embed_tokens.weight"); ok {
		return info.DType
	}
	return safetensors.F32
}

// Layout lists the output's tensors.
func (m *Mixture) Layout() []safetensors.Info {
	out := make([]safetensors.Info, len(m.tensors))
	for i := range m.tensors {
		out[i] = m.tensors[i].info
	}
	return out
}

// Dirs lists the folders of the models, the base's first.
func (m *Mixture) Dirs() []string { return slices.Clone(m.dirs) }

// Files lists the files that the tensors come from.
func (m *Mixture) Files() []string {
	var out []string
	for i, x := range m.models {
		out = append(out, x.Files()...)
		out = append(out, weights.Place(m.dirs[i], "config.json"), weights.Place(m.dirs[i], "tokenizer.json"))
	}
	return out
}
