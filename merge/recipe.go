package merge

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/input"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/moe"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// recipeLimit bounds what is read of a recipe file.
const recipeLimit = 1 << 20

// Recipe is a checked recipe file in mergekit's YAML: one merge per document, for Models, or a mixture of experts, for
// Mix.
type Recipe struct {
	path    string
	text    []byte
	docs    []*recipe.Document // none of a mixture
	mixture *moe.Config        // nil: merges

	folders map[string]string // of models that lie elsewhere than their paths say
}

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
	if recipe.IsMoE(text) {
		config, err := moe.Parse(path, text)
		if err != nil {
			return Recipe{}, faulty(err)
		}
		return Recipe{path: path, text: text, mixture: config}, nil
	}

	docs, err := plan.Parse(path, text, method.Specs()...)
	if err != nil {
		return Recipe{}, faulty(plan.Ranges(docs, err, Recipe{path: path}.layers()))
	}
	if docs, err = recipe.Order(docs); err != nil {
		return Recipe{}, faulty(err)
	}
	return Recipe{path: path, text: text, docs: docs}, nil
}

// parseMerges is Parse for what cannot be done with a mixture of experts.
func parseMerges(path string, text []byte) (Recipe, error) {
	r, err := Parse(path, text)
	if err == nil {
		err = r.merges()
	}
	return r, err
}

// merges refuses a mixture of experts where a merge is wanted.
func (r Recipe) merges() error {
	if r.mixture != nil {
		return faultyRecipe{fmt.Errorf("%s: a mixture of experts, where a merge is wanted", r.path)}
	}
	return nil
}

// Mixture reports whether the recipe is for a mixture of experts: Mix makes it, and not Models.
func (r Recipe) Mixture() bool { return r.mixture != nil }

// NeedsDevice reports whether the recipe runs a model, for which the options' Device has to be there: for the features
// of a router, or for a mixture's gates of hidden states.
func (r Recipe) NeedsDevice() bool {
	if r.mixture != nil {
		return r.mixture.NeedsStates()
	}
	return slices.ContainsFunc(r.docs, func(d *recipe.Document) bool {
		return d.Mediate != nil && len(d.Mediate.Router.Prompts) > 0 && d.Mediate.Router.Features != "external"
	})
}

// layers counts the layers of models, each once, as 0 if it cannot be opened.
func (r Recipe) layers() func(recipe.Ref) int {
	counted := map[recipe.Source]int{{}: 0}
	return func(ref recipe.Ref) int {
		if n, known := counted[ref.Model]; known {
			return n
		}

		counted[ref.Model] = 0

		if dir, err := recipe.Locate(ref.Model, r.places(nil)); err == nil {
			if m, err := input.Open(ref.String(), dir, ""); err == nil {
				counted[ref.Model] = plan.Layers(m.Infos())
				_ = m.Close() // it was only read
			}
		}

		return counted[ref.Model]
	}
}

// faultyRecipe is a *strict.Problems that is an ErrRecipe too, and says nothing more.
type faultyRecipe struct{ error }

// Unwrap gives what it wraps.
func (f faultyRecipe) Unwrap() []error { return []error{f.error, ErrRecipe} }

// faulty marks the faults of a recipe.
func faulty(err error) error {
	var p *strictyaml.Problems
	if errors.As(err, &p) {
		return faultyRecipe{err}
	}
	return err
}

// Excerpts is an error about a recipe with the lines it is about, for people; "" if the error is about something else.
func Excerpts(err error) string {
	var p *strictyaml.Problems
	if errors.As(err, &p) {
		return p.Excerpts()
	}
	return ""
}

// Text is the recipe as it was written.
func (r Recipe) Text() []byte { return r.text }

// places says where a document's models may lie. The results of other documents hide folders of the same name.
func (r Recipe) places(named map[string]string) recipe.Places {
	all := maps.Clone(r.folders)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, named)
	return recipe.Places{Recipe: filepath.Dir(r.path), Named: all, Cache: recipe.HubCache()}
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
