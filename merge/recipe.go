package merge

import (
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/moe"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// recipeLimit bounds what is read of a recipe file.
const recipeLimit = 1 << 20

// Recipe is a checked recipe file in mergekit's YAML: one merge per document, for Models, or a mixture of experts, for
// Mix.
type Recipe job.Handle

// Read reads a recipe file. The error lists every fault of the file with line and column.
func Read(path string) (Recipe, error) {
	text, err := safefile.ReadFile(path, recipeLimit)
	if errors.Is(err, safefile.ErrTooLarge) {
		err = fmt.Errorf("%s: longer than %d bytes, which no recipe is: %w", path, recipeLimit, ErrOption)
	}
	if err != nil {
		return Recipe{}, err
	}
	return Parse(path, text)
}

// Parse checks a recipe, which is for a mixture of experts if it has the key "experts". Paths in it are relative to the
// working directory, or else to the folder of path, which also names the recipe in messages.
func Parse(path string, text []byte) (Recipe, error) {
	if !recipe.IsMoE(text) {
		merges, err := job.Parse(path, text)
		return Recipe(job.NewHandle(merges, nil)), err
	}

	config, err := moe.Parse(path, text)
	if err != nil {
		return Recipe{}, job.Faulty(err)
	}

	return Recipe(job.NewHandle(job.Recipe{Path: path, Text: text}, config)), nil
}

// At is the recipe with models in other folders than it says, by their paths in the recipe.
func (r Recipe) At(folders map[string]string) Recipe {
	h := job.Handle(r)
	merges := h.Recipe()
	merges.Folders = folders
	return Recipe(job.NewHandle(merges, h.Mixture()))
}

// Mixture reports whether the recipe is for a mixture of experts: Mix makes it, and not Models.
func (r Recipe) Mixture() bool { return job.Handle(r).Mixture() != nil }

// NeedsDevice reports whether the recipe runs a model, for which the options' Device has to be there: for the features
// of a router, or for a mixture's gates of hidden states.
func (r Recipe) NeedsDevice() bool {
	h := job.Handle(r)
	if h.Mixture() != nil {
		return h.Mixture().NeedsStates()
	}
	return slices.ContainsFunc(h.Recipe().Docs, func(d *recipe.Document) bool {
		return d.Mediate != nil && len(d.Mediate.Router.Prompts) > 0 && d.Mediate.Router.Features != "external"
	})
}

// Text is the recipe as it was written.
func (r Recipe) Text() []byte { return job.Handle(r).Recipe().Text }

// Missing looks for the models and adapters that a recipe names, without opening any. Those that made reports
// as not there yet are left out. The error names every one that is not there.
func (r Recipe) Missing(made func(path string) bool) error {
	named := map[string]string{} // results of other documents
	var faults []error
	merges := job.Handle(r).Recipe()
	for _, doc := range merges.Docs {
		places := merges.Places(named)
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

// Excerpts is an error about a recipe with the lines it is about, for people; "" if the error is about something else.
func Excerpts(err error) string {
	var p *strictyaml.Problems
	if errors.As(err, &p) {
		return p.Excerpts()
	}
	return ""
}

// Method is a merge method for lists and help.
type Method struct {
	Name       string   `json:"name"`
	Summary    string   `json:"summary"`
	Base       bool     `json:"base"` // needs base_model
	Parameters []string `json:"parameters"`
}

// Methods lists the methods in the order of their table.
func Methods() []Method {
	var list []Method
	for _, name := range method.Names() {
		m, err := method.Find(name)
		if err != nil {
			panic("merge: a listed method is not in the table")
		}

		e := Method{Name: name, Summary: m.Summary, Base: m.Spec.Base == recipe.BaseRequired}
		for _, p := range m.Spec.Params {
			e.Parameters = append(e.Parameters, p.Name)
		}

		list = append(list, e)
	}

	return list
}
