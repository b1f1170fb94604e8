package job

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge/internal/mergetest"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

const nano = "../../../testdata/nano/"

// opened opens the last document of a recipe.
func opened(t *testing.T, text string, o Options) *Work {
	t.Helper()
	r, err := Parse("recipe.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	w, err := Open(t.Context(), r, r.Docs[len(r.Docs)-1], nil, o)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { w.Close() })
	return w
}

func none(string) bool { return false }

// experts is a recipe by a method on two of the project's tiny models.
func experts(method, parameters string) string {
	return "merge_method: " + method + "\nbase_model: " + nano + "base\nmodels:\n- {model: " + nano +
		"sums, parameters: {weight: 0.5}}\n- {model: " + nano + "news, parameters: {weight: 0.5}}\n" + parameters
}

// TestParse: faults are those of the recipe, with their place, and so are those that only the models' layers show;
// documents come in the order in which they need each other.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"merge_mehtod: linear\n": `did you mean "merge_method"?`,
		"merge_method: passthrough\nslices: [{sources: [{model: " + nano + "base, layer_range: [0, 99]}]}]\n" +
			"x: 1\n": "layers",
		"name: a\nmerge_method: linear\nmodels: [{model: a, parameters: {weight: 1}}]\n": "need each other",
	} {
		if _, err := Parse("recipe.yaml", []byte(text)); !errors.Is(err, ErrRecipe) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}

	r, err := Parse("recipe.yaml", []byte("merge_method: linear\nmodels: [{model: first, parameters: {weight: 1}}]\n"+
		"---\nname: first\nmerge_method: linear\nmodels: [{model: m, parameters: {weight: 1}}]\n"))
	if err != nil || len(r.Docs) != 2 || r.Docs[0].Name != "first" {
		t.Errorf("%+v, %v", r.Docs, err)
	}

	if err := Faultf("r.yaml", "no %s", "base"); !errors.Is(err, ErrRecipe) || err.Error() != "r.yaml: no base" {
		t.Error(err)
	}
	if err := Faulty(os.ErrNotExist); errors.Is(err, ErrRecipe) {
		t.Error("an error of the system counts as the recipe's")
	}
}

// TestPlaces: models are looked for where the caller says, and results of other documents come before that.
func TestPlaces(t *testing.T) {
	r := Recipe{Path: filepath.Join("some", "recipe.yaml"), Folders: map[string]string{"a": "x", "b": "y"}}
	p := r.Places(map[string]string{"b": "z"})
	if p.Recipe != "some" || p.Named["a"] != "x" || p.Named["b"] != "z" || r.Folders["b"] != "y" {
		t.Errorf("%+v of %+v", p, r)
	}
}

// TestOpenRefuses: what cannot be opened is an error, and nothing stays open or planned.
func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		o    Options
		want error
	}{
		"a model that is not there": {strings.ReplaceAll(experts("linear", ""), "news", "none"), Options{}, nil},
		"a template that is not one": {
			experts("linear", "chat_template: '{% if %}'\n"), Options{}, ErrRecipe,
		},
	} {
		r, err := Parse("recipe.yaml", []byte(c.text))
		if err == nil {
			var w *Work
			if w, err = Open(t.Context(), r, r.Docs[0], nil, c.o); w != nil && err != nil {
				t.Errorf("%s: work and an error", name)
			}
		}
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGroups: a method that looks at the whole model gets its tensors in one group, any other each for itself; copies
// are taken as bytes where their type stays, and what an interrupted run has finished is marked.
func TestGroups(t *testing.T) {
	for _, c := range []struct {
		text     string
		together bool
		raw      bool
	}{
		{experts("ties", ""), false, false},
		{experts("pcb", "parameters: {scope: model}\n"), true, false},
		{"merge_method: passthrough\nmodels: [{model: " + nano + "base}]\n", false, true},
		{"merge_method: passthrough\nmodels: [{model: " + nano + "base}]\ndtype: float32\n", false, false},
	} {
		w := opened(t, c.text, Options{Memory: 64 << 20})
		first := w.Plan.Tensors[0].Name
		groups, err := w.Groups(func(name string) bool { return name == first })
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}

		seen, done := 0, 0
		for _, g := range groups {
			seen += len(g.Items)
			for _, it := range g.Items {
				if it.Done {
					done++
				}
				if (it.Raw != nil) != c.raw {
					t.Errorf("%s: %s is copied as bytes: %v", c.text, it.Tensor.Name, it.Raw != nil)
				}
			}
		}

		if seen != len(w.Plan.Tensors) || done != 1 || c.together != (len(groups) < seen) {
			t.Errorf("%s: %d tensors in %d groups, %d done, of %d", c.text, seen, len(groups), done,
				len(w.Plan.Tensors))
		}
	}
}

// TestParametersOutOfRange: a method's fault has the line of the parameter.
func TestParametersOutOfRange(t *testing.T) {
	w := opened(t, experts("ties", "parameters: {density: -1}\n"), Options{})
	if _, err := w.Groups(none); !errors.Is(err, ErrRecipe) || !strings.Contains(err.Error(), "recipe.yaml:6:") {
		t.Errorf("%v", err)
	}
}

