package recipe

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/safetensors"
	"pgregory.net/rapid"
)

// TestMain gives property tests the same draws in every run; -rapid.seed=0 draws anew.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestFaultsOfRecipes: every fault is named where it stands, with what would be right; several faults are all named.
func TestFaultsOfRecipes(t *testing.T) {
	const (
		linear = "merge_method: linear\n"
		models = linear + "models: "
		slices = linear + "slices: "
		whole  = models + "[{model: a}]\n"
	)

	for _, c := range []struct{ text, want string }{
		{"", "r.yaml:1:1: the file holds no recipe"},
		{"a", "r.yaml:1:1: a recipe must be a map"},
		{"[1]", "r.yaml:1:1: a recipe must be a map"},
		{"models: [{model: a}]", `r.yaml:1:1: a recipe needs the key "merge_method"`},

		{"merge_method: linear", "r.yaml:1:1: a recipe needs exactly one of models, slices and modules"},
		{models + "[]", "exactly one of models, slices and modules"},
		{
			whole + "slices: [{sources: [{model: a, layer_range: [0, 1]}]}]",
			"exactly one of models, slices and modules",
		},
		{linear + "model: [{model: a}]", `r.yaml:2:1: unknown key "model" in a recipe; did you mean "models"?`},
		{models + "[{path: a}]", `r.yaml:2:11: a model needs the key "model"`},
		{models + "[{model: ''}]", `"" names no model`},
		{models + "[{model: a@}]", `"a@" names no model`},
		{models + "[{model: a+b+c}]", `more than one "+"; write {model: {path: …}, lora: {path: …}}`},
		{models + "[{model: [a]}]", "r.yaml:2:18: "},
		{models + "{model: a}", "r.yaml:2:10: models must be a list, not a map"},
		{models + "[{model: {lora: b}}]", `r.yaml:2:19: a model reference needs the key "model"`},
		{
			whole + "dtype: int8",
			"r.yaml:3:8: dtype must be bfloat16, float16, float32 or float64, not \"int8\"",
		},
		{whole + "name: a/b", `r.yaml:3:7: name must be a plain word, not "a/b"`},
		{whole + "name: ..", "name must be a plain word"},
		{whole + "name: .a", "name must be a plain word"},

		{slices + "[{sources: []}]", "r.yaml:2:20: a slice needs at least one source"},
		{
			slices + "[{sources: [{model: a, layer_range: [3]}]}]",
			"layer_range must be [first, end], not 1 numbers",
		},
		{slices + "[{sources: [{model: a, layer_range: [3, 3]}]}]", "layer_range [3, 3) holds no layer"},
		{slices + "[{sources: [{model: a, layer_range: [-1, 3]}]}]", "the first layer must be"},
		{slices + "[{sources: [{model: a, layer_range: [0, 100001]}]}]", "the end of the layers must be"},
		{slices + "[{sources: [{model: a, layer_range: [0.5, 2]}]}]", "the first layer must be"},
		{slices + "[{sources: [{model: a}]}]", `a source needs the key "layer_range"`},
		{
			linear + "slices:\n- sources:\n  - {model: a, layer_range: [0, 2]}\n  - {model: b, layer_range: [1, 4]}",
			"r.yaml:5:6: b gives 3 layers to the slice, a 2; all sources of a slice must have the same number",
		},

		{linear + "modules: {text: {}}", `r.yaml:2:11: module "text" needs exactly one of models and slices`},
		{linear + "modules: [a]", "r.yaml:2:10: modules must be a map of names"},
		{
			"merge_method: mediate\nslices: [{sources: [{model: a, layer_range: [0, 1]}]}]",
			"merge_method: mediate takes its experts from models",
		},

		{whole + "parameters: [1]", "r.yaml:3:13: parameters must be a map of names and values"},
		{
			models + "[{model: a, parameters: {weight: {search: [0, 1]}}}]",
			"weight is to be searched for: a merge needs a number here",
		},
		{models + "[{model: a, parameters: {weight: [0, {search: [0, 1]}]}}]", "weight is to be searched for"},
		{
			models + "[{model: a, parameters: {weight: [{value: 1}, 2]}}]",
			"weight mixes values and rules; each entry must be {filter: …, value: …}",
		},
		{models + "[{model: a, parameters: {weight: [1, [2]]}}]", "weight: a gradient holds numbers, not"},
		{models + "[{model: a, parameters: {weight: {filter: a}}}]", `a rule of weight needs the key "value"`},
		{
			models + "[{model: a, parameters: {weight: {value: {a: 1}}}}]",
			"weight must be a value, a list of values or a list of {filter: …, value: …}",
		},

		{
			whole + "tokenizer_source: base\ntokenizer: {}",
			"r.yaml:3:19: tokenizer_source and tokenizer exclude each other",
		},
		{whole + "tokenizer: {pad_to_multiple_of: 0}", "pad_to_multiple_of must be"},
		{whole + "tokenizer: {tokens: [a]}", "tokens must be a map of tokens"},
		{
			whole + "tokenizer: {tokens: {x: {force: true}}}",
			`force: true needs a source to take the row of "x" from`,
		},
		{whole + "tokenizer: {tokens: {'': {source: a}}}", "a token cannot be empty"},
		{whole + "tokenizer: {tokens: {x: {source: {kind: none}}}}", `not "none"`},
		{
			whole + "tokenizer: {tokens: {x: {source: {kind: model_token, model: a}}}}",
			"a model_token needs exactly one of token and token_id",
		},
		{
			whole + "chat_template: chatml2",
			`must be one of auto, alpaca, chatml, exaone, llama3, mistral, not "chatml2"`,
		},
	} {
		_, err := Parse("r.yaml", []byte(c.text), nil)
		var problems *strictyaml.Problems
		if err == nil || !errors.As(err, &problems) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
	}

	_, err := Parse("r.yaml", []byte("dtype: x\nmodels: [{}]\nslices: 3\nname: a/b\n"), nil)
	if n := len(strings.Split(fmt.Sprint(err), "\n")); n < 5 {
		t.Errorf("%d of six faults are named: %v", n, err)
	}
}

