package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// twoStacks is a model of an architecture without a table: a vision tower of two layers, a language model of three.
func twoStacks(path string) Input {
	in := Input{
		Ref:    recipe.Ref{Model: recipe.Source{Path: path}},
		Config: []byte(`{"model_type":"seer","text_config":{"num_hidden_layers":3,"vocab_size":8}}`),
	}
	add := func(name string, shape ...int64) {
		in.Tensors = append(in.Tensors, safetensors.Info{Name: name, DType: safetensors.BF16, Shape: shape, Size: 2})
	}
	add("model.embed_tokens.weight", 8, 4)
	for i := range 3 {
		add(fmt.Sprintf("model.layers.%d.w", i), 4, 4)
	}
	for i := range 2 {
		add(fmt.Sprintf("visual.blocks.%d.w", i), 4, 4)
	}

	add("visual.patch.weight", 4, 4)
	add("lm_head.weight", 8, 4)
	return in
}

// resolveStacks resolves a recipe over models of two stacks.
func resolveStacks(t *testing.T, text string) (*Plan, error) {
	t.Helper()
	docs, err := Parse("r.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	var inputs []Input
	for _, ref := range docs[0].References() {
		inputs = append(inputs, twoStacks(ref.Model.Path))
	}

	return Resolve(docs[0], inputs, readGolden(t).methods(t), Options{})
}

func TestModelsOfSeveralStacks(t *testing.T) {
	plan, err := resolveStacks(t, "merge_method: linear\nmodels: [{model: a, parameters: {weight: [0, 1]}}, {model: "+
		"b}]\nparameters: {weight: 1}\n")
	if err != nil {
		t.Fatal(err)
	}

	want := map[string]float64{
		"model.layers.0.w": 0, "model.layers.1.w": 0.5, "model.layers.2.w": 1, "visual.blocks.0.w": 0,
		"visual.blocks.1.w":         1,
		"model.embed_tokens.weight": 0, "visual.patch.weight": 0, "lm_head.weight": 0,
	}

	if len(plan.Tensors) != len(want) || plan.Blocks != 3 {
		t.Errorf("%d tensors, %d blocks", len(plan.Tensors), plan.Blocks)
	}

	for _, x := range plan.Tensors {
		if w, ok := want[x.Name]; !ok || x.Sources[0].Params.Number("weight") != w {
			t.Errorf("%s: %v", x.Name, x.Sources[0].Params)
		}

		if vocabulary := strings.Contains(x.Name, "embed") ||
			strings.Contains(x.Name, "head"); (x.VocabAxis == 0) != vocabulary {
			t.Errorf("%s: vocabulary axis %d", x.Name, x.VocabAxis)
		}
	}
}

func TestModulesThatARecipeLeavesOutAreCopied(t *testing.T) {
	plan, err := resolveStacks(t, `
merge_method: linear
parameters: {weight: 1}
modules:
  model.layers:
    slices:
    - sources: [{model: a, layer_range: [0, 2]}, {model: b, layer_range: [1, 3]}]
`)
	if err != nil {
		t.Fatal(err)
	}

	merged := 0
	for _, x := range plan.Tensors {
		if !x.Copy {
			merged++
			if x.Sources[1].Info.Name != fmt.Sprintf("model.layers.%d.w", x.Block+1) {
				t.Errorf("%s of %s", x.Name, x.Sources[1].Info.Name)
			}
		} else if len(x.Sources) != 1 || plan.Models[x.Sources[0].Model].String() != "a" {
			t.Errorf("%s: %v", x.Name, x.Sources)
		}
	}

	if merged != 2 || len(plan.Tensors) != 7 {
		t.Errorf("%d of %d tensors are merged", merged, len(plan.Tensors))
	}
	if !slices.Contains(plan.Warnings, `module "visual.blocks" is not in the recipe; its tensors are copied from a`) {
		t.Errorf("%q", plan.Warnings)
	}

	text, err := plan.OutputConfig(twoStacks("a").Config)
	if want := "{\n  \"model_type\": \"seer\",\n  \"text_config\": {\n    \"num_hidden_layers\": 2,\n    " +
		"\"vocab_size\": 8\n  },\n  \"torch_dtype\": \"bfloat16\"\n}\n"; err != nil || string(text) != want {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestSlicesNeedOneStack(t *testing.T) {
	_, err := resolveStacks(t, "merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [0, 2]}]}]\n")
	if want := `r.yaml:2:11: the model has several stacks of layers; write modules, one of ["model.layers" "visual.blocks" "default"] each`; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
