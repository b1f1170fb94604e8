package plan

import (
	"slices"

	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// scope is the settings of one place of the recipe, converted to the method's types.
type scope map[string]typed

// settings converts the settings of a place and reports those that mean nothing there: unknown names are faults; what
// another method knows, or what has no effect at this place, is a warning.
func (x *resolver) settings(params recipe.Parameters, ofModel bool) scope {
	out := scope{}
	for _, p := range params {
		known := x.method.Param(p.Name)
		switch {
		case known == nil && x.knownElsewhere(p.Name):
			x.warn("line %d: %s has no effect with %s", p.Line, p.Name, x.method.Name)
		case known == nil:
			x.r.Add(p.Place, strictyaml.ErrUnknownKey, "%s has no parameter %q%s", x.method.Name, p.Name,
				strictyaml.Suggest(p.Name, paramNames(x.method)))
		case ofModel && known.Scope == recipe.Shared:
			x.warn("line %d: %s has no effect under a model; it belongs under the parameters of the recipe, a "+
				"module or a slice", p.Line, p.Name)
		default:
			out[p.Name] = typedSetting(x.r, p.Setting, known)
		}
	}

	return out
}

// paramNames lists the parameters of a method.
func paramNames(m *recipe.Method) []string {
	out := make([]string, len(m.Params))
	for i, p := range m.Params {
		out[i] = p.Name
	}
	return out
}

// knownElsewhere reports whether another method has a parameter of that name.
func (x *resolver) knownElsewhere(name string) bool {
	return slices.ContainsFunc(x.methods, func(m recipe.Method) bool { return m.Param(name) != nil })
}

// chooseMethod finds the document's method in the table. A mediate recipe has no parameters of its own to resolve.
func (x *resolver) chooseMethod() bool {
	d := x.plan.Document
	if d.Method == recipe.Mediated {
		x.method = &recipe.Method{Name: recipe.Mediated, Base: recipe.BaseRequired, MinModels: 1}
		return true
	}

	known := []string{recipe.Mediated}
	for i := range x.methods {
		if x.methods[i].Name == d.Method {
			x.method = &x.methods[i]
			return true
		}
		known = append(known, x.methods[i].Name)
	}

	x.r.Add(d.MethodAt, strictyaml.ErrValue, "unknown merge_method %q%s", d.Method, strictyaml.Suggest(d.Method, known))
	return false
}

// checkRun notes what the method does not allow about the inputs of a slice.
func (x *resolver) checkRun(s *run) {
	m := x.method

	for i, a := range s.inputs {
		if slices.ContainsFunc(s.inputs[:i], func(b runInput) bool { return b.model == a.model }) {
			x.again(a)
		}
	}

	has := s.base >= 0 && s.baseInput() >= 0
	switch {
	case m.Base == recipe.BaseRequired && s.base < 0:
		x.r.Add(x.plan.Document.MethodAt, strictyaml.ErrMissingKey, "%s needs a base_model", m.Name)
		return
	// Methods that take the base compute differences to it, layer by layer: a slice without it has nothing to
	// differ from.
	case m.Base != recipe.BaseIgnored && s.base >= 0 && !has:
		x.r.Add(s.at, strictyaml.ErrValue, "the base_model %s must be among the sources of the slice",
			x.plan.Models[s.base])
		return
	}

	others := len(s.inputs)
	// Whether bounds count the base differs from method to method, so both counts are checked.
	if has && m.Base != recipe.BaseIgnored {
		others--
	}

	x.checkCount(s, len(s.inputs), m.MinInputs, m.MaxInputs, "models, the base included")
	x.checkCount(s, others, m.MinModels, m.MaxModels, "models beside the base")
}

// again is about a model that a slice has already. Methods between two models take it with itself, which a recipe can't
// say otherwise; where models are weighed, the line is a mistake for a weight, which mergekit refuses too.
func (x *resolver) again(a runInput) {
	if x.method.MaxInputs != 2 {
		x.r.Add(a.at, strictyaml.ErrDuplicateKey, "%s is given twice", x.plan.Models[a.model])
		return
	}
	x.warn("line %d: %s is merged with itself", a.at.Line, x.plan.Models[a.model])
}

// checkCount notes a number of models outside of a method's bounds.
func (x *resolver) checkCount(s *run, n, low, high int, what string) {
	if x.method.Base == recipe.BaseIgnored || s.base < 0 {
		what = "models"
	}

	switch {
	case high > 0 && low == high && n != low:
		x.r.Add(s.at, strictyaml.ErrValue, "%s takes exactly %d %s, not %d", x.method.Name, low, what, n)
	case n < low:
		x.r.Add(s.at, strictyaml.ErrValue, "%s takes at least %d %s, not %d", x.method.Name, low, what, n)
	case high > 0 && n > high:
		x.r.Add(s.at, strictyaml.ErrValue, "%s takes at most %d %s, not %d", x.method.Name, high, what, n)
	}
}

// checkLayers notes layers that a model does not have.
func (x *resolver) checkLayers(s *run) {
	for _, in := range s.inputs {
		if have := x.layers(in.model); in.first+s.length > have {
			x.r.Add(in.at, strictyaml.ErrValue, "%s",
				tooDeep(in.first, in.first+s.length, x.plan.Models[in.model], have))
		}
	}
}

// checkWidths notes slices whose first model has layers of other shapes than that of the first slice: no configuration
// describes both. Tensors whose shape differs between the layers of one model are left out.
func (x *resolver) checkWidths(m *module) {
	for i := range m.runs {
		a, b := m.runs[0].inputs[0], m.runs[i].inputs[0]
		if a.model == b.model {
			continue
		}

		first, other := x.plan.layouts[a.model].shapes(m.stack), x.plan.layouts[b.model].shapes(m.stack)
		for _, e := range x.plan.layouts[b.model].tensors {
			p, q := first[e.rest], other[e.rest]
			if e.stack == m.stack && p != nil && q != nil && !slices.Equal(p, q) {
				x.r.Add(b.at, strictyaml.ErrValue, "models of different width: %s.*.%s has shape %v in %s and %v in %s",
					m.stack, e.rest, q, x.plan.Models[b.model], p, x.plan.Models[a.model])
				break
			}
		}
	}
}

// shapes gives the shapes of a stack's tensors by what stands behind the layer's number, nil where layers differ.
func (l *layout) shapes(stack string) map[string][]int64 {
	out := map[string][]int64{}
	for _, e := range l.tensors {
		if e.stack != stack || e.block < 0 {
			continue
		}

		if old, seen := out[e.rest]; !seen {
			out[e.rest] = e.info.Shape
		} else if !slices.Equal(old, e.info.Shape) {
			out[e.rest] = nil
		}
	}

	return out
}

// warnHeads tells of heads that are lost, and of weights that leave nothing of the models.
func (x *resolver) warnHeads() {
	for i, l := range x.plan.layouts {
		if l.has(arch.Head) && x.used(i) && !x.plan.writesHead() {
			x.warn("the head of %s is left out: the model of the last layers has none of its own, so the output's "+
				"token table is its head too", x.plan.Models[i])
		}
	}

	p := x.method.Param("weight")
	if p == nil || p.Scope != recipe.PerModel || x.plan.Base < 0 {
		return
	}

	for _, t := range x.plan.Tensors {
		for _, s := range t.Sources {
			if v, ok := s.Params["weight"]; ok && v.Number != 0 {
				return
			}
		}
	}

	x.warn("all weights are 0: the output is the base %s", x.plan.Models[x.plan.Base])
}

// unusedModules warns of modules that a recipe with modules leaves out.
func (x *resolver) unusedModules() {
	var listed []string
	for _, m := range x.plan.Document.Modules {
		listed = append(listed, m.Name)
	}
	for _, name := range x.moduleNames() {
		if len(listed) > 0 && !slices.Contains(listed, name) {
			x.warn("module %q is not in the recipe; its tensors are copied from %s", name, x.plan.Models[x.plan.Donor])
		}
	}
}
