package plan

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// place is where a tensor stands: in which module and slice, and at which layer.
type tensorPlace struct {
	module *module
	run    *run
	block  int // of the output, -1 outside of layers
	layer  int // of the slice
}

// t gives the position on gradients: 0 … 1 over the layers of a slice, 1 in a slice of one layer, 0 outside of layers.
func (p *tensorPlace) t() float64 {
	switch {
	case p.block < 0:
		return 0
	case p.run.length == 1:
		return 1
	}
	return float64(p.layer) / float64(p.run.length-1)
}

// tensors plans every tensor: what comes before the layers, the layers, and what comes after, module by module.
func (x *resolver) tensors() {
	for i := range x.modules {
		m := &x.modules[i]
		if m.runs == nil {
			continue
		}
		if x.loose(m) {
			x.outside(m, &m.runs[0], false)
		}

		block := 0
		for j := range m.runs {
			s := &m.runs[j]
			for layer := range s.length {
				x.layer(tensorPlace{module: m, run: s, block: block, layer: layer})
				// config.json describes the first module's layers, so only these have an origin there.
				if i == 0 {
					x.plan.origins = append(x.plan.origins,
						origin{model: s.inputs[0].model, layer: s.inputs[0].first + layer})
				}
				block++
			}
		}

		if i == 0 {
			x.plan.Blocks = block
		}

		// What comes after the layers is merged like the last slice, what comes before like the first, as mergekit
		// does.
		if x.loose(m) {
			x.outside(m, &m.runs[len(m.runs)-1], true)
		}
	}

	x.twice()
}

// loose reports whether a module has the tensors outside of the stacks.
func (x *resolver) loose(m *module) bool { return m.name == "default" }

// outside plans the tensors before or after the layers: all names that the inputs have, those of the first one first.
func (x *resolver) outside(m *module, s *run, final bool) {
	names := x.union(s, func(in runInput) (out []string) {
		for _, e := range x.plan.layouts[in.model].blocks[blockKey{"", -1}] {
			if e.final() == final {
				out = append(out, e.name)
			}
		}
		return out
	})

	for _, name := range names {
		x.tensor(tensorPlace{module: m, run: s, block: -1}, name, func(runInput) string { return name })
	}
}

// layer plans the tensors of one output layer.
func (x *resolver) layer(at tensorPlace) {
	stack := at.module.stack
	rests := x.union(at.run, func(in runInput) (out []string) {
		for _, e := range x.plan.layouts[in.model].blocks[blockKey{stack, in.first + at.layer}] {
			out = append(out, e.rest)
		}
		return out
	})

	for _, rest := range rests {
		x.tensor(at, layerName(stack, at.block, rest),
			func(in runInput) string { return layerName(stack, in.first+at.layer, rest) })
	}
}

// layerName writes the name of a tensor of a layer.
func layerName(stack string, block int, rest string) string {
	return stack + "." + strconv.Itoa(block) + "." + rest
}

// union lists what the inputs of a slice have, each name once.
func (x *resolver) union(s *run, of func(runInput) []string) []string {
	var out []string
	seen := map[string]bool{}
	for _, in := range s.inputs {
		for _, key := range of(in) {
			if !seen[key] {
				seen[key] = true
				out = append(out, key)
			}
		}
	}

	return out
}

