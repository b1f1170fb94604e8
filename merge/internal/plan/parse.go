package plan

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Parse reads a recipe file as [recipe.Parse] does, with the faults of parameters by the table of methods. With
// an error the documents hold what could be read, for Ranges alone.
func Parse(file string, text []byte, methods ...recipe.Method) ([]*recipe.Document, error) {
	return recipe.Parse(file, text, func(r *strictyaml.Reader, d *recipe.Document) { checkSettings(r, d, methods) })
}

// checkSettings notes an unknown method, and settings that it does not have or of the wrong type.
func checkSettings(r *strictyaml.Reader, d *recipe.Document, methods []recipe.Method) {
	x := &resolver{r: r, methods: methods, plan: &Plan{Document: d}}
	// A mediate recipe has settings of its own, which its package checks.
	if len(methods) == 0 || d.Method == "" || !x.chooseMethod() || d.Method == recipe.Mediated {
		return
	}

	check := func(params recipe.Parameters, models []recipe.Model, parts []recipe.Slice) {
		x.settings(params, false)
		for _, m := range models {
			x.settings(m.Parameters, true)
		}

		for _, s := range parts {
			x.settings(s.Parameters, false)
			for _, in := range s.Sources {
				x.settings(in.Parameters, true)
			}
		}
	}

	check(d.Parameters, d.Models, d.Slices)
	for _, m := range d.Modules {
		check(m.Parameters, m.Models, m.Slices)
	}
}

// Ranges adds the layers that models do not have to the faults that Parse found, a *strictyaml.Problems: layers
// counts those of a model, 0 if it is not known.
func Ranges(docs []*recipe.Document, faults error, layers func(recipe.Ref) int) error {
	var p *strictyaml.Problems
	if !errors.As(faults, &p) {
		return faults
	}

	for _, d := range docs {
		for _, s := range d.Slices {
			for _, in := range s.Sources {
				if have := layers(in.Ref); in.End > have && have > 0 && in.First < in.End {
					p.Add(in.Place, strictyaml.ErrValue, tooDeep(in.First, in.End, in.Ref, have))
				}
			}
		}
	}

	return p
}

// tooDeep is the fault of layers that a model does not have.
func tooDeep(first, end int, r recipe.Ref, have int) string {
	return fmt.Sprintf("layers [%d, %d) of %s: it has %d", first, end, r, have)
}
