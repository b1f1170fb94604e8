package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// golden is testdata/resolution.json: what mergekit makes of our recipes. testdata/README.md says how it was made.
type golden struct {
	Models map[string]struct {
		Config  json.RawMessage    `json:"config"`
		Tensors map[string][]int64 `json:"tensors"`
	} `json:"models"`
	Methods []struct {
		Name   string `json:"name"`
		Params []struct {
			Name     string `json:"name"`
			Type     string `json:"type"`
			Scope    string `json:"scope"`
			Default  any    `json:"default"`
			Required bool   `json:"required"`
		} `json:"params"`
		Base      string `json:"base"`
		Min       int    `json:"min"`
		Max       int    `json:"max"`
		MinModels int    `json:"min_models"`
		MaxModels int    `json:"max_models"`
	} `json:"methods"`
	Cases []goldenCase `json:"cases"`
}

type goldenCase struct {
	Name    string `json:"name"`
	Recipe  string `json:"recipe"`
	Refused string `json:"refused"`
	Groups  []struct {
		Shared  map[string]any      `json:"shared"`
		Inputs  [][]json.RawMessage `json:"inputs"`
		Base    string              `json:"base"`
		Tensors []string            `json:"tensors"`
	} `json:"groups"`
}

func readGolden(t testing.TB) *golden {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "resolution.json"))
	if err != nil {
		t.Fatal(err)
	}

	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}

	return &g
}

// methods gives mergekit's table of methods.
func (g *golden) methods(t testing.TB) []recipe.Method {
	types := map[string]recipe.Type{"float": recipe.Number, "int": recipe.Integer, "bool": recipe.Bool}
	scopes := map[string]recipe.Scope{"shared": recipe.Shared, "input": recipe.PerInput, "non_base": recipe.PerModel}
	bases := map[string]recipe.BasePolicy{
		"ignored": recipe.BaseIgnored, "optional": recipe.BaseOptional,
		"required": recipe.BaseRequired,
	}
	var out []recipe.Method
	for _, m := range g.Methods {
		x := recipe.Method{
			Name: m.Name, Base: bases[m.Base], MinInputs: m.Min, MaxInputs: m.Max, MinModels: m.MinModels,
			MaxModels: m.MaxModels,
		}
		for _, p := range m.Params {
			kind, ok := types[p.Type]
			if !ok {
				t.Fatalf("%s.%s has type %s", m.Name, p.Name, p.Type)
			}

			y := recipe.Param{Name: p.Name, Type: kind, Scope: scopes[p.Scope], Required: p.Required}
			switch d := p.Default.(type) {
			case bool:
				y.Default = recipe.BoolValue(d)
			case float64:
				y.Default = recipe.NumberValue(d)
				y.Default.Type = kind
			}

			x.Params = append(x.Params, y)
		}

		out = append(out, x)
	}

	return out
}

// inputs gives the models of a document as the golden file describes them.
func (g *golden) inputs(t testing.TB, d *recipe.Document) []Input {
	var out []Input
	for _, ref := range d.References() {
		m, ok := g.Models[ref.Model.Path]
		if !ok {
			t.Fatalf("no model %q", ref)
		}

		in := Input{Ref: ref, Config: m.Config}
		for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
			in.Tensors = append(in.Tensors,
				safetensors.Info{Name: name, DType: safetensors.F32, Shape: m.Tensors[name]})
		}

		out = append(out, in)
	}

	return out
}

