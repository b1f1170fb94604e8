package recipe

import (
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// Folders finds the folders of all models and adapters of a document. The error wraps ErrNotFound and lists
// every one that is not there, with its place in the recipe.
func (d *Document) Folders(p Places) (map[Source]string, error) {
	out := map[Source]string{}
	var missing []error
	for _, ref := range d.References() {
		for _, s := range []Source{ref.Model, ref.Adapter} {
			if _, seen := out[s]; seen || s.Path == "" {
				continue
			}

			dir, err := Locate(s, p)
			out[s] = dir
			if err != nil {
				at := d.placeOf(s)
				missing = append(missing, fmt.Errorf("%s:%d:%d: %w", d.source.File, at.Line, at.Column, err))
			}
		}
	}

	return out, errors.Join(missing...)
}

// placeOf is where a document mentions a source first.
func (d *Document) placeOf(s Source) strictyaml.Place {
	is := func(r Ref) bool { return r.Model == s || r.Adapter == s }
	stacks := append([]Module{{Models: d.Models, Slices: d.Slices}}, d.Modules...)
	for _, m := range stacks {
		if i := slices.IndexFunc(m.Models, func(x Model) bool { return is(x.Ref) }); i >= 0 {
			return m.Models[i].Place
		}

		for _, x := range m.Slices {
			if i := slices.IndexFunc(x.Sources, func(l LayerRange) bool { return is(l.Ref) }); i >= 0 {
				return x.Sources[i].Place
			}
			if x.Base != nil && is(*x.Base) {
				return x.Place
			}
		}
	}

	if d.Base != nil && is(*d.Base) {
		return d.BaseAt
	}

	return d.Place
}
