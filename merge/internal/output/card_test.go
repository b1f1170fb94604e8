package output

import (
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// TestSourcesOfDocuments: a card lists the models that were merged, each once, not the names of intermediate results.
func TestSourcesOfDocuments(t *testing.T) {
	text := []byte("name: first\nmerge_method: linear\nmodels: [{model: a}, {model: b}]\n---\n" +
		"name: second\nmerge_method: linear\nmodels: [{model: first}, {model: b}]\n---\n" +
		"merge_method: ties\nbase_model: first\nmodels: [{model: second}, {model: c@v1}]\n")
	docs, err := recipe.Parse("r.yaml", text, nil)
	if err != nil {
		t.Fatal(err)
	}

	last := docs[2]
	c := Card{
		Plan:      &plan.Plan{Document: last, Method: last.Method, Models: last.References(), Base: 2},
		Documents: docs, Based: true, Summary: "s", Recipe: text,
	}

	got := string(c.Text())
	for _, want := range []string{
		"base_model:\n- \"a\"\n- \"b\"\n- \"c\"\nlibrary_name",
		"Base: the result of document `first`\n\nModels:\n\n* `a`\n* `b`\n* `c@v1`\n\n0 tensors",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks\n%s", got, want)
		}
	}
}
