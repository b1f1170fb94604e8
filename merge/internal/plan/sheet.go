package plan

import (
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Sheet is the parameters of a method that a mediate recipe names inside its own.
type Sheet struct {
	Method   *recipe.Method
	settings scope
}

// Sheet prepares a static merge of the plan's document: its method is looked up in the table, and its settings are
// checked and converted. The error is a *strictyaml.Problems.
func (p *Plan) Sheet(s recipe.StaticMerge, methods []recipe.Method) (*Sheet, error) {
	x := &resolver{r: p.Document.Reader(), plan: p, methods: methods}
	var known []string
	for i := range methods {
		known = append(known, methods[i].Name)
		if methods[i].Name == s.Method {
			x.method = &methods[i]
		}
	}

	if x.method == nil {
		x.r.Add(s.Place, strictyaml.ErrValue, "unknown method %q%s", s.Method, strictyaml.Suggest(s.Method, known))
		return nil, x.r.Err()
	}

	out := &Sheet{Method: x.method, settings: x.settings(s.Parameters, false)}
	return out, x.r.Err()
}

// At gives every parameter's value for a tensor, by the tensor's name and position; parameters that a model has of its
// own are the same for all. Those without value and default are absent.
func (s *Sheet) At(t *Tensor) recipe.Values {
	out := recipe.Values{}
	for _, p := range s.Method.Params {
		if set, ok := s.settings[p.Name]; ok {
			if v, ok := set.at(t.Name, t.T); ok {
				out[p.Name] = v
				continue
			}
		}

		if p.Default != nil {
			out[p.Name] = *p.Default
		}
	}

	return out
}
