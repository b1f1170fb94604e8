package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// TestMessages: the texts of faults, with place and advice.
func TestMessages(t *testing.T) {
	g := readGolden(t)
	for name, c := range map[string]struct{ recipe, want string }{
		"nothing": {"", "recipe.yaml:1:1: the file holds no recipe"},
		"all at once": {`merge_method: linear
paramters: {normalize: true}
dtype: float8
models:
- {modle: m/a}
- {model: a@x@y, parameters: {weight: [1, {a: b}]}}
`, `recipe.yaml:2:1: unknown key "paramters" in a recipe; did you mean "parameters"?
recipe.yaml:3:8: dtype must be bfloat16, float16, float32 or float64, not "float8"
recipe.yaml:5:4: unknown key "modle" in a model; did you mean "model"?
recipe.yaml:6:11: model: "a@x@y" has more than one "@"; write {model: {path: …, revision: …}} for such a path
recipe.yaml:6:44: weight: a gradient holds numbers, not a map`},
		"method": {
			"merge_method: ties2\nmodels: [{model: m/a}]\n",
			`recipe.yaml:1:15: unknown merge_method "ties2"; did you mean "ties"?`,
		},
		"parameter": {
			"merge_method: ties\nbase_model: m/base\nmodels:\n- {model: m/a, parameters: {weight: 1, densty: 0.1}}\n",
			`recipe.yaml:4:40: ties has no parameter "densty"; did you mean "density"?`,
		},
		"type": {
			"merge_method: linear\nmodels:\n- {model: m/a, parameters: {weight: heavy}}\nparameters: " +
				"{normalize: perhaps}\n",
			"recipe.yaml:3:37: weight must be a number, not \"heavy\"\n" +
				"recipe.yaml:4:25: normalize must be true or false, not \"perhaps\"",
		},
		"required": {
			"merge_method: linear\nmodels:\n- {model: m/a, parameters: {weight: 1}}\n- {model: m/b}\n",
			"recipe.yaml:4:4: linear needs a weight for m/b",
		},
		"shared": {
			"merge_method: slerp\nbase_model: m/base\nmodels: [{model: m/a}, {model: m/base}]\n",
			"recipe.yaml:1:15: slerp needs the parameter t",
		},
		"base": {
			"merge_method: ties\nmodels: [{model: m/a, parameters: {weight: 1}}]\n",
			"recipe.yaml:1:15: ties needs a base_model",
		},
		"count": {
			"merge_method: slerp\nbase_model: m/base\nmodels: [{model: m/a}, {model: m/b}, {model: " +
				"m/base}]\nparameters: {t: 1}\n",
			"recipe.yaml:3:11: slerp takes exactly 2 models, the base included, not 3",
		},
		"twice": {
			"merge_method: linear\nmodels:\n- {model: m/a}\n- {model: m/a}\nparameters: {weight: 1}\n",
			"recipe.yaml:4:4: m/a is given twice",
		},
		"exactly": {"merge_method: linear\n", "recipe.yaml:1:1: a recipe needs exactly one of models, " +
			"slices and modules"},
		"range": {
			"merge_method: passthrough\nslices:\n- sources: [{model: m/a, layer_range: [0, 5]}]\n",
			"recipe.yaml:3:14: layers [0, 5) of m/a: it has 3",
		},
		"empty": {
			"merge_method: passthrough\nslices:\n- sources: [{model: m/a, layer_range: [2, 2]}]\n",
			"recipe.yaml:3:39: layer_range [2, 2) holds no layer; the second number is the first layer left out",
		},
		"lengths": {"merge_method: linear\nslices:\n- sources:\n  - {model: m/a, layer_range: [0, 2]}\n  - " +
			"{model: m/b, layer_range: [0, 1]}\n", "recipe.yaml:5:6: m/b gives 1 layers to the slice, m/a 2; all " +
			"sources of a slice must have the same number"},
		"layers": {
			"merge_method: linear\nmodels:\n- {model: m/a}\n- {model: m/deep}\nparameters: {weight: 1}\n",
			"recipe.yaml:4:4: m/deep has 5 layers, m/a has 3; name the layers to use in slices",
		},
		"module": {
			"merge_method: passthrough\nmodules: {vision: {models: [{model: m/a}]}}\n",
			`recipe.yaml:2:11: the model has no module "vision"; known: default`,
		},
		"search": {
			"merge_method: linear\nmodels: [{model: m/a, parameters: {weight: {search: [0, 1]}}}]\n",
			`recipe.yaml:2:45: weight is to be searched for: a merge needs a number here`,
		},
		"tokenizer": {"merge_method: passthrough\nmodels: [{model: m/a}]\ntokenizer_source: base\ntokenizer: " +
			"{source: base}\n", "recipe.yaml:3:19: tokenizer_source and tokenizer exclude each other"},
		"force": {
			"merge_method: passthrough\nmodels: [{model: m/a}]\ntokenizer: {tokens: {<s>: {force: true}}}\n",
			`recipe.yaml:3:22: force: true needs a source to take the row of "<s>" from`,
		},
		"template": {
			"merge_method: passthrough\nmodels: [{model: m/a}]\nchat_template: chatlm\n",
			`recipe.yaml:3:16: chat_template must be one of auto, alpaca, chatml, exaone, llama3, mistral, not "chatlm"`,
		},
		"integer": {
			"merge_method: karcher\nmodels: [{model: m/a}, {model: m/b}]\nparameters: {max_iter: [1, 2]}\n",
			"recipe.yaml:3:25: max_iter is a whole number; a gradient of it would not be",
		},
		"names": {
			"merge_method: linear\nmodels: [{model: m/a}, {model: g/a}]\nparameters: {weight: 1}\n",
			`g/a: different architectures: "gpt2", where m/a is "llama", and the names of their tensors differ`,
		},
		"architectures": {
			"merge_method: linear\nslices: [{sources: [{model: m/a, layer_range: [0, 2]}, {model: g/a, layer_range: " +
				"[0, 2]}]}]\nparameters: {weight: 1}\n",
			`g/a: different architectures: "gpt2", where m/a is "llama", and the names of their tensors differ`,
		},
		"expert": {
			"merge_method: mediate\n" +
				"base_model: m/base\nmodels: [{model: m/a, name: x}, {model: m/b, name: x}]\nparameters: {select: " +
				"{sigmoid: 1}, router: {prompts: {y: f}}}\n",
			"recipe.yaml:3:34: two experts go by the name \"x\"; give them names\n" +
				"recipe.yaml:4:23: unknown rule \"sigmoid\" in select; did you mean \"sigma\"?\n" +
				"recipe.yaml:4:55: no expert has the name \"y\"; did you mean \"x\"?",
		},
	} {
		_, err := resolveText(t, g, c.recipe)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s:\n%v\nwant\n%s", name, err, c.want)
		}
	}
}

