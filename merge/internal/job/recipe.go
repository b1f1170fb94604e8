package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/hub"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/input"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/moe"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// ErrRecipe: the recipe has faults, which the error lists with line and column.
var ErrRecipe = failure.Misuse("recipe cannot be used", "")

// Recipe is a checked recipe of merges: one per document, each after those whose results it uses.
type Recipe struct {
	Path string // names the recipe in messages; paths in it are tried from its folder, too
	Text []byte
	Docs []*recipe.Document
	// Folders are places of models by their paths in the recipe, for those that lie elsewhere than it says; nil: none.
	Folders map[string]string
}

// Handle is a recipe in the hands of a program. Package merge gives it a public name; the packages of this module
// convert that back and look inside.
type Handle struct {
	recipe  Recipe      // without documents: a mixture
	mixture *moe.Config // nil: merges
}

// NewHandle makes the handle of merges, or of a mixture of experts where there is one.
func NewHandle(r Recipe, mixture *moe.Config) Handle { return Handle{r, mixture} }

// Recipe is what the handle holds, without documents for a mixture of experts.
func (h Handle) Recipe() Recipe { return h.recipe }

// Mixture is the mixture of experts; nil: merges.
func (h Handle) Mixture() *moe.Config { return h.mixture }

// Merges gives the merges of a recipe. The error wraps [ErrRecipe] for a mixture of experts, and [output.ErrOption] for
// a recipe that was not read.
func (h Handle) Merges() (Recipe, error) {
	switch {
	case h.mixture != nil:
		return Recipe{}, Faultf(h.recipe.Path, "a mixture of experts, where a merge is wanted")
	case len(h.recipe.Docs) == 0:
		return Recipe{}, fmt.Errorf("recipe without a document: %w", output.ErrOption)
	}
	return h.recipe, nil
}

// Parse checks the text of a recipe. The error lists every fault with line and column.
func Parse(path string, text []byte) (Recipe, error) {
	docs, err := plan.Parse(path, text, method.Specs()...)
	if err != nil {
		return Recipe{}, Faulty(plan.Ranges(docs, err, Recipe{Path: path}.layers()))
	}
	if docs, err = recipe.Order(docs); err != nil {
		return Recipe{}, Faulty(err)
	}
	return Recipe{Path: path, Text: text, Docs: docs}, nil
}

// layers counts the decoder layers of models, each once, as 0 if it cannot be opened.
func (r Recipe) layers() func(recipe.Ref) int {
	counted := map[recipe.Source]int{{}: 0}
	return func(ref recipe.Ref) int {
		if n, known := counted[ref.Model]; known {
			return n
		}

		counted[ref.Model] = 0

		if dir, err := recipe.Locate(ref.Model, r.Places(nil)); err == nil {
			// The work opens it again, in a context of its own.
			if m, err := input.Open(context.Background(), ref.String(), dir, ""); err == nil {
				counted[ref.Model] = plan.Layers(m.Infos())
				_ = m.Close() // it was only read
			}
		}

		return counted[ref.Model]
	}
}

// Places says where a document's models may lie. The results of other documents, named, hide folders of the same name.
func (r Recipe) Places(named map[string]string) recipe.Places {
	all := maps.Clone(r.Folders)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, named)
	return recipe.Places{Recipe: filepath.Dir(r.Path), Named: all, Cache: hub.CacheDir()}
}

// faulty is an error that is an [ErrRecipe] too, and says nothing more.
type faulty struct{ error }

// Unwrap gives what it wraps.
func (f faulty) Unwrap() []error { return []error{f.error, ErrRecipe} }

// Faulty marks the faults of a recipe, a *strictyaml.Problems, as [ErrRecipe]; other errors stay as they are.
func Faulty(err error) error {
	var p *strictyaml.Problems
	if errors.As(err, &p) {
		return faulty{err}
	}
	return err
}

// Faultf makes an [ErrRecipe] about the recipe at path that has no line of its own.
func Faultf(path, format string, args ...any) error {
	return faulty{fmt.Errorf("%s: %w", path, fmt.Errorf(format, args...))}
}
