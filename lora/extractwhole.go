package lora

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// keepWhole adds the tensors that differ, beside the matrices, to the adapter as they are: whole modules, and
// the biases of adapted matrices, all or none.
func (x *extractor) keepWhole(a *adapter.Adapter) error {
	var modules []string
	biases := false
	for _, r := range x.report.LeftOut {
		// A head that only the tuned model has by itself: the base has no tensor of that name, it is tied.
		if r.Tensor == x.head {
			modules = append(modules, x.tied().Path)
			continue
		}

		p := x.param(r.Tensor)
		switch path := x.base.PathOf(p); {
		// PEFT knows biases of all adapted matrices or of none, so one that differs brings all.
		case x.adapted(path):
			biases = true
		case !slices.Contains(modules, path):
			modules = append(modules, path)
		}
	}

	if biases {
		a.Config.Biases = adapter.LoRABias
	}

	for _, p := range x.base.Layout.Params {
		path := x.base.PathOf(p)
		if !slices.Contains(modules, path) && !(biases && p.Bias && x.adapted(path)) {
			continue
		}
		if err := x.addWhole(a, p, path); err != nil {
			return err
		}
	}

	if x.head != "" && slices.Contains(modules, x.tied().Path) {
		if err := x.addHeadWhole(a); err != nil {
			return err
		}
	}

	for _, path := range modules {
		a.Config.WholeModules = append(a.Config.WholeModules, path)
		// PEFT saves a tied table once for each of its two modules.
		if x.isTiedTable(path) {
			a.Config.WholeModules = append(a.Config.WholeModules, x.tied().Path)
		}
	}

	// Nothing is lost any more: what was left out of the factors is in the adapter.
	x.report.Kept = x.report.LeftOut
	x.report.LeftOut = []LeftOut{}
	return nil
}

// param finds a parameter of the base.
func (x *extractor) param(tensor string) arch.Param {
	i := slices.IndexFunc(x.base.Layout.Params, func(p arch.Param) bool { return p.Name == tensor })
	return x.base.Layout.Params[i]
}

// adapted reports whether the module at a path is one of the matrices.
func (x *extractor) adapted(path string) bool {
	return slices.ContainsFunc(x.targets, func(m adapter.Module) bool { return m.Path == path })
}

// ownHead is the head of a tuned model that is untied where the base is tied, if its shape is that of the
// table; "" otherwise.
func (x *extractor) ownHead() string {
	t := x.tied()
	i := slices.IndexFunc(x.tuned.Modules, func(m adapter.Module) bool { return m.Role == arch.Head && !m.Tied })
	if t == nil || i < 0 || x.tuned.Modules[i].In != t.In || x.tuned.Modules[i].Out != t.Out {
		return ""
	}
	return x.tuned.Modules[i].Tensor
}

// after is the tensor that the tuned model has for a module of the base.
func (x *extractor) after(m adapter.Module) string {
	if m.Tied && x.head != "" {
		return x.head
	}
	return m.Tensor
}

// addHeadWhole adds the tuned model's own head.
func (x *extractor) addHeadWhole(a *adapter.Adapter) error {
	t := x.tied()
	w := &adapter.Whole{
		Tensor: adapter.TiedHead, Key: adapter.TiedHead,
		Value: adapter.NewParam(adapter.TiedHead, t.Out, t.In), Shape: []int64{int64(t.Out), int64(t.In)},
	}
	a.Whole = append(a.Whole, w)
	return read(x.tuned, x.head, 0, w.Value.Data())
}

// tied is the head of a model where it is the token table; nil otherwise.
func (x *extractor) tied() *adapter.Module {
	for i := range x.base.Modules {
		if x.base.Modules[i].Tied {
			return &x.base.Modules[i]
		}
	}
	return nil
}

// isTiedTable reports whether a path is that of a token table that is the head too, of which no factors are.
func (x *extractor) isTiedTable(path string) bool {
	return x.tied() != nil && x.head == "" && !x.adapted(x.tied().Path) &&
		slices.ContainsFunc(x.base.Modules, func(m adapter.Module) bool { return m.Table && m.Path == path })
}

// addWhole adds a tensor of the tuned model; a table that is the head too counts for both.
func (x *extractor) addWhole(a *adapter.Adapter, p arch.Param, path string) error {
	if len(p.Shape) < 1 || len(p.Shape) > 2 {
		return fmt.Errorf("%s: tensor %.200q: %w: shape %v", x.tuned.Dir, p.Name, adapter.ErrUnsupported, p.Shape)
	}

	rows, cols := 1, int(p.Shape[len(p.Shape)-1])
	if len(p.Shape) == 2 {
		rows = int(p.Shape[0])
	}

	part := ".weight"
	if p.Bias {
		part = ".bias"
	}

	w := &adapter.Whole{
		Tensor: p.Name, Key: path + part, Value: adapter.NewParam(path+part, rows, cols),
		Shape: p.Shape,
	}
	if err := read(x.tuned, p.Name, 0, w.Value.Data()); err != nil {
		return err
	}

	a.Whole = append(a.Whole, w)
	if x.isTiedTable(path) {
		key := x.tied().Path + part
		a.Whole = append(a.Whole, &adapter.Whole{Tensor: key, Key: key, Value: w.Value, Shape: p.Shape})
	}

	return nil
}
