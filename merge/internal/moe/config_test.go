package moe

import (
	"reflect"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// TestConfigAsWritten: what every key sets, and what counts without it.
func TestConfigAsWritten(t *testing.T) {
	c, err := Parse("r.yaml", []byte(`
base_model: org/base@v1
gate_mode: Cheap_Embed
`))
	if err == nil {
		t.Errorf("a recipe without experts is read as %+v", c)
	}

	c, err = Parse("r.yaml", []byte(`
base_model: org/base@v1
gate_mode: hidden_avg
dtype: float16
experts_per_token: 1
architecture: Qwen3
experts:
- source_model: a
  positive_prompts: [one, two]
  negative_prompts: [three]
  noise_scale: 0.5
- source_model: b+adapter
  positive_prompts: [four]
  residual_scale: 0.25
shared_experts:
- source_model: c
  positive_prompts: [five]
`))
	if err != nil {
		t.Fatal(err)
	}

	a, b := recipe.Ref{Model: recipe.Source{Path: "a"}}, recipe.Ref{
		Model: recipe.Source{Path: "b"}, Adapter: recipe.Source{Path: "adapter"},
	}
	shared := recipe.Ref{Model: recipe.Source{Path: "c"}}
	want := []Expert{
		{Source: a, Positive: []string{"one", "two"}, Negative: []string{"three"}, Noise: 0.5, Residual: 1},
		{Source: b, Positive: []string{"four"}, Residual: 0.25},
		{Source: shared, Positive: []string{"five"}, Residual: 1},
	}
	for i, got := range append(c.Experts, c.Shared...) {
		want[i].Place = got.Place
		if !reflect.DeepEqual(got, want[i]) {
			t.Errorf("expert %d is %+v, want %+v", i, got, want[i])
		}
	}

	base := recipe.Ref{Model: recipe.Source{Path: "org/base", Revision: "v1"}}
	if c.Base != base || c.Gate != "hidden_avg" || c.DType != safetensors.F16 || c.PerToken != 1 ||
		c.Architecture != "qwen3" || !c.NeedsStates() {
		t.Errorf("%+v", c)
	}
	if refs := c.References(); !reflect.DeepEqual(refs, []recipe.Ref{base, a, b, shared}) {
		t.Errorf("the recipe mentions %v", refs)
	}

	c, err = Parse("r.yaml", []byte("base_model: m\ngate_mode: random\n"+
		"experts: [{source_model: a}, {source_model: b}]"))
	if err != nil || c.PerToken != 2 || c.DType != 0 || c.Architecture != "" || c.NeedsStates() {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestGatesOfStates: which gates want the base to run.
func TestGatesOfStates(t *testing.T) {
	for mode, want := range map[string]bool{
		"hidden": true, "hidden_last": true, "hidden_avg": true, "cheap_embed": false, "random": false,
		"uniform_random": false,
	} {
		if c := (&Config{Gate: mode}); c.NeedsStates() != want {
			t.Errorf("%s: %t", mode, c.NeedsStates())
		}
	}
}

// TestFaultsOfConfigs: with their places, and only where they matter: gates that are drawn need no prompts.
func TestFaultsOfConfigs(t *testing.T) {
	const two = "experts: [{source_model: a}, {source_model: b}]\n"
	const head = "base_model: m\ngate_mode: random\n"
	for _, c := range []struct{ text, want string }{
		{head, `r.yaml:1:1: a recipe for a mixture needs the key "experts"`},
		{head + two + "---\n" + head + two, "r.yaml:1:1: a recipe for a mixture is one document, not 2"},
		{
			head + two + "experts_per_token: 3",
			"r.yaml:3:10: 2 experts, where every token visits 3 (experts_per_token)",
		},
		{head + two + "experts_per_token: 0", "r.yaml:4:20: experts_per_token must be from 1 to 65536"},
		{head + two + "architecture: qwe", `architecture must be one of mixtral, qwen, qwen3, not "qwe"`},
		{head + two + "architecture: m", `not "m"`},
		{head + two + "architecture: ''", `not ""`},
		{head + two + "architecture: deepseek", "only run with Python code of their own"},
		{head + two + "dtype: int4", `dtype must be bfloat16, float16, float32 or float64, not "int4"`},
		{
			head + "experts: [{source_model: a, noise_scale: -1}, {source_model: b}]",
			"noise_scale must not be negative",
		},
		{head + "experts: [{source: a}, {source_model: b}]", `unknown key "source" in an expert`},
		{
			"base_model: m\n" + two,
			"r.yaml:2:12: an expert needs positive_prompts, from which gate_mode hidden makes its gate",
		},
		{
			"base_model: m\nexperts: [{source_model: a, positive_prompts: [x]}, " +
				"{source_model: b, positive_prompts: [x]}]",
			"all experts have the same prompts: no router could tell them apart",
		},
		{head + two + "shared_experts: {source_model: a}", "experts must be a list"},
		{
			head + "experts: [{source_model: a, positive_prompts: [[x]]}, {source_model: b}]",
			"a prompt must be text, not a list",
		},
	} {
		if _, err := Parse("r.yaml", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
	}

	for _, text := range []string{
		head + two,
		head + two + "architecture: QWEN\n",
		strings.Replace(head+two, "random", "uniform_random", 1),
		// one expert differs in what it is not for
		"base_model: m\nexperts: [{source_model: a, positive_prompts: [x]}, " +
			"{source_model: b, positive_prompts: [x], negative_prompts: [y]}]",
		// a single one has nobody to be like
		"base_model: m\nexperts_per_token: 1\nexperts: [{source_model: a, positive_prompts: [x]}]",
	} {
		if _, err := Parse("r.yaml", []byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
