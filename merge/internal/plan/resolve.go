package plan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Resolve makes the plan of a document: inputs are its References as they lie on disk, methods the table of methods.
// The error joins a *strictyaml.Problems about the recipe and a *Faults about the tensors.
func Resolve(d *recipe.Document, inputs []Input, methods []recipe.Method, o Options) (*Plan, error) {
	x := &resolver{
		r: d.Reader(), methods: methods, options: o,
		plan: &Plan{
			Document: d, Method: d.Method, Base: -1, Tokenizer: d.Tokenizer, ChatTemplate: d.ChatTemplate,
			DType: d.DType, OutDType: d.OutDType,
		},
	}

	if o.DType != 0 {
		x.plan.OutDType = o.DType
	}
	if err := x.openModels(inputs); err != nil {
		return nil, err
	}
	if !x.chooseMethod() {
		return nil, x.r.Err()
	}

	// All faults of the recipe are gathered before the first return, so that one run shows them all.
	x.root = x.settings(d.Parameters, false)
	x.expand()
	x.repeated(d.Slices)
	for _, m := range d.Modules {
		x.repeated(m.Slices)
	}

	x.checkArchitectures()

	// Tensors are only looked at in a recipe without faults: a wrong slice would report each of its tensors as
	// missing.
	if x.r.Err() == nil && len(x.faults.List) == 0 {
		x.tensors()
		x.warnHeads()
	}

	return x.result()
}

// resolver is the work on one document.
type resolver struct {
	r       *strictyaml.Reader
	plan    *Plan
	method  *recipe.Method
	methods []recipe.Method
	options Options
	root    scope
	modules []module
	faults  Faults
}

// module is one stack of layers, and for the first one all that stands outside of the stacks.
type module struct {
	name  string
	stack string // the prefix of its layers
	runs  []run
	scope scope
	copy  bool // not in the recipe: taken from the donor as it is
}

// run is a slice: layers [at, at+length) of the output.
type run struct {
	at     strictyaml.Place
	inputs []runInput
	length int
	base   int // index of the model, -1: none
	scope  scope
}

// runInput is the source of a slice.
type runInput struct {
	at    strictyaml.Place
	model int
	first int // layer
	scope scope
}

// baseInput gives the index of the base among a slice's inputs, -1 if it is not there. It is the first one where a
// model is listed several times: the others are models beside it.
func (s *run) baseInput() int {
	if s.base < 0 {
		return -1
	}
	return slices.IndexFunc(s.inputs, func(in runInput) bool { return in.model == s.base })
}

// warn notes something that does not stop the merge.
func (x *resolver) warn(format string, args ...any) {
	if w := fmt.Sprintf(format, args...); !slices.Contains(x.plan.Warnings, w) {
		x.plan.Warnings = append(x.plan.Warnings, w)
	}
}

// openModels lays out the inputs in the order of the document's references.
func (x *resolver) openModels(inputs []Input) error {
	d := x.plan.Document
	for _, ref := range d.References() {
		i := slices.IndexFunc(inputs, func(in Input) bool { return in.Ref == ref })
		if i < 0 {
			return fmt.Errorf("%w: %s is not among the inputs given", recipe.ErrNotFound, ref)
		}

		x.plan.Models = append(x.plan.Models, ref)
		in := inputs[i]
		x.plan.inputs = append(x.plan.inputs, &in)
	}

	if d.Base != nil {
		x.plan.Base = x.index(*d.Base)
	}

	// Without a base the first model gives what can't be merged: configuration, tokenizer, names.
	x.plan.Donor = max(x.plan.Base, 0)
	x.adopt()
	for _, in := range x.plan.inputs {
		x.plan.layouts = append(x.plan.layouts, newLayout(in))
	}

	for i, l := range x.plan.layouts {
		if n := len(l.ignored); n > 0 {
			x.warn("%s: %d buffers that are no parameters are left out (%s …)", x.plan.Models[i], n, l.ignored[0])
		}
	}

	return nil
}

