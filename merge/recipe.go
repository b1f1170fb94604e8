package merge

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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
// Mix. [Read] and [Parse] take a file's text, [New] takes Go values.
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
	Name       string      `json:"name"`
	Summary    string      `json:"summary"`
	Formula    string      `json:"formula"` // x_j are the models, b is the base, δ_j is x_j - b
	Fits       string      `json:"fits"`    // when one would take it
	Source     string      `json:"source"`  // where it was published
	Base       bool        `json:"base"`    // needs base_model
	MayBase    bool        `json:"may_base"`
	Least      int         `json:"least"` // models in the recipe, the base included
	Most       int         `json:"most"`  // 0: any number
	Parameters []Parameter `json:"parameters"`
}

// Parameter is what a recipe may set for a method.
type Parameter struct {
	Name     string `json:"name"`
	Of       string `json:"of"` // merge: one value for all models; model: one for each; input: one for the base too
	Required bool   `json:"required"`
	Default  string `json:"default"` // "" where there is none
	Meaning  string `json:"meaning"`
}

// scopes are the words of [Parameter.Of].
var scopes = map[recipe.Scope]string{recipe.Shared: "merge", recipe.PerModel: "model", recipe.PerInput: "input"}

// Methods lists the methods in the order of their table.
func Methods() []Method {
	var list []Method
	for _, name := range method.Names() {
		m, err := method.Find(name)
		if err != nil {
			panic("merge: a listed method is not in the table")
		}

		e := Method{
			Name: name, Summary: m.Summary, Base: m.Spec.Base == recipe.BaseRequired,
			MayBase: m.Spec.Base == recipe.BaseOptional, Least: max(m.Spec.MinInputs, 1), Most: m.Spec.MaxInputs,
		}
		e.Formula, e.Fits, e.Source = m.Explain()
		base := 0
		if e.Base {
			base = 1
		}
		if m.Spec.MinModels > 0 {
			e.Least = m.Spec.MinModels + base
		}
		if m.Spec.MaxModels > 0 {
			e.Most = m.Spec.MaxModels + base
		}

		for _, p := range m.Spec.Params {
			q := Parameter{Name: p.Name, Of: scopes[p.Scope], Required: p.Required, Meaning: m.Meaning(p.Name)}
			if p.Default != nil {
				q.Default = p.Default.String()
			}
			e.Parameters = append(e.Parameters, q)
		}

		list = append(list, e)
	}

	return list
}

// required are values of parameters without a default, for examples.
var required = map[string]string{
	"weight": "0.5", "t": "0.5", "fisher": "fisher.safetensors", "gram": "gram.safetensors", "nearswap t": "0.001",
}

// Example is a recipe by the method, of the models that come with the repository, with what has to be set.
func (m Method) Example() string {
	var b strings.Builder
	value := func(p string) string {
		if v, ok := required[m.Name+" "+p]; ok {
			return v
		}
		return required[p]
	}

	fmt.Fprintf(&b, "merge_method: %s\n", m.Name)
	models := []string{"testdata/nano/sums", "testdata/nano/news"}
	if m.Base {
		fmt.Fprintf(&b, "base_model: testdata/nano/base\n")
		if m.Most == 2 {
			models = models[:1]
		}
	}
	if m.Most == 1 {
		models = models[:1]
	}

	fmt.Fprintf(&b, "models:\n")
	for _, model := range models {
		fmt.Fprintf(&b, "  - model: %s\n", model)
		var own []string
		for _, p := range m.Parameters {
			if p.Required && p.Of != "merge" {
				own = append(own, p.Name+": "+value(p.Name))
			}
		}
		if len(own) > 0 {
			fmt.Fprintf(&b, "    parameters: {%s}\n", strings.Join(own, ", "))
		}
	}

	var all []string
	for _, p := range m.Parameters {
		if p.Required && p.Of == "merge" {
			all = append(all, p.Name+": "+value(p.Name))
		}
	}
	if len(all) > 0 {
		fmt.Fprintf(&b, "parameters: {%s}\n", strings.Join(all, ", "))
	}
	return b.String()
}
