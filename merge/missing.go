package merge

import (
	"errors"

	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Missing looks for the models and adapters that a recipe names, without opening any. Those that made reports
// as not there yet are left out. The error names every one that is not there.
func (r Recipe) Missing(made func(path string) bool) error {
	named := map[string]string{} // results of other documents
	var faults []error
	for _, doc := range r.docs {
		places := r.places(named)
		seen := map[recipe.Source]bool{}
		for _, ref := range doc.References() {
			for _, s := range []recipe.Source{ref.Model, ref.Adapter} {
				if s.Path == "" || seen[s] || made(s.Path) {
					continue
				}

				seen[s] = true
				if _, err := recipe.Locate(s, places); err != nil {
					faults = append(faults, err)
				}
			}
		}

		named[doc.Name] = ""
	}

	return errors.Join(faults...)
}