func TestWarningsNameWhatHasNoEffect(t *testing.T) {
	plan, err := resolveText(t, readGolden(t), "merge_method: linear\nmodels:\n- {model: m/a, parameters: {weight: "+
		"1, normalize: true, density: 0.5}}\n"+
		"parameters: {int8_mask: true}\n")
	if err != nil {
		t.Fatal(err)
	}

	want := []string{
		"line 4: int8_mask has no effect with linear",
		"line 3: normalize has no effect under a model; it belongs under the parameters of the recipe, a " +
			"module or a slice",
		"line 3: density has no effect with linear",
	}

	if !slices.Equal(plan.Warnings, want) {
		t.Errorf("%q", plan.Warnings)
	}
}

// drawnSetting is a setting in a form that a brute-force evaluator reads.
type drawnSetting []struct {
	filter string
	values []float64
	list   bool
}

// drawSetting draws a setting and writes it as YAML.
func drawSetting(t *rapid.T) (drawnSetting, string) {
	var out drawnSetting
	var parts []string
	rules := rapid.IntRange(0, 3).Draw(t, "rules")
	for i := range max(rules, 1) {
		var x struct {
			filter string
			values []float64
			list   bool
		}

		if rules > 0 {
			x.filter = rapid.SampledFrom([]string{"", "*", "mlp", "self_attn", "layers.1", "norm", "nothing"}).Draw(t,
				"filter")
		}

		x.list = rapid.Bool().Draw(t, "list")
		n := 1
		if x.list {
			n = rapid.IntRange(0, 5).Draw(t, "n")
		}

		var texts []string
		for range n {
			v := float64(rapid.IntRange(-1000, 1000).Draw(t, "v")) / 64
			x.values = append(x.values, v)
			texts = append(texts, fmt.Sprint(v))
		}

		value := strings.Join(texts, ", ")
		if x.list {
			value = "[" + value + "]"
		}

		if rules > 0 {
			filter := ""
			if x.filter != "" {
				filter = fmt.Sprintf("filter: %q, ", x.filter)
			}
			value = "{" + filter + "value: " + value + "}"
		}

		out, parts = append(out, x), append(parts, value)
		_ = i
	}

	if rules > 0 {
		return out, "[" + strings.Join(parts, ", ") + "]"
	}

	return out, parts[0]
}