// TestRecipeAsWritten: what every key sets.
func TestRecipeAsWritten(t *testing.T) {
	docs, err := Parse("r.yaml", []byte(`
name: result
merge_method: ties
base_model: {model: {path: org/base, revision: v1}, lora: {path: a+b}, override_architecture: LlamaForCausalLM}
dtype: bfloat16
out_dtype: float32
slices:
- sources:
  - {model: x, layer_range: [0, 8], parameters: {weight: 0.5}}
  - {model: y@r+z, layer_range: [8, 16]}
  residual_weight: 0.1
- sources: [{model: x, layer_range: [8, 10]}]
  base_model: other
  parameters: {density: [0.1, 0.9]}
parameters:
  lambda: 1
  density:
  - {filter: mlp, value: [0.2, 0.4]}
  - {filter: '*', value: 0.5}
  - 
    value: 0.7
tokenizer:
  source: union
  pad_to_multiple_of: 64
  tokens:
    <a>: {source: x, force: true}
    <b>: {source: {kind: model_token, model: y, token: "</s>"}}
    <c>: {source: {kind: model_token, model: y, token_id: 7}}
    <d>: {source: {kind: zero}}
    <e>: {}
chat_template: chatml
`), nil)
	if err != nil {
		t.Fatal(err)
	}

	d := docs[0]
	base := Ref{
		Model: Source{Path: "org/base", Revision: "v1"}, Adapter: Source{Path: "a+b"}, Class: "LlamaForCausalLM",
	}
	if d.Name != "result" || d.Method != "ties" || *d.Base != base || d.DType != safetensors.BF16 ||
		d.OutDType != safetensors.F32 || d.ChatTemplate != "chatml" || d.MethodAt.Line != 3 || d.BaseAt.Line != 4 {
		t.Errorf("%+v", d)
	}

	one, two := d.Slices[0], d.Slices[1]
	if !one.Residual || two.Residual || one.Base != nil || two.Base.Model.Path != "other" ||
		one.Sources[1].First != 8 || one.Sources[1].End != 16 || one.Sources[1].Ref.String() != "y@r+z" {
		t.Errorf("%+v", d.Slices)
	}

	density, _ := d.Parameters.Get("density")
	if got, want := density.String(), "mlp: [0.2, 0.4]; *: 0.5; 0.7"; got != want {
		t.Errorf("the rules of density are %q, want %q", got, want)
	}
	if own, ok := two.Parameters.Get("density"); !ok || own.String() != "[0.1, 0.9]" || !own[0].Gradient {
		t.Errorf("the density of a slice is %v", own)
	}
	if _, ok := d.Parameters.Get("weight"); ok {
		t.Error("the weight of a source is that of the recipe")
	}
	if density[0].Matches("model.layers.0.self_attn") || !density[0].Matches("model.layers.0.mlp.up") ||
		!density[1].Matches("x") || !density[2].Matches("x") {
		t.Error("rules match other tensors than their filter says")
	}

	x, y := Ref{Model: Source{Path: "x"}}, Ref{Model: Source{Path: "y"}}
	want := []Token{
		{Text: "<a>", Force: true, Source: TokenSource{Kind: TokenModel, Model: x}},
		{Text: "<b>", Source: TokenSource{Kind: TokenText, Model: y, Text: "</s>"}},
		{Text: "<c>", Source: TokenSource{Kind: TokenID, Model: y, ID: 7}},
		{Text: "<d>", Source: TokenSource{Kind: TokenZero}},
		{Text: "<e>"},
	}
	for i, got := range d.Tokenizer.Tokens {
		got.Place = strictyaml.Place{}
		if got != want[i] {
			t.Errorf("token %d is %+v, want %+v", i, got, want[i])
		}
	}
	if d.Tokenizer.Vocabulary != Union || d.Tokenizer.Multiple != 64 {
		t.Errorf("%+v", d.Tokenizer)
	}

	var refs []string
	for _, r := range d.References() {
		refs = append(refs, r.String())
	}
	if want := []string{"x", "y@r+z", "other", "org/base@v1+a+b", "y"}; !slices.Equal(refs, want) {
		t.Errorf("the recipe mentions %q, want %q", refs, want)
	}
}