// TestItem: the base stands apart where a method has one, zeros are kept as a mask of it, and random numbers depend on
// the seed and the tensor's name.
func TestItem(t *testing.T) {
	w := opened(t, experts("ties", ""), Options{KeepZeros: true, Seed: 7, RandomTies: true})
	at := slices.IndexFunc(w.Plan.Tensors, func(x plan.Tensor) bool { return strings.Contains(x.Name, "q_proj") })
	it, copied, err := w.Item(w.Method, &w.Plan.Tensors[at])
	if err != nil || copied {
		t.Fatal(copied, err)
	}

	if it.Base == nil || it.Mask != it.Base || len(it.X) != 2 || len(it.Models) != 3 || !it.Tensor.Base ||
		!it.Tensor.RandomTies || it.Tensor.Seed[0] != 7 {
		t.Errorf("%+v of %+v", it, it.Tensor)
	}

	other, _, err := w.Item(w.Method, &w.Plan.Tensors[at+1])
	if err != nil || other.Tensor.Seed == it.Tensor.Seed {
		t.Errorf("two tensors have the random numbers %v: %v", it.Tensor.Seed, err)
	}

	linear, err := method.Find("linear")
	if err != nil {
		t.Fatal(err)
	}

	plain, _, err := w.Item(linear, &w.Plan.Tensors[at])
	if err != nil || plain.Base != nil || len(plain.X) != 3 {
		t.Errorf("a method without a base has %d inputs, base %v: %v", len(plain.X), plain.Base, err)
	}
}

// TestSourceShapes: rows beyond the output's are left out, and any other shape is an error that names the tensor.
func TestSourceShapes(t *testing.T) {
	dir := t.TempDir()
	mergetest.WriteModel(t, filepath.Join(dir, "a"), map[string][]float32{"w": {1, 2, 3, 4}})
	w := opened(t, "merge_method: linear\nmodels: [{model: "+dir+"/a, parameters: {weight: 1}}]\n", Options{})
	tensor := w.Plan.Tensors[0]
	tensor.Shape = []int64{1, 2}
	if it, _, err := w.Item(w.Method, &tensor); err != nil || len(it.X) != 1 {
		t.Errorf("fewer rows: %v", err)
	}

	tensor.Shape = []int64{4}
	if _, _, err := w.Item(w.Method, &tensor); !errors.Is(err, method.ErrShape) ||
		!strings.Contains(err.Error(), `"w"`) {
		t.Errorf("another shape: %v", err)
	}
}

// TestOutline: the outline of a result is a checkpoint that an engine loads, with the tensors of the layout, all 0,
// and the donor's tokenizer.
func TestOutline(t *testing.T) {
	w := opened(t, experts("ties", "dtype: float32\n"), Options{})
	dir := filepath.Join(t.TempDir(), "outline")
	if err := w.Outline(dir); err != nil {
		t.Fatal(err)
	}

	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	for _, want := range w.Layout() {
		info, ok := d.Info(want.Name)
		if !ok || info.DType != safetensors.F32 || !slices.Equal(info.Shape, want.Shape) {
			t.Errorf("%s is %+v", want.Name, info)
		}
	}

	for name, data := range mergetest.Tensors(t, dir) {
		if strings.Trim(data, "\x00") != "" {
			t.Errorf("%s is not 0", name)
		}
	}

	m, err := lm.Load(context.Background(), dir, ref.New(), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.Close()

	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Error(err)
	}
}

// TestStatisticsFiles: files of statistics are found from the recipe, opened once, and listed; a tensor that they lack
// has none.
func TestStatisticsFiles(t *testing.T) {
	dir := t.TempDir()
	w := opened(t, experts("ties", ""), Options{})
	info := w.Layout()[0]
	info.DType = safetensors.F32
	out, err := safetensors.Create(filepath.Join(dir, "f.safetensors"), []safetensors.Info{info}, nil,
		safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := out.WriteTensor(info.Name, make([]byte, 4*info.Elements())); err != nil {
		t.Fatal(err)
	}
	if err := out.Finish(); err != nil {
		t.Fatal(err)
	}

	base, err := filepath.Abs(nano)
	if err != nil {
		t.Fatal(err)
	}

	text := "merge_method: fisher\nmodels:\n- {model: " + base + "/sums, parameters: {fisher: f.safetensors}}\n" +
		"- {model: " + base + "/news, parameters: {fisher: f.safetensors}}\n"
	r, err := Parse(filepath.Join(dir, "recipe.yaml"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	f, err := Open(t.Context(), r, r.Docs[0], nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	if _, err := f.Groups(none); err != nil {
		t.Fatal(err)
	}

	if files := f.StatisticsFiles(); !slices.Equal(files, []string{filepath.Join(dir, "f.safetensors")}) {
		t.Errorf("%q", files)
	}
	if len(f.Warnings) == 0 {
		t.Error("tensors without statistics are averaged silently")
	}
}

// TestMediatedHasABase: documents by mediate are opened like any other, with a method that reports name.
func TestMediatedHasABase(t *testing.T) {
	w := opened(t, experts("mediate", "")[:strings.Index(experts("mediate", ""), ", parameters")]+"}\n", Options{})
	if w.Method != Mediated || w.Method.Spec.Base != recipe.BaseRequired || w.Doc.Mediate == nil {
		t.Errorf("%+v", w.Method)
	}
}