// brute evaluates a setting the slow way: the gradient's segment is looked for instead of computed.
func (s drawnSetting) brute(name string, t float64) (float64, bool) {
	for _, x := range s {
		if x.filter != "" && x.filter != "*" && !strings.Contains(name, x.filter) {
			continue
		}

		m := len(x.values)
		switch {
		case m == 0:
			return 0, false
		case m == 1:
			return x.values[0], true
		}

		for i := 0; i+1 < m; i++ {
			low, high := float64(i)/float64(m-1), float64(i+1)/float64(m-1)
			if t <= high || i+2 == m {
				f := (t - low) / (high - low)
				return x.values[i]*(1-f) + x.values[i+1]*f, true
			}
		}
	}

	return 0, false
}

// TestPrecedenceAgainstBruteForce: on every tensor the most specific level that has a value wins, and a gradient is the
// broken line through its points.
func TestPrecedenceAgainstBruteForce(t *testing.T) {
	g := readGolden(t)
	rapid.Check(t, func(rt *rapid.T) {
		source, sourceText := drawSetting(rt)
		slice, sliceText := drawSetting(rt)
		module, moduleText := drawSetting(rt)
		root, rootText := drawSetting(rt)
		length, first := rapid.IntRange(1, 3).Draw(rt, "length"), 0
		first = rapid.IntRange(0, 3-length).Draw(rt, "first")
		recipe := fmt.Sprintf("merge_method: linear\nmodules:\n  default:\n    slices:\n    - sources:\n      - "+
			"{model: m/a, layer_range: [%d, %d], parameters: {weight: %s}}\n"+
			"      parameters: {weight: %s}\n"+
			"    parameters: {weight: %s}\n"+
			"parameters: {weight: %s}\n",
			first, first+length, sourceText, sliceText, moduleText, rootText)

		plan, err := resolveText(t, g, recipe)
		missing := false
		if err != nil && !errors.Is(err, strictyaml.ErrMissingKey) {
			rt.Fatalf("%v\n%s", err, recipe)
		}

		check := func(name string, pos float64) (float64, bool) {
			for _, s := range []drawnSetting{source, slice, module, root} {
				if v, ok := s.brute(name, pos); ok {
					return v, true
				}
			}
			missing = true
			return 0, false
		}

		if err != nil {
			for _, name := range []string{"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} {
				check(name, 0)
			}

			for i := range length {
				for _, rest := range []string{
					"self_attn.q_proj.weight", "mlp.up_proj.weight",
					"input_layernorm.weight",
				} {
					check(layerName("model.layers", first+i, rest), 0)
				}
			}

			if !missing {
				rt.Fatalf("refused, though every tensor has a weight: %v\n%s", err, recipe)
			}

			return
		}

		for _, x := range plan.Tensors {
			pos := 0.0
			if x.Block >= 0 {
				pos = 1
				if length > 1 {
					pos = float64(x.Block) / float64(length-1)
				}
			}

			want, ok := check(x.Sources[0].Info.Name, pos)
			got := x.Sources[0].Params.Number("weight")
			// The segment is found in another way, so the two may round differently.
			if !ok || math.Abs(got-want) > 1e-12*(1+math.Abs(want)) {
				rt.Fatalf("%s: %v, want %v %v\n%s", x.Name, got, want, ok, recipe)
			}
		}
	})
}

