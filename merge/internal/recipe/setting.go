package recipe

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// Parameters are the settings of one place of a recipe by name, in the order of the file.
type Parameters []Parameter

// Parameter is one setting.
type Parameter struct {
	strictyaml.Place
	Name    string
	Setting Setting
}

// Setting is the rules of a parameter: the first that matches a tensor counts.
type Setting []Rule

// Rule is a value for the tensors whose name holds the filter. A scalar or a gradient alone is one rule without filter.
type Rule struct {
	Filter   string // "" and "*" match every tensor
	Values   []*strictyaml.Node
	Gradient bool // Values is a list that the recipe wrote as one; otherwise Values holds one scalar
}

// Get finds a setting.
func (p Parameters) Get(name string) (Setting, bool) {
	for _, x := range p {
		if x.Name == name {
			return x.Setting, true
		}
	}
	return nil, false
}

// parameters decodes a map of settings.
func parameters(r *strictyaml.Reader, n *strictyaml.Node) Parameters {
	if n == nil {
		return nil
	}
	if n.Kind != strictyaml.Map {
		r.Add(n.Place, strictyaml.ErrType, "parameters must be a map of names and values, not %s", n.Kind)
	}

	var out Parameters
	for _, e := range n.Entries {
		out = append(out, Parameter{Place: e.Place, Name: e.Key, Setting: setting(r, e.Value, e.Key)})
	}

	return out
}

// setting decodes the value of a parameter.
func setting(r *strictyaml.Reader, n *strictyaml.Node, name string) Setting {
	switch {
	case n.Kind == strictyaml.Map && n.Get("search") != nil:
		r.Add(n.Place, strictyaml.ErrValue,
			`%s is to be searched for: a merge needs a number here; "compress merge search" finds one`, name)
		return nil
	case n.Kind == strictyaml.Map:
		return Setting{rule(r, n, name)}
	case n.Kind == strictyaml.List && len(n.Items) > 0 && n.Items[0].Kind == strictyaml.Map &&
		n.Items[0].Get("search") == nil:
		var out Setting
		for _, item := range n.Items {
			if item.Kind != strictyaml.Map {
				r.Add(item.Place, strictyaml.ErrType,
					"%s mixes values and rules; each entry must be {filter: …, value: …}", name)
				continue
			}
			out = append(out, rule(r, item, name))
		}

		return out
	}

	return Setting{values(r, n, name)}
}

// rule decodes {filter: …, value: …}.
func rule(r *strictyaml.Reader, n *strictyaml.Node, name string) Rule {
	var out Rule
	o := r.Object(n, "a rule of "+name)
	filter := o.Get("filter")
	if v := o.Need("value"); v != nil {
		out = values(r, v, name)
	}
	if filter != nil {
		out.Filter = r.Text(filter, "filter")
	}

	o.Close()
	return out
}

// values decodes a scalar or a gradient.
func values(r *strictyaml.Reader, n *strictyaml.Node, name string) Rule {
	switch n.Kind {
	case strictyaml.Scalar:
		return Rule{Values: []*strictyaml.Node{n}}
	case strictyaml.List:
		out := Rule{Gradient: true}
		for _, item := range n.Items {
			switch {
			case item.Kind == strictyaml.Map && item.Get("search") != nil:
				setting(r, item, name)
			case item.Kind != strictyaml.Scalar:
				r.Add(item.Place, strictyaml.ErrType, "%s: a gradient holds numbers, not %s", name, item.Kind)
			default:
				out.Values = append(out.Values, item)
			}
		}

		return out
	}

	r.Add(n.Place, strictyaml.ErrType,
		"%s must be a value, a list of values or a list of {filter: …, value: …}, not %s", name, n.Kind)
	return Rule{}
}