// tensor plans one tensor: nameIn gives its name in an input.
func (x *resolver) tensor(at tensorPlace, name string, nameIn func(runInput) string) {
	t := Tensor{Name: name, Block: at.block, T: at.t(), VocabAxis: -1, Base: -1, Copy: at.module.copy}
	base := at.run.baseInput()
	for i := range at.run.inputs {
		in := at.run.inputs[i]
		e := x.find(in.model, nameIn(in), &t)
		if e == nil {
			t.Absent = append(t.Absent, in.model)
			continue
		}

		// The first source that has it decides: roles are a matter of the name, which all share.
		if t.Role == "" {
			t.Role, t.VocabAxis = e.role, e.vocabAxis()
		}
		isBase := i == base
		if isBase {
			t.Base = len(t.Sources)
		}

		source := TensorSource{Model: in.model, Info: e.info}
		if !t.Copy { // a copy has no method that could take settings
			source.Params = x.inputParams(&at, &in, isBase, nameIn(in))
		}

		t.Sources = append(t.Sources, source)
	}

	if len(t.Absent) > 0 && !x.absent(&t) {
		return
	}
	if !x.fit(&t) {
		return
	}
	if !t.Copy {
		t.Params = x.sharedParams(&at, name)
	}

	x.plan.Tensors = append(x.plan.Tensors, t)
}

// find gives a model's tensor of that name; for a head that a tied model does not store, its token table.
func (x *resolver) find(model int, name string, t *Tensor) *entry {
	l := x.plan.layouts[model]
	if e := l.byName[name]; e != nil {
		return e
	}

	// Only a head is ever tied, so it must be one in some other model of the recipe.
	head := false
	for _, other := range x.plan.layouts {
		if e := other.byName[name]; e != nil && e.role == arch.Head && !e.bias {
			head = true
		}
	}

	if !head || !l.tied {
		return nil
	}

	if e := l.embedding(); e != nil {
		t.Tied = true
		// As a head: a setting for lm_head must find it, not one for the token table.
		as := *e
		as.role = arch.Head
		return &as
	}

	return nil
}

// absent decides about a tensor that some inputs lack; false leaves it out.
func (x *resolver) absent(t *Tensor) bool {
	switch x.options.Missing {
	case MissingMerge:
		x.warn("%s is merged from the %d models that have it", t.Name, len(t.Sources))
		// The base's where it has one, since the others are differences to it.
		return true
	case MissingCopy:
		keep := max(t.Base, 0)
		x.warn("%s is copied from %s; other models lack it", t.Name, x.plan.Models[t.Sources[keep].Model])
		t.Sources = t.Sources[keep : keep+1]
		t.Copy = true
		t.Base = min(t.Base, 0)
		return true
	case MissingSkip:
		x.warn("%s is left out; %s", t.Name, lacking(len(t.Absent)))
		return false
	}

	for _, m := range t.Absent {
		x.faults.List = append(x.faults.List,
			Fault{
				Model: x.plan.Models[m].String(), Tensor: t.Name, Err: ErrMissing,
				Detail: "in " + x.plan.Models[t.Sources[0].Model].String() + " it is there",
			})
	}

	return false
}

// lacking says how many models lack a tensor.
func lacking(n int) string {
	if n == 1 {
		return "1 model lacks it"
	}
	return fmt.Sprintf("%d models lack it", n)
}

// fit sets shape and type of a tensor, or notes why its sources do not go together.
func (x *resolver) fit(t *Tensor) bool {
	t.Shape = slices.Clone(t.Sources[0].Info.Shape)
	free := t.VocabAxis >= 0 && (x.plan.Tokenizer != nil || x.options.Truncate)
	for _, s := range t.Sources[1:] {
		if x.sameShape(t, s.Info.Shape, free) {
			continue
		}

		detail := fmt.Sprintf("%v, where %s has %v", s.Info.Shape, x.plan.Models[t.Sources[0].Model],
			t.Sources[0].Info.Shape)
		if t.VocabAxis >= 0 && !free {
			detail += "; set tokenizer_source to base or union to align the vocabularies"
		}

		x.faults.List = append(x.faults.List,
			Fault{Model: x.plan.Models[s.Model].String(), Tensor: t.Name, Err: ErrShape, Detail: detail})
		return false
	}

	return x.outputType(t)
}

