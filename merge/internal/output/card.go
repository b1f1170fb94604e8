package output

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Card is what the README.md of a merged model says, in the form that hubs read: what it was made from, and how.
type Card struct {
	Plan      *plan.Plan
	Documents []*recipe.Document // of the recipe; models that name one of them stand for its models
	Summary   string             // of the method
	Based     bool               // the method makes something of a base
	Seed      uint64
	Recipe    []byte
	Remarks   []string // what a reader has to know of the models
}

// Text gives the file.
func (c *Card) Text() []byte {
	p := c.Plan
	var paths []string
	models := c.sources(p.Models, map[string]bool{})
	for _, m := range models {
		if !slices.Contains(paths, m.Model.Path) {
			paths = append(paths, m.Model.Path)
		}
	}

	var b strings.Builder
	fmt.Fprintf(&b, "A merge of language models by the method `%s` (%s), made with compress.\n\n", p.Method, c.Summary)

	based := c.Based && p.Base >= 0
	if based {
		what := ""
		if c.document(p.Models[p.Base]) != nil {
			what = "the result of document "
		}
		fmt.Fprintf(&b, "Base: %s`%s`\n\n", what, p.Models[p.Base])
	}

	b.WriteString("Models:\n\n")

	for _, m := range models {
		if !based || m != p.Models[p.Base] {
			fmt.Fprintf(&b, "* `%s`\n", m)
		}
	}

	about := card.Card{
		Base: paths, Library: card.Transformers, Tags: []string{"mergekit", "merge"}, Title: "Merge", Text: b.String(),
		Remarks: c.Remarks,
		Rest: fmt.Sprintf("%d tensors, %d parameters; seed %d. `merge.json` holds the options and the inputs.\n\n%s",
			len(p.Tensors), p.Summary().Parameters, c.Seed, recipeText(string(c.Recipe))),
	}
	return about.Bytes()
}

// recipeText shows a recipe.
func recipeText(text string) string {
	return fmt.Sprintf("Recipe:\n\n```yaml\n%s\n```\n", strings.TrimRight(text, "\n"))
}

// document finds the document whose result a model is, nil for a model of its own.
func (c *Card) document(r recipe.Ref) *recipe.Document {
	for _, d := range c.Documents {
		if d.Name != "" && d.Name == r.Model.Path && r.Model.Revision == "" {
			return d
		}
	}
	return nil
}

// sources lists models, each once, with those of a document in the place of its result.
func (c *Card) sources(refs []recipe.Ref, seen map[string]bool) []recipe.Ref {
	var out []recipe.Ref
	for _, r := range refs {
		d := c.document(r)
		if seen[r.String()] {
			continue
		}

		seen[r.String()] = true

		if d == nil {
			out = append(out, r)
			continue
		}

		out = append(out, c.sources(d.References(), seen)...)
	}

	return out
}

// MixtureCard gives the README.md of a mixture of experts. what is its opening, which the models follow, and
// its numbers; remarks are what a reader has to know of the models.
func MixtureCard(models []string, what [2]string, remarks []string, text string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, made with compress of:\n\n", what[0])
	for _, m := range models {
		fmt.Fprintf(&b, "* `%s`\n", m)
	}

	about := card.Card{
		Base: models, Library: card.Transformers, Tags: []string{"mergekit", "merge", "moe"},
		Title: "Mixture of experts", Text: b.String(), Remarks: remarks, Rest: what[1] + "\n\n" + recipeText(text),
	}
	return about.Bytes()
}