// resolveText parses and resolves a recipe of one document.
func resolveText(t testing.TB, g *golden, text string) (*Plan, error) {
	t.Helper()
	docs, err := Parse("recipe.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	return Resolve(docs[0], g.inputs(t, docs[0]), g.methods(t), Options{})
}

func TestPlansAreMergekits(t *testing.T) {
	g := readGolden(t)
	for _, c := range g.Cases {
		t.Run(c.Name, func(t *testing.T) {
			plan, err := resolveText(t, g, c.Recipe)
			if (err != nil) != (c.Refused != "") {
				t.Fatalf("error %v; mergekit's: %q", err, c.Refused)
			}
			if err == nil {
				compare(t, plan, &c)
			}
		})
	}
}

// compare holds a plan against the golden one, tensor by tensor.
func compare(t *testing.T, plan *Plan, c *goldenCase) {
	have := map[string]*Tensor{}
	for i := range plan.Tensors {
		have[plan.Tensors[i].Name] = &plan.Tensors[i]
	}

	n := 0
	for _, group := range c.Groups {
		for _, line := range group.Tensors {
			n++
			name, from, moved := strings.Cut(line, " < ")
			x := have[name]
			if x == nil {
				t.Errorf("%s is not planned", name)
				continue
			}

			same(t, name, x.Params, group.Shared)

			if len(x.Sources) != len(group.Inputs) {
				t.Errorf("%s has %d sources, want %d", name, len(x.Sources), len(group.Inputs))
				continue
			}

			for i, s := range x.Sources {
				var model string
				var params map[string]any
				if json.Unmarshal(group.Inputs[i][0], &model) != nil ||
					json.Unmarshal(group.Inputs[i][1], &params) != nil {
					t.Fatal("golden file")
				}

				if plan.Models[s.Model].String() != model {
					t.Errorf("%s: source %d is %s, want %s", name, i, plan.Models[s.Model], model)
				}

				same(t, fmt.Sprintf("%s of %s", name, model), s.Params, params)
				want := name
				if moved {
					want = strings.Fields(from)[i]
				}

				if got := s.Info.Name; got != want && "transformer."+got != want &&
					!(x.Tied && got == "model.embed_tokens.weight") {
					t.Errorf("%s comes from %s of %s, want %s", name, got, model, want)
				}
			}

			base := ""
			if x.Base >= 0 {
				if base = plan.Models[x.Sources[x.Base].Model].String(); base != group.Base {
					t.Errorf("%s: base %s, want %s", name, base, group.Base)
				}
			}
		}
	}

	if n != len(plan.Tensors) {
		t.Errorf("%d tensors planned, want %d", len(plan.Tensors), n)
	}
}

// same compares parameters. Numbers are equal to the last bit: the interpolation rounds as mergekit's does.
func same(t *testing.T, what string, got recipe.Values, want map[string]any) {
	if len(got) != len(want) {
		t.Errorf("%s: parameters %v, want %v", what, got, want)
	}

	for key, w := range want {
		v := got[key]
		switch w := w.(type) {
		case bool:
			if v.Type != recipe.Bool || v.Bool != w {
				t.Errorf("%s: %s is %v, want %v", what, key, v, w)
			}
		case float64:
			if v.Type == recipe.Bool || v.Number != w {
				t.Errorf("%s: %s is %v, want %v", what, key, v, w)
			}
		}
	}
}

// oracleFolder is where the reference cases lie.
func oracleFolder() string {
	if dir := os.Getenv("COMPRESS_ORACLE"); dir != "" {
		return filepath.Join(dir, "merge")
	}
	return filepath.Join("..", "..", "..", "..", "shared", "oracle", "merge")
}

// openInputs reads the models of a document from the oracle's folder.
func openInputs(t testing.TB, d *recipe.Document, root string) []Input {
	t.Helper()
	var out []Input
	for _, ref := range d.References() {
		dir, err := recipe.Locate(ref.Model, recipe.Places{Recipe: root})
		if err != nil {
			t.Fatal(err)
		}

		files, err := safetensors.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}

		in := Input{Ref: ref, Dir: dir}
		for _, name := range files.Names() {
			info, _ := files.Info(name)
			in.Tensors = append(in.Tensors, info)
		}

		files.Close()
		if in.Config, err = os.ReadFile(filepath.Join(dir, "config.json")); err != nil {
			t.Fatal(err)
		}

		out = append(out, in)
	}

	return out
}

func TestOracleRecipesResolve(t *testing.T) {
	root := oracleFolder()
	paths, _ := filepath.Glob(filepath.Join(root, "*", "config.yaml"))
	if len(paths) == 0 {
		t.Skipf("no cases in %s", root)
	}

	g := readGolden(t)
	for _, path := range paths {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			if recipe.IsMoE(text) {
				return // merge/internal/moe has these
			}

			docs, err := Parse(path, text)
			if err != nil {
				t.Fatal(err)
			}

			plan, err := Resolve(docs[0], openInputs(t, docs[0], root), g.methods(t), Options{})
			if err != nil {
				t.Fatal(err)
			}

			againstNotes(t, plan, filepath.Dir(path))
		})
	}
}

// againstNotes compares a plan with what the case says about its output.
func againstNotes(t *testing.T, plan *Plan, dir string) {
	var notes struct {
		Tensors int      `json:"tensors_in_full_output"`
		DTypes  []string `json:"out_dtypes"`
		Config  struct {
			Layers, NLayer int
			Vocab          int64 `json:"vocab_size"`
		} `json:"config_json"`
	}

	text, err := os.ReadFile(filepath.Join(dir, "notes.json"))
	if err != nil {
		t.Fatal(err)
	}

	if err := json.Unmarshal(text, &notes); err != nil {
		t.Fatal(err)
	}
	if len(plan.Tensors) != notes.Tensors {
		t.Errorf("%d tensors, want %d", len(plan.Tensors), notes.Tensors)
	}
	if plan.Tokenizer != nil {
		plan.SetVocabulary(notes.Config.Vocab)
	}

	files, err := safetensors.Open(filepath.Join(dir, "out.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()

	for _, name := range files.Names() {
		info, _ := files.Info(name)
		i := slices.IndexFunc(plan.Tensors, func(x Tensor) bool { return x.Name == name })
		if i < 0 {
			t.Errorf("%s is not planned", name)
			continue
		}

		if x := plan.Tensors[i]; !slices.Equal(x.Shape, info.Shape) || x.DType != info.DType {
			t.Errorf("%s: %s %v, want %s %v", name, x.DType, x.Shape, info.DType, info.Shape)
		}
	}
}

// accepted are the configurations that a merge only finds wrong while it works, or that need the tokenizers; the others
// of the oracle's list of refusals fail here.
var accepted = []string{
	"della_epsilon", "multislerp_zero_mean", "token_not_in_source", "density_above_one",
	"linear_zero_sum",
}

func TestOracleErrorsAreFound(t *testing.T) {
	root := oracleFolder()
	text, err := os.ReadFile(filepath.Join(root, "errors.json"))
	if err != nil {
		t.Skipf("no %s", filepath.Join(root, "errors.json"))
	}

	var cases []struct{ Case, Config, Why string }
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}

	g := readGolden(t)
	for _, c := range cases {
		t.Run(c.Case, func(t *testing.T) {
			docs, err := Parse("recipe.yaml", []byte(c.Config))
			if err == nil {
				_, err = Resolve(docs[0], openInputs(t, docs[0], root), g.methods(t), Options{})
			}
			if (err == nil) != slices.Contains(accepted, c.Case) {
				t.Errorf("%v (%s)", err, c.Why)
			}

			if err != nil && strings.TrimSpace(err.Error()) == "" {
				t.Error("an error without words")
			}
		})
	}
}