// sameShape compares a source's shape with the tensor's; along a free vocabulary axis the smaller size is taken over.
func (x *resolver) sameShape(t *Tensor, shape []int64, free bool) bool {
	if len(shape) != len(t.Shape) {
		return false
	}

	for i, n := range shape {
		switch {
		case free && i == t.VocabAxis:
			t.Shape[i] = min(t.Shape[i], n)
		case n != t.Shape[i]:
			return false
		}
	}

	return true
}

// outputType chooses the type that a tensor is written in. Tensors that are not floating point are copied.
func (x *resolver) outputType(t *Tensor) bool {
	promoted := t.Sources[0].Info.DType
	for _, s := range t.Sources[1:] {
		p, ok := promote(promoted, s.Info.DType)
		if !ok {
			x.faults.List = append(x.faults.List,
				Fault{
					Tensor: t.Name, Model: x.plan.Models[s.Model].String(), Err: ErrDType,
					Detail: fmt.Sprintf("%s, where %s has %s", s.Info.DType, x.plan.Models[t.Sources[0].Model],
						t.Sources[0].Info.DType),
				})
			return false
		}

		promoted = p
	}

	t.DType = promoted

	// Integers have no mean.
	if !dtype.IsFloat(promoted) {
		t.Copy = true
		return true
	}

	// out_dtype is the type of the file, dtype that of the computation; the first one given decides about the file.
	for _, d := range []safetensors.DType{x.plan.OutDType, x.plan.DType} {
		if d != 0 {
			t.DType = d
			break
		}
	}

	return true
}

// promote gives the smallest type that holds two; types that are not floating point must be the same.
func promote(a, b safetensors.DType) (safetensors.DType, bool) {
	switch {
	case a == b:
		return a, true
	case !dtype.IsFloat(a) || !dtype.IsFloat(b):
		return a, false
	case a == safetensors.F64 || b == safetensors.F64:
		return safetensors.F64, true
	}
	return safetensors.F32, true
}

// sharedParams resolves the parameters of scope Shared.
func (x *resolver) sharedParams(at *tensorPlace, name string) recipe.Values {
	out := recipe.Values{}
	for i := range x.method.Params {
		if p := &x.method.Params[i]; p.Scope == recipe.Shared {
			x.value(out, p, at, nil, name)
		}
	}
	return out
}

// inputParams resolves the parameters that an input has of its own.
func (x *resolver) inputParams(at *tensorPlace, in *runInput, isBase bool, name string) recipe.Values {
	out := recipe.Values{}
	for i := range x.method.Params {
		if p := &x.method.Params[i]; p.Scope == recipe.PerInput || p.Scope == recipe.PerModel && !isBase {
			x.value(out, p, at, in, name)
		}
	}
	return out
}

// value resolves one parameter: the source's setting, the slice's, the module's, the recipe's, the default.
func (x *resolver) value(out recipe.Values, p *recipe.Param, at *tensorPlace, in *runInput, name string) {
	scopes := []scope{at.run.scope, at.module.scope, x.root}
	if in != nil {
		scopes = slices.Insert(scopes, 0, in.scope)
	}

	for _, s := range scopes {
		if set, ok := s[p.Name]; ok {
			if v, ok := set.at(name, at.t()); ok {
				out[p.Name] = v
				return
			}
		}
	}

	switch {
	case p.Required && in != nil:
		x.r.Add(in.at, strictyaml.ErrMissingKey, "%s needs a %s for %s", x.method.Name, p.Name, x.plan.Models[in.model])
	case p.Required:
		x.r.Add(x.plan.Document.MethodAt, strictyaml.ErrMissingKey, "%s needs the parameter %s", x.method.Name, p.Name)
	case p.Default != nil:
		out[p.Name] = *p.Default
	}
}

// twice notes output names that two tensors of the plan have.
func (x *resolver) twice() {
	seen := map[string]bool{}
	for _, t := range x.plan.Tensors {
		if seen[t.Name] {
			x.faults.List = append(x.faults.List, Fault{Tensor: t.Name, Err: ErrDuplicate})
		}
		seen[t.Name] = true
	}
}