// TestFaultsOfAllStages: with a table of methods, what is wrong with parameters comes with the other faults of
// the file, and so do the layers that a model does not have.
func TestFaultsOfAllStages(t *testing.T) {
	g := readGolden(t)
	for _, c := range []struct{ recipe, want string }{
		{
			"merge_method: linear\nparamters: {normalize: false}\nmodels:\n- {model: m/a, parameters: {weight: " +
				"heavy}}\n- {model: m/b, parameters: {weigth: 1}}\n",
			"r:2:1: unknown key \"paramters\" in a recipe; did you mean \"parameters\"?\n" +
				"r:4:37: weight must be a number, not \"heavy\"\n" +
				"r:5:29: linear has no parameter \"weigth\"; did you mean \"weight\"?",
		},
		{
			"merge_method: teis\nmodels: [{model: m/a}]\n",
			"r:1:15: unknown merge_method \"teis\"; did you mean \"ties\"?",
		},
		{
			"merge_method: passthrough\n" +
				"slices:\n- sources: [{model: m/a, layer_range: [0, 9]}]\n- sources: [{model: m/a, layer_range: [3, " +
				"2]}]\n- sources: [{model: m/a, layer_range: [1, 3]}]\n",
			"r:3:14: layers [0, 9) of m/a: it has 3\n" +
				"r:4:39: layer_range [3, 2) holds no layer; the second number is the first layer left out",
		},
		{
			"merge_method: linear\nmodules:\n  default:\n    parameters: {normalise: true}\n    slices:\n    - " +
				"sources: [{model: m/a, layer_range: [0, 1], parameters: {weight: a}}]\n" +
				"      parameters: {weight: b}\n",
			"r:4:18: linear has no parameter \"normalise\"; did you mean \"normalize\"?\n" +
				"r:6:72: weight must be a number, not \"a\"\n" +
				"r:7:28: weight must be a number, not \"b\"",
		},
	} {
		docs, err := Parse("r", []byte(c.recipe), g.methods(t)...)
		err = Ranges(docs, err, func(r recipe.Ref) int {
			for _, in := range g.inputs(t, docs[0]) {
				if in.Ref == r {
					return Layers(in.Tensors)
				}
			}
			return 0
		})
		if err == nil || err.Error() != c.want {
			t.Errorf("%v\nwant\n%s", err, c.want)
		}
	}
}

// TestBlame: the fault of a value is placed at the setting that holds it, else at one of its name, else at the method.
func TestBlame(t *testing.T) {
	plan, err := resolveText(t, readGolden(t), "merge_method: ties\nbase_model: m/base\nmodels:\n- {model: m/a, "+
		"parameters: {weight: 1, density: 0.5}}\n"+
		"- {model: m/b, parameters: {weight: 1, density: [0.5, -1]}}\n")
	if err != nil {
		t.Fatal(err)
	}

	for want, c := range map[string]struct {
		name  string
		value float64
	}{
		"recipe.yaml:5:55: x": {"density", -1}, "recipe.yaml:4:49: x": {"density", -0.3},
		"recipe.yaml:1:15: x": {"epsilon", 1},
	} {
		fault := errors.New("x")
		if err := plan.Blame(fault, c.name, c.value); err.Error() != want || !errors.Is(err, fault) {
			t.Errorf("%s %g: %v", c.name, c.value, err)
		}
	}
}

