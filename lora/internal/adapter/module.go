package adapter

import (
	"strings"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// Module is a matrix of the base that an adapter may change.
type Module struct {
	Path       string    // as the modules of the transformers library are called: "model.layers.0.self_attn.q_proj"
	Tensor     string    // name of the weight in the base
	Bias       string    // name of its bias in the base; "": none
	Block      int       // -1 outside of blocks
	Role       arch.Role // what it does
	Expert     int       // -1 outside of mixtures
	In, Out    int       // channels; a token table [V, d] has In = V and Out = d
	Transposed bool      // stored [in, out] (fan_in_fan_out)
	Table      bool      // a token table
	Tied       bool      // the head of a model whose head is the token table
}

// Linear reports whether the module is a matrix of a block.
func (m Module) Linear() bool { return m.Block >= 0 && m.Role.Linear() }

// Modules lists the matrices of a base model, tables and head included, in the order of use. The tensors are those that
// the layout has found.
func Modules(c *arch.Config, layout *arch.Layout) []Module {
	var list []Module
	at := map[string]int{}
	for _, p := range layout.Params {
		path := modulePath(c, p)
		if i, ok := at[path]; ok && p.Bias {
			list[i].Bias = p.Name
			continue
		}

		if p.Bias || len(p.Shape) != 2 || p.Role == arch.Positions || p.Block >= 0 && !p.Role.Linear() {
			continue
		}

		m := Module{
			Path: path, Tensor: p.Name, Block: p.Block, Role: p.Role, Expert: p.Expert,
			Transposed: p.Transposed,
		}
		m.In, m.Out = int(p.Shape[1]), int(p.Shape[0])
		if p.Transposed {
			m.In, m.Out = m.Out, m.In
		}
		if p.Role == arch.Embed {
			m.Table, m.In, m.Out = true, m.Out, m.In
		}

		at[path] = len(list)
		list = append(list, m)
	}

	if c.Tied {
		for _, m := range list {
			if m.Table {
				list = append(list, Module{
					Path: "lm_head", Tensor: m.Tensor, Block: -1, Role: arch.Head, Expert: -1,
					In: m.Out, Out: m.In, Tied: true,
				})
				break
			}
		}
	}

	return list
}

// modulePath is the path of the module that a tensor belongs to.
func modulePath(c *arch.Config, p arch.Param) string {
	path := strings.TrimSuffix(strings.TrimSuffix(p.Name, ".weight"), ".bias")
	if prefix := c.Arch.OptionalPrefix; prefix != "" && p.Role != arch.Head && !strings.HasPrefix(path, prefix) {
		path = prefix + path
	}
	if p.Role == arch.Head && path == "embed_out" {
		return "lm_head" // of GPT-NeoX, from version 5 of the library on
	}
	return path
}

// KeyOf is the name that PEFT has for a tensor of the base: the path of its module, and the part.
func KeyOf(modules []Module, tensor string) string {
	for _, m := range modules {
		switch {
		case m.Tied || tensor == "":
		case m.Tensor == tensor:
			return m.Path + ".weight"
		case m.Bias == tensor:
			return m.Path + ".bias"
		}
	}

	for _, m := range modules {
		if short, cut := strings.CutSuffix(m.Path, strings.TrimSuffix(m.Tensor, ".weight")); cut && short != "" &&
			m.Role != arch.Head {
			return short + tensor // files without the optional prefix
		}
	}

	return tensor
}

// ModulesOf lists the matrices of an open model.
func ModulesOf(m *lm.Model) ([]Module, error) {
	layout, err := arch.Resolve(m.Config(), source{m}, true)
	if err != nil {
		return nil, err
	}
	return Modules(m.Config(), layout), nil
}

// ParamsOf lists the parameters of an open model, in the order of [arch.Resolve].
func ParamsOf(m *lm.Model) ([]arch.Param, error) {
	layout, err := arch.Resolve(m.Config(), source{m}, true)
	if err != nil {
		return nil, err
	}
	return layout.Params, nil
}

// source is the tensors of an open model.
type source struct{ m *lm.Model }

// Names implements [arch.Source].
func (s source) Names() []string { return append(s.m.Tensors(), s.m.Extra()...) }

// Shape implements [arch.Source].
func (s source) Shape(name string) ([]int64, bool) {
	info, ok := s.m.Info(name)
	return info.Shape, ok
}

// File implements [arch.Source].
func (s source) File(string) string { return s.m.Path() }
