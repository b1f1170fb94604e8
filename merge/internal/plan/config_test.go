package plan

import (
	"encoding/json"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// outputConfig resolves a recipe and gives the output's configuration as values.
func outputConfig(t *testing.T, text, donor string) (map[string]any, string) {
	t.Helper()
	plan, err := resolveText(t, readGolden(t), text)
	if err != nil {
		t.Fatal(err)
	}

	out, err := plan.OutputConfig([]byte(donor))
	if err != nil {
		t.Fatal(err)
	}

	var values map[string]any
	if err := json.Unmarshal(out, &values); err != nil {
		t.Fatal(err)
	}

	return values, string(out)
}

func TestOutputConfigKeepsTheDonorsWords(t *testing.T) {
	_, got := outputConfig(t, "merge_method: passthrough\nmodels: [{model: m/a}]\n",
		`{"b":1.0,"model_type":"llama","a":"<x>","num_hidden_layers":3,"eps":1e-05}`)
	want := "{\n  \"b\": 1.0,\n  \"model_type\": \"llama\",\n  \"a\": \"<x>\",\n  \"num_hidden_layers\": 3,\n  " +
		"\"eps\": 1e-05,\n  \"torch_dtype\": \"float32\"\n}\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestOutputConfigOfStackedLayers(t *testing.T) {
	g := readGolden(t)
	docs, err := Parse("r", []byte(`merge_method: passthrough
dtype: bfloat16
slices:
- sources: [{model: m/a, layer_range: [0, 2]}]
- sources: [{model: m/b, layer_range: [1, 3]}]
- sources: [{model: m/a, layer_range: [2, 3]}]
`))
	if err != nil {
		t.Fatal(err)
	}

	inputs := g.inputs(t, docs[0])
	inputs[0].Config = []byte(
		`{"model_type":"llama","num_hidden_layers":3,"layer_types":["a0","a1","a2"],"mlp_only_layers":[1],"torch_dtype":"float16"}`)
	inputs[1].Config = []byte(
		`{"model_type":"llama","num_hidden_layers":3,"layer_types":["b0","b1","b2"],"mlp_only_layers":[2]}`)
	plan, err := Resolve(docs[0], inputs, g.methods(t), Options{})
	if err != nil {
		t.Fatal(err)
	}

	out, err := plan.OutputConfig(inputs[0].Config)
	want := `{
  "model_type": "llama",
  "num_hidden_layers": 5,
  "layer_types": [
    "a0",
    "a1",
    "b1",
    "b2",
    "a2"
  ],
  "mlp_only_layers": [
    1,
    3
  ],
  "torch_dtype": "bfloat16"
}
`
	if err != nil || string(out) != want {
		t.Errorf("%v\n%s", err, out)
	}

	if plan.Blocks != 5 || plan.Summary().DTypes["BF16"] != len(plan.Tensors) {
		t.Errorf("%+v", plan.Summary())
	}
}

func TestOutputConfigUntiesAWrittenHead(t *testing.T) {
	got, _ := outputConfig(t,
		"merge_method: linear\nmodels: [{model: m/tied}, {model: m/a}]\nparameters: {weight: 1}\n",
		`{"model_type":"llama","num_hidden_layers":3,"tie_word_embeddings":true}`)
	if got["tie_word_embeddings"] != false {
		t.Errorf("%v", got)
	}

	got, _ = outputConfig(t, "merge_method: passthrough\nmodels: [{model: m/tied}]\n",
		`{"model_type":"llama","num_hidden_layers":3,"tie_word_embeddings":true}`)
	if got["tie_word_embeddings"] != true {
		t.Errorf("%v", got)
	}
}

// TestOutputConfigTiesALostHead: without a head in the output its configuration must not ask for one.
func TestOutputConfigTiesALostHead(t *testing.T) {
	const untied = `{"model_type":"llama","num_hidden_layers":3,"tie_word_embeddings":false}`
	for text, warned := range map[string]int{
		"base_model: m/a\nslices: [{sources: [{model: m/tied, layer_range: [0, 3]}]}]\n": 0,
		"slices:\n- sources: [{model: m/a, layer_range: [0, 2]}]\n" +
			"- sources: [{model: m/tied, layer_range: [2, 3]}]\n": 1,
	} {
		text = "merge_method: passthrough\n" + text
		if got, _ := outputConfig(t, text, untied); got["tie_word_embeddings"] != true {
			t.Errorf("%s\n%v", text, got)
		}
		if plan, err := resolveText(t, readGolden(t), text); err != nil || len(plan.Warnings) != warned {
			t.Errorf("%s\n%v %q", text, err, plan.Warnings)
		}
	}

	if got, _ := outputConfig(t, "merge_method: passthrough\nmodels: [{model: m/a}]\n",
		untied); got["tie_word_embeddings"] != false {
		t.Errorf("%v", got)
	}
}

func TestSetVocabulary(t *testing.T) {
	plan, err := resolveText(t, readGolden(t), "merge_method: linear\nmodels: [{model: m/a}, {model: "+
		"m/b}]\nparameters: {weight: 1}\ntokenizer_source: union\n")
	if err != nil {
		t.Fatal(err)
	}

	plan.SetVocabulary(24)
	n := 0
	for _, x := range plan.Tensors {
		if x.Role == arch.Embed || x.Role == arch.Head {
			n++
			if x.Shape[0] != 24 || x.VocabAxis != 0 {
				t.Errorf("%s: %v", x.Name, x.Shape)
			}
		} else if x.VocabAxis != -1 {
			t.Errorf("%s has a vocabulary axis", x.Name)
		}
	}

	if n != 2 {
		t.Errorf("%d tensors over the vocabulary", n)
	}

	text, err := plan.OutputConfig([]byte(`{"vocab_size":16}`))
	var got struct {
		Vocab int `json:"vocab_size"`
	}
	if err != nil || json.Unmarshal(text, &got) != nil || got.Vocab != 24 {
		t.Errorf("%v %s", err, text)
	}
}

func TestSheetOfAnAverage(t *testing.T) {
	g := readGolden(t)
	plan, err := resolveText(t, g, "merge_method: mediate\n"+
		"base_model: m/base\nmodels: [{model: m/a}, {model: m/b}]\nparameters: {average: {method: ties, weight: "+
		"[{filter: mlp, value: [0, 1]}, {value: 3}], density: 0.5}}\n")
	if err != nil {
		t.Fatal(err)
	}

	sheet, err := plan.Sheet(plan.Document.Mediate.Average, g.methods(t))
	if err != nil {
		t.Fatal(err)
	}

	for _, x := range plan.Tensors {
		v, want := sheet.At(&x), 3.0
		if _, _, rest := splitLayer(x.Name); len(rest) > 3 && rest[:3] == "mlp" {
			want = float64(x.Block) / 2
		}
		if v.Number("weight") != want || v.Number("density") != 0.5 || v.Number("lambda") != 1 {
			t.Errorf("%s: %v, want %v", x.Name, v, want)
		}
	}

	if _, err := plan.Sheet(recipe.StaticMerge{Method: "tise"}, g.methods(t)); err == nil {
		t.Error("an unknown method")
	}
}