// TestWidths: layers of models that no one configuration describes do not stack.
func TestWidths(t *testing.T) {
	g := readGolden(t)
	docs, err := Parse("r", []byte("merge_method: passthrough\n"+
		"slices:\n- sources: [{model: m/a, layer_range: [0, 2]}]\n- sources: [{model: m/b, layer_range: [1, 3]}]\n"))
	if err != nil {
		t.Fatal(err)
	}

	inputs := g.inputs(t, docs[0])
	for _, layers := range []string{"0.", "012"} {
		for i := range inputs[1].Tensors {
			in := &inputs[1].Tensors[i]
			if in.Shape = slices.Clone(in.Shape); strings.Contains(in.Name, ".mlp.up_proj") &&
				strings.Contains(layers, strings.Split(in.Name, ".")[2]) {
				in.Shape[0] = 20
			}
		}

		_, err = Resolve(docs[0], inputs, g.methods(t), Options{})
		if layers == "0." { // shapes that differ between the layers of one model are its own affair
			if err != nil {
				t.Error(err)
			}
			continue
		}

		if want := "r:4:14: models of different width: model.layers.*.mlp.up_proj.weight has shape [20 8] in m/b " +
			"and [12 8] in m/a"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestModelWithoutConfiguration: it is taken to be like the one that has a configuration, whichever comes first.
func TestModelWithoutConfiguration(t *testing.T) {
	g := readGolden(t)
	docs, err := Parse("r", []byte("merge_method: linear\nmodels: [{model: m/a}, {model: m/b}]\nparameters: "+
		"{weight: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}

	for lacks := range 2 {
		inputs := g.inputs(t, docs[0])
		inputs[lacks].Config = nil
		plan, err := Resolve(docs[0], inputs, g.methods(t), Options{})
		if err != nil {
			t.Fatal(err)
		}

		if plan.Donor != 1-lacks || len(plan.Warnings) != 1 ||
			!strings.Contains(plan.Warnings[0], "has no config.json") || inputs[lacks].Config != nil {
			t.Errorf("donor %d, %q", plan.Donor, plan.Warnings)
		}
	}
}

// TestWeightsOfZero: a merge that leaves nothing of its models says so.
func TestWeightsOfZero(t *testing.T) {
	for weight, want := range map[string]string{"0": "all weights are 0: the output is the base m/base", "[0, 1]": ""} {
		plan, err := resolveText(t, readGolden(t),
			"merge_method: ties\nbase_model: m/base\nmodels: [{model: m/a}, {model: m/b}]\nparameters: {weight: "+
				weight+"}\n")
		if err != nil {
			t.Fatal(err)
		}

		if got := strings.Join(plan.Warnings, "\n"); got != want {
			t.Errorf("%s: %q", weight, got)
		}
	}
}

func TestMissingTensors(t *testing.T) {
	g := readGolden(t)
	docs, err := Parse("r.yaml", []byte("merge_method: linear\nmodels: [{model: m/a}, {model: m/b}]\nparameters: "+
		"{weight: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}

	inputs := g.inputs(t, docs[0])
	inputs[1].Tensors = slices.DeleteFunc(inputs[1].Tensors, func(i safetensors.Info) bool {
		return i.Name == "model.norm.weight" || i.Name == "model.layers.1.mlp.up_proj.weight"
	})
	_, err = Resolve(docs[0], inputs, g.methods(t), Options{})
	var f *Faults
	if !errors.As(err, &f) || len(f.List) != 2 || !errors.Is(err, ErrMissing) {
		t.Fatalf("%v", err)
	}

	if want := "model.layers.1.mlp.up_proj.weight: m/b: tensor is missing: in m/a it is there\n" +
		"model.norm.weight: m/b: tensor is missing: in m/a it is there"; err.Error() != want {
		t.Errorf("%v", err)
	}

	for missing, want := range map[Missing]int{MissingMerge: 30, MissingCopy: 30, MissingSkip: 28} {
		plan, err := Resolve(docs[0], inputs, g.methods(t), Options{Missing: missing})
		if err != nil || len(plan.Tensors) != want || len(plan.Warnings) != 2 {
			t.Errorf("%v: %v, %d tensors", missing, err, len(plan.Tensors))
		}
	}
}

func TestMediateRecipe(t *testing.T) {
	text := `merge_method: mediate
base_model: m/base
models: [{model: m/a, name: sums}, {model: m/b}]
parameters:
  granularity: block
  metric: mass
  density: 0.3
  select: {budget: 1.5GiB}
  average: {method: ties, density: [0.1, 0.2]}
  dense: {expert: b}
  keep: {lowrank: 16}
  route_embeddings: yes
  router: {features: embed_mean, classifier: logistic, shrinkage: 0.2, prompts: {sums: sums.jsonl, b: b.jsonl}}
`

	plan, err := resolveText(t, readGolden(t), text)
	if err != nil {
		t.Fatal(err)
	}

	m := plan.Document.Mediate
	if m.Granularity != "block" || m.Metric != "mass" || m.Density != 0.3 || m.Select.Bytes != 3<<29 ||
		m.Average.Method != "ties" ||
		len(m.Average.Parameters) != 1 || m.Dense.Expert != "b" ||
		m.Keep != (recipe.Keep{Kind: "lowrank", Value: 16}) ||
		!m.RouteEmbeddings ||
		m.Router.Classifier != "logistic" || len(m.Router.Prompts) != 2 || plan.Document.Models[1].Name != "b" {
		t.Errorf("%+v", m)
	}

	plan, err = resolveText(t, readGolden(t),
		"merge_method: mediate\nbase_model: m/base\nmodels: [{model: m/a}, {model: m/b}]\n")
	if err != nil {
		t.Fatal(err)
	}

	d := plan.Document.Mediate
	if d.Granularity != "layer" || d.Metric != "disagree" || d.Density != 0.2 || d.Select.Rule != "sigma" ||
		d.Select.Value != 0.5 || d.Average.Method != "linear" ||
		d.Dense.Kind != "mean" || d.Keep.Kind != "magnitude" || d.Keep.Value != 0.1 || d.RouteEmbeddings ||
		d.Router.Classifier != "nearest" || d.Router.Features != "auto" {
		t.Errorf("%+v", d)
	}
}

// FuzzParse: whatever the text, reading and resolving a recipe ends with a plan or an error, never a panic.
func FuzzParse(f *testing.F) {
	g := readGolden(f)
	for _, c := range g.Cases {
		f.Add(c.Recipe)
	}

	f.Add("merge_method: mediate\n" +
		"base_model: m/base\nmodels: [{model: m/a}]\nparameters: {select: {budget: 1GB}, keep: {energy: 0.9}}\n")
	f.Add("merge_method: linear\nmodels: [{model: m/a}]\ntokenizer: {source: union, tokens: {a: {source: {kind: " +
		"zero}}}, pad_to_multiple_of: 8}\n" +
		"chat_template: auto\n")
	methods := g.methods(f)
	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()

		docs, err := Parse("x", []byte(text))
		if docs == nil && err == nil {
			t.Fatal("neither documents nor an error")
		}

		if err != nil { // what could be read of the documents is for the faults alone
			return
		}

		for _, d := range docs {
			var inputs []Input
			for _, ref := range d.References() {
				in := Input{Ref: ref}
				if m, ok := g.Models[ref.Model.Path]; ok {
					in.Config = m.Config
					for name, shape := range m.Tensors {
						in.Tensors = append(in.Tensors,
							safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape})
					}
				}

				inputs = append(inputs, in)
			}

			if plan, err := Resolve(d, inputs, methods, Options{}); err == nil {
				plan.Summary()
			} else if err.Error() == "" {
				t.Fatal("an error without words")
			}
		}
	})
}

// TestRepeatedLayers: a stack may take layers twice, and is told so once for each pair of slices.
func TestRepeatedLayers(t *testing.T) {
	x := &resolver{plan: &Plan{}}
	a, b := recipe.Ref{Model: recipe.Source{Path: "a"}}, recipe.Ref{Model: recipe.Source{Path: "b"}}
	x.repeated([]recipe.Slice{
		{Sources: []recipe.LayerRange{{Ref: a, First: 0, End: 3}}},
		{Sources: []recipe.LayerRange{{Ref: b, First: 1, End: 4}}},
		{Sources: []recipe.LayerRange{{Ref: a, First: 2, End: 5}}},
		{Sources: []recipe.LayerRange{{Ref: a, First: 5, End: 6}}},
	})

	if want := []string{"slices 1 and 3 both take layers [2, 3) of a: the output has them twice"}; !slices.Equal(
		x.plan.Warnings, want) {
		t.Errorf("%q", x.plan.Warnings)
	}
}