// Blame gives a fault of a tensor's parameter, found while its merge was prepared, its place in the recipe: the value
// itself if a setting holds it, else the first setting of that name, else the method. The result wraps fault.
func (p *Plan) Blame(fault error, name string, value float64) error {
	d, r := p.Document, p.Document.Reader()
	at, found := d.methodAt, false
	look := func(params Parameters) {
		s, _ := params.Get(name)
		for _, rule := range s {
			for _, n := range rule.Values {
				if v, ok := n.Number(); at == d.methodAt || !found && ok && v == value {
					at, found = n.Place, ok && v == value
				}
			}
		}
	}

	each := func(models []Model, parts []Slice, params Parameters) {
		for _, m := range models {
			look(m.Parameters)
		}

		for _, s := range parts {
			for _, in := range s.Sources {
				look(in.Parameters)
			}
			look(s.Parameters)
		}

		look(params)
	}

	for _, m := range d.Modules {
		each(m.Models, m.Slices, m.Parameters)
	}

	each(d.Models, d.Slices, d.Parameters)
	r.Add(at, fault, "%v", fault)
	return r.Err()
}

// matches tells whether a rule holds for a tensor.
func (x *Rule) matches(tensor string) bool {
	return x.Filter == "" || x.Filter == "*" || strings.Contains(tensor, x.Filter)
}

// typed is a setting with its values converted to the type of a parameter.
type typed []typedRule

type typedRule struct {
	Rule
	values []Value
}

// convert gives a scalar the type of a parameter.
func convert(n *strictyaml.Node, t Type) (Value, bool) {
	v := Value{Type: t}
	ok := true
	switch t {
	case Number, Integer:
		v.Number, ok = n.Number()
		ok = ok && (t == Number || whole(v.Number))
	case Bool:
		v.Bool, ok = n.Bool()
	case Text:
		v.Text = n.Text
	}

	return v, ok
}

// typedSetting converts a setting, noting each value that has the wrong type.
func typedSetting(r *strictyaml.Reader, s Setting, p *Param) typed {
	var out typed
	for _, x := range s {
		y := typedRule{Rule: x}
		for _, n := range x.Values {
			v, ok := convert(n, p.Type)
			if !ok {
				r.Add(n.Place, strictyaml.ErrType, "%s must be %s, not %q", p.Name, p.Type, n.Text)
			}
			y.values = append(y.values, v)
		}

		if p.Type == Integer && x.Gradient {
			fractions(r, p, y.values, x.Values)
		}

		out = append(out, y)
	}

	return out
}

// fractions notes a gradient of whole numbers that has to be interpolated: the values between would not be whole.
func fractions(r *strictyaml.Reader, p *Param, values []Value, nodes []*strictyaml.Node) {
	for _, v := range values {
		if v != values[0] {
			r.Add(nodes[0].Place, strictyaml.ErrValue, "%s is a whole number; a gradient of it would not be", p.Name)
			return
		}
	}
}

// at gives the setting's value for a tensor at gradient position t; false if no rule matches or its list is empty.
func (s typed) at(tensor string, t float64) (Value, bool) {
	for i := range s {
		x := &s[i]
		if !x.matches(tensor) {
			continue
		}
		if len(x.values) == 0 {
			return Value{}, false
		}

		return interpolate(x.values, t), true
	}

	return Value{}, false
}

// interpolate gives a list's value at t in [0, 1].
func interpolate(values []Value, t float64) Value {
	m := len(values)
	if values[0].Type == Bool || values[0].Type == Text {
		return values[int(t*float64(m-1))]
	}

	scaled := t * float64(m-1)
	i := int(scaled)
	j := min(m-1, i+1)
	f := scaled - float64(i)
	// Each product is rounded by itself, as everywhere else: a fused multiply-add would differ by machine.
	low, high := float64((1-f)*values[i].Number), float64(f*values[j].Number)
	return Value{Type: values[i].Type, Number: low + high}
}

// String writes a setting for messages and tables.
func (s Setting) String() string {
	parts := make([]string, len(s))
	for i, x := range s {
		texts := make([]string, len(x.Values))
		for j, n := range x.Values {
			texts[j] = n.Text
		}

		parts[i] = strings.Join(texts, ", ")
		if x.Gradient {
			parts[i] = "[" + parts[i] + "]"
		}
		if x.Filter != "" {
			parts[i] = fmt.Sprintf("%s: %s", x.Filter, parts[i])
		}
	}

	return strings.Join(parts, "; ")
}