// adopt lends models without a configuration that of the donor, which is the first model to have one if it has none.
func (x *resolver) adopt() {
	p := x.plan
	if has := slices.IndexFunc(p.inputs, func(in *Input) bool { return in.Config != nil }); has >= 0 &&
		p.inputs[p.Donor].Config == nil {
		p.Donor = has
	}

	for i, in := range p.inputs {
		if in.Config == nil && p.inputs[p.Donor].Config != nil {
			x.warn("%s has no config.json; it is taken to be like %s, which gives the output's", p.Models[i],
				p.Models[p.Donor])
			in.Config = p.inputs[p.Donor].Config
		}
	}
}

// index gives the number of a model; every reference of the document has one.
func (x *resolver) index(ref recipe.Ref) int {
	return slices.Index(x.plan.Models, ref)
}

// layers counts the layers of a model's first stack.
func (x *resolver) layers(model int) int {
	return x.stackLayers(model, "")
}

// stackLayers counts the layers of a stack; "" is the first.
func (x *resolver) stackLayers(model int, stack string) int {
	l := x.plan.layouts[model]
	if stack == "" && len(l.order) > 0 {
		stack = l.order[0]
	}
	return l.layers[stack]
}

// moduleNames lists the modules of the donor: "default" if there is one stack or none, else the stacks by their prefix
// and "default" for what stands outside.
func (x *resolver) moduleNames() []string {
	order := x.plan.layouts[x.plan.Donor].order
	if len(order) < 2 {
		return []string{"default"}
	}
	return append(slices.Clone(order), "default")
}

// expand brings models, slices and modules to one form: runs of layers by module.
func (x *resolver) expand() {
	d := x.plan.Document
	names := x.moduleNames()
	switch {
	case d.Models != nil:
		for _, name := range names {
			x.addModule(name, d.Models, nil, nil)
		}
	case d.Slices != nil:
		// Which of the stacks a bare list of slices is about can't be guessed.
		if len(names) > 1 {
			x.r.Add(d.Slices[0].Place, strictyaml.ErrValue,
				"the model has several stacks of layers; write modules, one of %q each", names)
			return
		}
		x.addModule("default", nil, d.Slices, nil)
	default:
		x.addModules(names)
	}

	x.unusedModules()

	for i := range x.modules {
		for j := range x.modules[i].runs {
			x.checkRun(&x.modules[i].runs[j])
		}
		x.checkWidths(&x.modules[i])
	}
}

// addModules expands the modules that a recipe names; the others are copied.
func (x *resolver) addModules(names []string) {
	for _, m := range x.plan.Document.Modules {
		if !slices.Contains(names, m.Name) {
			x.r.Add(m.Place, strictyaml.ErrValue, "the model has no module %q%s", m.Name,
				strictyaml.Suggest(m.Name, names))
			continue
		}
		x.addModule(m.Name, m.Models, m.Slices, m.Parameters)
	}

	for _, name := range names {
		if !slices.ContainsFunc(x.modules, func(m module) bool { return m.name == name }) {
			x.addModule(name, []recipe.Model{{Ref: x.plan.Models[x.plan.Donor]}}, nil, nil)
			x.modules[len(x.modules)-1].copy = true
		}
	}
}

// addModule expands one module.
func (x *resolver) addModule(name string, models []recipe.Model, parts []recipe.Slice, params recipe.Parameters) {
	m := module{name: name, stack: name, scope: x.settings(params, false)}
	if name == "default" {
		m.stack = ""
		if order := x.plan.layouts[x.plan.Donor].order; len(order) == 1 {
			m.stack = order[0]
		}
	}

	if models != nil {
		m.runs = []run{x.wholeModels(models, &m)}
	}
	for i := range parts {
		m.runs = append(m.runs, x.slice(&parts[i]))
	}

	x.modules = append(x.modules, m)
}

