package recipe

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
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

// errOpen is [strictyaml.ErrValue] of a number that a recipe leaves open, with what can be done about it.
var errOpen = fmt.Errorf("%w%w", strictyaml.ErrValue, failure.New("", "compress merge search finds such numbers"))

// setting decodes the value of a parameter.
func setting(r *strictyaml.Reader, n *strictyaml.Node, name string) Setting {
	switch {
	case n.Kind == strictyaml.Map && n.Get("search") != nil:
		r.Add(n.Place, errOpen, "%s is to be searched for: a merge needs a number here", name)
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

// Matches reports whether a rule holds for a tensor.
func (x *Rule) Matches(tensor string) bool {
	return x.Filter == "" || x.Filter == "*" || strings.Contains(tensor, x.Filter)
}
