package plan

import (
	"math"

	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Blame gives a fault of a tensor's parameter, found while its merge was prepared, its place in the recipe: the value
// itself if a setting holds it, else the first setting of that name, else the method. The result wraps fault.
func (p *Plan) Blame(fault error, name string, value float64) error {
	d, r := p.Document, p.Document.Reader()
	at, found := d.MethodAt, false
	look := func(params recipe.Parameters) {
		s, _ := params.Get(name)
		for _, rule := range s {
			for _, n := range rule.Values {
				if v, ok := n.Number(); at == d.MethodAt || !found && ok && v == value {
					at, found = n.Place, ok && v == value
				}
			}
		}
	}

	each := func(models []recipe.Model, parts []recipe.Slice, params recipe.Parameters) {
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

	// Modules first: their settings are the nearest to the tensor.
	for _, m := range d.Modules {
		each(m.Models, m.Slices, m.Parameters)
	}

	each(d.Models, d.Slices, d.Parameters)
	r.Add(at, fault, "%v", fault)
	return r.Err()
}

// typed is a setting with its values converted to the type of a parameter.
type typed []typedRule

type typedRule struct {
	recipe.Rule
	values []recipe.Value
}

// convert gives a scalar the type of a parameter.
func convert(n *strictyaml.Node, t recipe.Type) (recipe.Value, bool) {
	v := recipe.Value{Type: t}
	ok := true
	switch t {
	case recipe.Number, recipe.Integer:
		v.Number, ok = n.Number()
		ok = ok && (t == recipe.Number || whole(v.Number))
	case recipe.Bool:
		v.Bool, ok = n.Bool()
	case recipe.Text:
		v.Text = n.Text
	}

	return v, ok
}

// typedSetting converts a setting, noting each value that has the wrong type.
func typedSetting(r *strictyaml.Reader, s recipe.Setting, p *recipe.Param) typed {
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

		if p.Type == recipe.Integer && x.Gradient {
			fractions(r, p, y.values, x.Values)
		}

		out = append(out, y)
	}

	return out
}

// fractions notes a gradient of whole numbers that has to be interpolated: the values between would not be whole.
func fractions(r *strictyaml.Reader, p *recipe.Param, values []recipe.Value, nodes []*strictyaml.Node) {
	for _, v := range values {
		if v != values[0] {
			r.Add(nodes[0].Place, strictyaml.ErrValue, "%s is a whole number; a gradient of it would not be", p.Name)
			return
		}
	}
}

// at gives the setting's value for a tensor at gradient position t; false if no rule matches or its list is empty.
func (s typed) at(tensor string, t float64) (recipe.Value, bool) {
	for i := range s {
		x := &s[i]
		if !x.Matches(tensor) {
			continue
		}
		if len(x.values) == 0 {
			return recipe.Value{}, false
		}

		return interpolate(x.values, t), true
	}

	return recipe.Value{}, false
}

// interpolate gives a list's value at t in [0, 1].
func interpolate(values []recipe.Value, t float64) recipe.Value {
	m := len(values)
	if values[0].Type == recipe.Bool || values[0].Type == recipe.Text {
		return values[int(t*float64(m-1))]
	}

	scaled := t * float64(m-1)
	i := int(scaled)
	j := min(m-1, i+1)
	f := scaled - float64(i)
	// Each product is rounded by itself, as everywhere else: a fused multiply-add would differ by machine.
	low, high := float64((1-f)*values[i].Number), float64(f*values[j].Number)
	return recipe.Value{Type: values[i].Type, Number: low + high}
}

// maxInteger bounds whole numbers to what a float64 holds exactly.
const maxInteger = 1 << 53

// whole reports whether a number can be a value of type Integer.
func whole(x float64) bool {
	return x == math.Trunc(x) && math.Abs(x) <= maxInteger
}