// wholeModels is the one slice of all layers, with the base at the end if it is not listed.
func (x *resolver) wholeModels(models []recipe.Model, m *module) run {
	s := run{at: models[0].Place, base: x.plan.Base}
	for _, in := range models {
		s.inputs = append(s.inputs,
			runInput{at: in.Place, model: x.index(in.Ref), scope: x.settings(in.Parameters, true)})
	}

	if s.base >= 0 && s.baseInput() < 0 {
		s.inputs = append(s.inputs, runInput{at: x.plan.Document.BaseAt, model: s.base})
	}
	if m.stack == "" {
		return s
	}

	s.length = x.stackLayers(s.inputs[0].model, m.stack)
	for _, in := range s.inputs[1:] {
		// A model without this stack has other names altogether, which checkArchitectures reports.
		if n := x.stackLayers(in.model, m.stack); n != s.length && n > 0 {
			x.r.Add(in.at, strictyaml.ErrValue, "%s has %d layers, %s has %d; name the layers to use in slices",
				x.plan.Models[in.model], n, x.plan.Models[s.inputs[0].model], s.length)
		}
	}

	return s
}

// slice expands a slice of the recipe.
func (x *resolver) slice(in *recipe.Slice) run {
	s := run{at: in.Place, base: x.plan.Base, scope: x.settings(in.Parameters, false)}
	if in.Base != nil {
		s.base = x.index(*in.Base)
	}

	for _, src := range in.Sources {
		s.inputs = append(s.inputs,
			runInput{at: src.Place, model: x.index(src.Ref), first: src.First, scope: x.settings(src.Parameters, true)})
	}

	s.length = in.Sources[0].End - in.Sources[0].First
	x.checkLayers(&s)
	return s
}

// checkArchitectures compares the kinds of models: different ones merge only if their tensors have the same names.
func (x *resolver) checkArchitectures() {
	first := x.plan.layouts[x.plan.Donor]
	for i, l := range x.plan.layouts {
		if l.class == first.class || !x.used(i) {
			continue
		}

		if slices.ContainsFunc(l.tensors,
			func(e entry) bool { return first.byName[e.name] == nil && e.block <= 0 && e.role != "head" }) {
			x.faults.List = append(x.faults.List, Fault{
				Model: x.plan.Models[i].String(), Err: ErrArchitecture,
				Detail: fmt.Sprintf("%q, where %s is %q, and the names of their tensors differ", l.class,
					x.plan.Models[x.plan.Donor], first.class),
			})
			continue
		}

		x.warn("%s is a %q, %s a %q; their tensors have the same names", x.plan.Models[i], l.class,
			x.plan.Models[x.plan.Donor], first.class)
	}
}

// used reports whether a model gives tensors, not only tokens.
func (x *resolver) used(model int) bool {
	for _, m := range x.modules {
		for _, s := range m.runs {
			if slices.ContainsFunc(s.inputs, func(in runInput) bool { return in.model == model }) {
				return true
			}
		}
	}
	return false
}

// result gives the plan, or what is wrong.
func (x *resolver) result() (*Plan, error) {
	var faults error
	if len(x.faults.List) > 0 {
		faults = &x.faults
	}
	if err := x.r.Err(); err != nil || faults != nil {
		return nil, errors.Join(err, faults)
	}
	return x.plan, nil
}

// repeated warns of layers that several slices take from one model: a stack of layers may be meant to have them
// twice, or a range may be wrong. It warns of a key without an effect, too.
func (x *resolver) repeated(slices []recipe.Slice) {
	type use struct{ slice, first, end int }
	before := map[recipe.Ref][]use{}
	for i, s := range slices {
		if s.Residual {
			x.warn("residual_weight of slice %d has no effect, as in mergekit", i+1)
		}

		for _, l := range s.Sources {
			for _, u := range before[l.Ref] {
				if first, end := max(u.first, l.First), min(u.end, l.End); first < end && u.slice != i {
					x.warn("slices %d and %d both take layers [%d, %d) of %s: the output has them twice", u.slice+1,
						i+1, first, end, l.Ref)
				}
			}

			before[l.Ref] = append(before[l.Ref], use{i, l.First, l.End})
		}
	}
}
