package merge

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/safetensors"
)

// windows are short and arbitrary token ids.
func windows() corpus.Windows {
	w := corpus.Windows{SeqLen: 12, Hash: "test"}
	for i := range 3 {
		ids := make([]int32, w.SeqLen)
		for j := range ids {
			ids[j] = int32((7*i + 13*j + 5) % 60)
		}
		w.IDs = append(w.IDs, ids)
	}
	return w
}

// collected writes the statistics of the nano experts and returns the folder.
func collected(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"sums", "news"} {
		m, err := lm.Load(context.Background(), nano+name, ref.New(), lm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()

		if err := Fisher(t.Context(), m, windows(), filepath.Join(dir, name+"-fisher.safetensors"),
			StatisticsOptions{}); err != nil {
			t.Fatal(err)
		}

		if err := Fisher(t.Context(), m, windows(), filepath.Join(dir, name+"-again.safetensors"),
			StatisticsOptions{Memory: 1 << 20}); err != nil {
			t.Fatal(err)
		}

		if err := Gram(t.Context(), m, windows(), filepath.Join(dir, name+"-gram.safetensors"),
			StatisticsOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	return dir
}

// TestStatistics: Fisher information is the same in one pass and in many, and merges take the files of statistics.
func TestStatistics(t *testing.T) {
	dir := collected(t)
	a, b := open(t, filepath.Join(dir, "sums-fisher.safetensors")),
		open(t, filepath.Join(dir, "sums-again.safetensors"))

	for _, name := range a.Names() {
		x, y := floats(t, a, name), floats(t, b, name)
		for i := range x {
			if x[i] != y[i] || !(x[i] >= 0) || math.IsInf(float64(x[i]), 0) {
				t.Fatalf("%s: %v and %v", name, x[i], y[i])
			}
		}
	}

	for _, c := range []struct{ method, key, file string }{
		{"fisher", "fisher", "fisher"},
		{"regmean", "gram", "gram"},
	} {
		text := "merge_method: " + c.method + "\ndtype: float32\nmodels:\n"
		for _, name := range []string{"sums", "news"} {
			text += "  - model: " + nano + name + "\n    parameters: {" + c.key + ": " + filepath.Join(dir,
				name+"-"+c.file+".safetensors") + "}\n"
		}

		out := filepath.Join(dir, c.method)
		if _, err := Models(t.Context(), parse(t, text), out, Options{}); err != nil {
			t.Fatal(err)
		}

		between(t, out, c.method)
		for _, name := range []string{"sums", "news"} {
			disown(t, filepath.Join(dir, name+"-"+c.file+".safetensors"))
		}
		same := strings.ReplaceAll(text, nano+"news", nano+"sums/../sums")
		if _, err := Models(t.Context(), parse(t, same), out+"-same", Options{}); err != nil {
			t.Fatal(err)
		}

		compareFolders(t, out+"-same", nano+"sums")
	}
}

// disown takes out of a file of statistics of which model they are, as files of earlier builds do not say.
func disown(t *testing.T, path string) {
	t.Helper()
	f := open(t, path)
	metadata := maps.Clone(f.Metadata())
	if metadata[job.OwnerKey] == "" {
		t.Fatalf("%s does not say of which model it is", path)
	}
	delete(metadata, job.OwnerKey)

	var infos []safetensors.Info
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		infos = append(infos, info)
	}
	w, err := safetensors.Create(path, infos, metadata, safetensors.Options{Overwrite: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, name := range f.Names() {
		data, err := f.Bytes(name)
		if err == nil {
			err = w.WriteTensor(name, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

// TestStatisticsOfAnotherModel: swapped files of statistics, and those of a model that is not in the recipe, are
// refused with the file, the model and whose they are; files that do not say it are taken.
func TestStatisticsOfAnotherModel(t *testing.T) {
	dir := collected(t)
	for _, c := range [][2]string{{"fisher", "fisher"}, {"regmean", "gram"}} {
		file := func(name string) string { return filepath.Join(dir, name+"-"+c[1]+".safetensors") }
		text := "merge_method: " + c[0] + "\nmodels:\n" +
			"  - model: " + nano + "sums\n    parameters: {" + c[1] + ": " + file("news") + "}\n" +
			"  - model: " + nano + "news\n    parameters: {" + c[1] + ": " + file("sums") + "}\n"

		out := filepath.Join(dir, c[0])
		for recipe, want := range map[string]string{
			text: file("news") + " are of " + nano + "news, not of " + nano + "sums",
			strings.ReplaceAll(text, nano+"news", nano+"tales"): " than " + nano + "sums (",
		} {
			_, err := Models(t.Context(), parse(t, recipe), out, Options{})
			if !errors.Is(err, ErrRecipe) || !strings.Contains(err.Error(), want) ||
				!strings.Contains(failure.Hint(err), "statistics "+nano+"sums") {
				t.Errorf("%s: %v, want %q", c[0], err, want)
			}
			if _, err := Check(t.Context(), parse(t, recipe), Options{}); !errors.Is(err, ErrRecipe) {
				t.Errorf("%s: a plan: %v", c[0], err)
			}
			if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: an output is left: %v", c[0], err)
			}
		}

		disown(t, file("sums"))
		disown(t, file("news"))
		if _, err := Models(t.Context(), parse(t, text), out, Options{}); err != nil {
			t.Errorf("%s: files that do not say whose they are: %v", c[0], err)
		}
	}
}

// TestStatisticsThatCannotBeCompared: what an earlier document makes is compared once it is there, and a model with an
// adapter not at all, which is remarked on.
func TestStatisticsThatCannotBeCompared(t *testing.T) {
	dir := collected(t)
	file := filepath.Join(dir, "sums-fisher.safetensors")
	with := func(model string) string {
		return "merge_method: fisher\nmodels:\n" +
			"  - model: " + model + "\n    parameters: {fisher: " + file + "}\n" +
			"  - model: " + nano + "sums\n    parameters: {fisher: " + file + "}\n"
	}

	two := parse(t, "name: first\nmerge_method: linear\nmodels:\n- {model: "+nano+"news, parameters: {weight: 1}}\n"+
		"---\n"+with("first"))
	if _, err := Check(t.Context(), two, Options{}); err != nil {
		t.Errorf("a plan of two documents: %v", err)
	}
	_, err := Models(t.Context(), two, filepath.Join(dir, "two"), Options{})
	if !errors.Is(err, ErrRecipe) || !strings.Contains(err.Error(), file+" are of "+nano+"sums, not of first") {
		t.Errorf("two documents: %v", err)
	}

	adapter := filepath.Join(dir, "adapter")
	if err := os.Mkdir(adapter, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(adapter, "adapter_config.json"), []byte(`{"peft_type": "LORA", "r": 1, `+
		`"lora_alpha": 1, "target_modules": ["o_proj"], "fan_in_fan_out": false, "bias": "none"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	info, ok := open(t, nano+"news/model.safetensors").Info("model.layers.0.self_attn.o_proj.weight")
	if !ok {
		t.Fatal("no o_proj")
	}
	const module = "base_model.model.model.layers.0.self_attn.o_proj."
	w, err := safetensors.Create(filepath.Join(adapter, "adapter_model.safetensors"), []safetensors.Info{
		{Name: module + "lora_A.weight", DType: safetensors.F32, Shape: []int64{1, info.Shape[1]}},
		{Name: module + "lora_B.weight", DType: safetensors.F32, Shape: []int64{info.Shape[0], 1}},
	}, nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	err = errors.Join(w.WriteTensor(module+"lora_A.weight", make([]byte, 4*info.Shape[1])),
		w.WriteTensor(module+"lora_B.weight", make([]byte, 4*info.Shape[0])), w.Finish())
	if err != nil {
		t.Fatal(err)
	}

	s, err := Check(t.Context(), parse(t, with(nano+"news+"+adapter)), Options{})
	if err != nil || !slices.ContainsFunc(s.Warnings, func(text string) bool {
		return strings.Contains(text, file+" are of "+nano+"news+"+adapter+" is not checked")
	}) {
		t.Errorf("an adapter: %v, %q", err, s.Warnings)
	}
}

// TestBothStatistics: one file with both statistics merges by either method as two files do.
func TestBothStatistics(t *testing.T) {
	dir := collected(t)
	for _, name := range []string{"sums", "news"} {
		m, err := lm.Load(t.Context(), nano+name, ref.New(), lm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := FisherAndGram(t.Context(), m, windows(), filepath.Join(dir, name+"-both.safetensors"),
			StatisticsOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	for _, c := range [][2]string{{"fisher", "fisher"}, {"regmean", "gram"}} {
		var out [2]string
		for i, file := range []string{c[1], "both"} {
			text := "merge_method: " + c[0] + "\ndtype: float32\nmodels:\n"
			for _, name := range []string{"sums", "news"} {
				text += "  - model: " + nano + name + "\n    parameters: {" + c[1] + ": " +
					filepath.Join(dir, name+"-"+file+".safetensors") + "}\n"
			}
			out[i] = filepath.Join(dir, c[0]+file)
			if _, err := Models(t.Context(), parse(t, text), out[i], Options{}); err != nil {
				t.Fatal(err)
			}
		}

		a, b := open(t, filepath.Join(out[0], "model.safetensors")), open(t, filepath.Join(out[1], "model.safetensors"))
		for _, name := range a.Names() {
			if x, y := floats(t, a, name), floats(t, b, name); !slices.Equal(x, y) {
				t.Errorf("%s: %s differs", c[0], name)
			}
		}
	}
}

// TestMergedGrams: RegMean++ of a model with itself collects its own Gram matrices; the first block's, whose inputs are
// embeddings that are averaged, are those of the inputs below it; and what is merged on the way is what a recipe with
// the files makes, so that the next block's inputs are those of the finished merge.
func TestMergedGrams(t *testing.T) {
	dir := t.TempDir()
	load := func(name string) *lm.Model {
		m, err := lm.Load(t.Context(), nano+name, ref.New(), lm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}

	at := func(name string) string { return filepath.Join(dir, name+".safetensors") }
	data := []corpus.Windows{windows(), windows()}
	twice := []*lm.Model{load("sums"), load("sums")}
	if err := MergedGrams(t.Context(), twice, load("sums"), data, []string{at("a"), at("b")}, 0.9,
		StatisticsOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Gram(t.Context(), twice[0], windows(), at("own"), StatisticsOptions{}); err != nil {
		t.Fatal(err)
	}
	a, own := open(t, at("a")), open(t, at("own"))
	for _, name := range own.Names() {
		x, y := floats(t, a, name), floats(t, own, name)
		for i := range y {
			// The merge of a model with itself is rounded to its type again, after a solve in float64.
			if math.Abs(float64(x[i]-y[i])) > 0.02*math.Max(1, math.Abs(float64(y[i]))) {
				t.Fatalf("%s: element %d is %v, want %v", name, i, x[i], y[i])
			}
		}
	}

	both, into := []*lm.Model{load("sums"), load("news")}, load("sums")
	if err := MergedGrams(t.Context(), both, into, data, []string{at("sums"), at("news")}, 0.9,
		StatisticsOptions{}); err != nil {
		t.Fatal(err)
	}
	text := "merge_method: regmean\nparameters: {alpha: 0.9}\nmodels:\n"
	for _, name := range []string{"sums", "news"} {
		text += "  - model: " + nano + name + "\n    parameters: {gram: " + at(name) + "}\n"
	}
	if _, err := Models(t.Context(), parse(t, text), filepath.Join(dir, "merged"), Options{}); err != nil {
		t.Fatal(err)
	}
	merged, err := lm.Load(t.Context(), filepath.Join(dir, "merged"), ref.New(), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer merged.Close()
	for _, name := range merged.Tensors() {
		x, err := values(into, name)
		if err != nil {
			t.Fatal(err)
		}
		y, err := values(merged, name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x, y) {
			t.Errorf("%s is not what the recipe makes", name)
		}
	}

	for what, err := range map[string]error{
		"one model": MergedGrams(t.Context(), both[:1], into, data[:1], []string{at("x")}, 0.9, StatisticsOptions{}),
		"no text": MergedGrams(t.Context(), both, into, make([]corpus.Windows, 2), []string{at("x"), at("y")}, 0.9,
			StatisticsOptions{}),
		"alpha": MergedGrams(t.Context(), both, into, data, []string{at("x"), at("y")}, 2, StatisticsOptions{}),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestStatisticsNonFinite: a NaN in a model is an error that names the tensor where it shows, and no file is left.
func TestStatisticsNonFinite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(nano+"sums")); err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(dir, "model.safetensors")
	weights := open(t, path)
	name := ""
	for _, n := range weights.Names() {
		if strings.Contains(n, "layers.0.") && strings.Contains(n, "down_proj") {
			name = n
		}
	}

	info, ok := weights.Info(name)
	if !ok {
		t.Fatal("no down_proj")
	}

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	if _, err := f.WriteAt([]byte{0xff, 0x7f, 0xff, 0x7f}, info.Offset); err != nil { // a NaN, or two of two bytes
		t.Fatal(err)
	}

	m, err := lm.Load(t.Context(), dir, ref.New(), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	type collector = func(context.Context, *lm.Model, corpus.Windows, string, StatisticsOptions) error
	for kind, collect := range map[string]collector{"fisher": Fisher, "gram": Gram} {
		out := filepath.Join(t.TempDir(), kind)
		err := collect(t.Context(), m, windows(), out, StatisticsOptions{})
		// a loss has an error of its own
		if err == nil || !strings.Contains(err.Error(), "model.layers.") ||
			kind == "gram" && !errors.Is(err, ErrNonFinite) {
			t.Errorf("%s: %v", kind, err)
		}

		if left, _ := filepath.Glob(out + "*"); len(left) > 0 {
			t.Errorf("%s: %v is left", kind, left)
		}
	}
}

// TestBadStatistics: values that nobody can have measured are refused, by the file and the tensor that have them.
func TestBadStatistics(t *testing.T) {
	dir := collected(t)
	for what, c := range map[string]struct {
		method, key, file string
		bits              uint32
	}{
		"NaN in fisher":      {"fisher", "fisher", "fisher", 0x7fc00000},
		"negative fisher":    {"fisher", "fisher", "fisher", 0xc0a00000},
		"infinity in a gram": {"regmean", "gram", "gram", 0x7f800000},
	} {
		t.Run(what, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "bad.safetensors")
			data, err := os.ReadFile(filepath.Join(dir, "sums-"+c.file+".safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			const name = "model.layers.1.mlp.up_proj.weight"
			info, ok := open(t, filepath.Join(dir, "sums-"+c.file+".safetensors")).Info(name)
			if !ok {
				t.Fatal("no up_proj")
			}
			binary.LittleEndian.PutUint32(data[info.Offset+4:], c.bits)
			if err := os.WriteFile(bad, data, 0o666); err != nil {
				t.Fatal(err)
			}

			text := "merge_method: " + c.method + "\nmodels:\n  - model: " + nano + "sums\n    parameters: {" +
				c.key + ": " + bad + "}\n  - model: " + nano + "news\n    parameters: {" + c.key + ": " +
				filepath.Join(dir, "news-"+c.file+".safetensors") + "}\n"
			_, err = Models(t.Context(), parse(t, text), filepath.Join(t.TempDir(), "out"), Options{})
			if err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), name) {
				t.Errorf("%v", err)
			}
		})
	}
}

func open(t *testing.T, path string) *safetensors.File {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// between checks that a weighted mean by positive weights lies between its inputs, element by element.
func between(t *testing.T, out, method string) {
	t.Helper()
	if method != "fisher" {
		return
	}

	m := open(t, filepath.Join(out, "model.safetensors"))
	a := open(t, nano+"sums/model.safetensors")
	b := open(t, nano+"news/model.safetensors")
	for _, name := range m.Names() {
		x := floats(t, m, name)
		y := floats(t, a, name)
		z := floats(t, b, name)
		for i := range x {
			if lo, hi := min(y[i], z[i]), max(y[i], z[i]); x[i] < lo-1e-6 || x[i] > hi+1e-6 {
				t.Fatalf("%s: %v is not between %v and %v", name, x[i], y[i], z[i])
			}
		}
	}
}

// compareFolders checks that two checkpoints hold the same values, to what solving a system in float64 with
// damping leaves.
func compareFolders(t *testing.T, got, want string) {
	t.Helper()
	a, b := open(t, filepath.Join(got, "model.safetensors")), open(t, filepath.Join(want, "model.safetensors"))
	for _, name := range b.Names() {
		x, y := floats(t, a, name), floats(t, b, name)
		for i := range y {
			if math.Abs(float64(x[i]-y[i])) > 1e-4 {
				t.Fatalf("%s: %v, want %v", name, x[i], y[i])
			}
		}
	}
}