// TestMixturesAreTold: by the key that only they have, in the first document, whatever else is wrong.
func TestMixturesAreTold(t *testing.T) {
	for text, want := range map[string]bool{
		"experts: []": true, "experts: [{source_model: a}]\nmodels: 3": true, "models: [{model: experts}]": false,
		"a: 1\n---\nexperts: []": false, "[experts]": false, "": false, "experts: [": false, "x: {experts: 1}": false,
	} {
		if got := IsMoE([]byte(text)); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

// TestReferenceProperty: a reference that is written as text is read as the same one; paths that the notation has no
// room for are refused, not read as others.
func TestReferenceProperty(t *testing.T) {
	word := rapid.StringMatching(`[a-z./@+ é-]{0,6}`)
	rapid.Check(t, func(r *rapid.T) {
		ref := Ref{
			Model:   Source{Path: word.Draw(r, "path"), Revision: word.Draw(r, "revision")},
			Adapter: Source{Path: word.Draw(r, "adapter"), Revision: word.Draw(r, "its revision")},
		}
		if ref.Adapter.Path == "" {
			ref.Adapter.Revision = ""
		}

		got, err := ParseRef(ref.String())
		plainText := ref.Model.Path != "" && !strings.ContainsAny(ref.Model.Path+ref.Model.Revision+ref.Adapter.Path+
			ref.Adapter.Revision, "@+")
		if plainText && (err != nil || got != ref) {
			r.Errorf("%+v is read as %+v, %v", ref, got, err)
		}
		if err == nil && got.String() != ref.String() {
			r.Errorf("%q is read as %+v, which is %q", ref, got, got)
		}
	})
}

// TestOrderProperty: whichever documents use each other's results, as long as none waits for itself, each comes after
// those that it uses, and none is lost.
func TestOrderProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(r, "documents")
		place := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
			for i := range n {
				if !yield(i) {
					return
				}
			}
		})).Draw(r, "places")

		var text strings.Builder
		uses := map[string][]string{}
		for _, i := range place { // document i uses some with smaller numbers
			name := fmt.Sprint("d", i)
			models := "{model: elsewhere}"
			for j := range i {
				if rapid.Bool().Draw(r, "uses") {
					uses[name] = append(uses[name], fmt.Sprint("d", j))
					models += fmt.Sprintf(", {model: d%d}", j)
				}
			}
			fmt.Fprintf(&text, "---\nname: %s\nmerge_method: linear\nmodels: [%s]\n", name, models)
		}

		docs, err := Parse("r.yaml", []byte(text.String()), nil)
		if err != nil {
			r.Fatal(err)
		}

		ordered, err := Order(docs)
		if err != nil || len(ordered) != n {
			r.Fatalf("%d of %d documents, %v", len(ordered), n, err)
		}

		done := map[string]bool{}
		for _, d := range ordered {
			for _, used := range uses[d.Name] {
				if !done[used] {
					r.Errorf("%s comes before %s, which it uses", d.Name, used)
				}
			}
			if done[d.Name] {
				r.Errorf("%s comes twice", d.Name)
			}
			done[d.Name] = true
		}

		if len(uses) == 0 && !slices.Equal(ordered, docs) {
			r.Error("documents that need nothing of each other change places")
		}
	})
}
