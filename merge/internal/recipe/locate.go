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
		return d.base
	}

	return d.Place
}

// repeated warns of layers that several slices take from one model: a stack of layers may be meant to have them
// twice, or a range may be wrong. It warns of a key without an effect, too.
func (x *resolver) repeated(slices []Slice) {
	type use struct{ slice, first, end int }
	before := map[Ref][]use{}
	for i, s := range slices {
		if s.residual {
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
