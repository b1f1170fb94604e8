package mediate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/mergetest"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
	"github.com/modelcompress/compress/safetensors"
)

const nano = "../../testdata/nano/"

func parse(t testing.TB, text string) merge.Recipe {
	t.Helper()
	r, err := merge.Parse("recipe.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// models is [merge.Models] with a Mediator.
func models(ctx context.Context, r merge.Recipe, dir string, o merge.Options) (*merge.Report, error) {
	o.Mediator = Mediator()
	return merge.Models(ctx, r, dir, o)
}

// mediateRecipe mediates between the project's tiny experts.
func mediateRecipe(parameters string, names ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "merge_method: mediate\nbase_model: %sbase\nmodels:\n", nano)
	for _, n := range names {
		fmt.Fprintf(&b, "- model: %s%s\n", nano, n)
	}
	fmt.Fprintf(&b, "parameters: %s\n", parameters)
	return b.String()
}

// trio are experts in the order of their names.
var trio = []string{"news", "rumours", "sums"}

// mediated merges and opens.
func mediated(t testing.TB, text string, o merge.Options) (string, *Experts) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	if _, err := models(t.Context(), parse(t, text), dir, o); err != nil {
		t.Fatal(err)
	}

	e, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { e.Close() })
	return dir, e
}

// exported exports under weights and reads the tensors.
func exported(t testing.TB, e *Experts, weights map[string]float64) map[string]string {
	t.Helper()
	w, err := e.Weights(weights)
	if err != nil {
		t.Fatal(err)
	}

	dir := filepath.Join(t.TempDir(), "export")
	if _, err := e.Export(t.Context(), dir, w, ExportOptions{}); err != nil {
		t.Fatal(err)
	}

	return mergetest.Tensors(t, dir)
}

// TestMediateOfOneModelIsThatModel: the dense model is the only expert, bit for bit, and nothing is routed.
func TestMediateOfOneModelIsThatModel(t *testing.T) {
	dir, e := mediated(t, mediateRecipe("{select: all}", "news"), merge.Options{})
	d := mergetest.Differing(mergetest.Tensors(t, dir), mergetest.Tensors(t, nano+"news"))
	if len(d) > 0 || len(e.manifest.Routed) > 0 {
		t.Errorf("%v differ, %v routed", d, e.manifest.Routed)
	}
}

// TestMediateWithoutRoutingIsLinear: averaging alone is the plain mean, bit for bit.
func TestMediateWithoutRoutingIsLinear(t *testing.T) {
	dir, _ := mediated(t, mediateRecipe("{select: none}", trio...), merge.Options{})
	text := "merge_method: linear\nmodels:\n"
	for _, n := range trio {
		text += "- {model: " + nano + n + ", parameters: {weight: 1}}\n"
	}

	plain := filepath.Join(t.TempDir(), "plain")
	if _, err := models(t.Context(), parse(t, text), plain, merge.Options{}); err != nil {
		t.Fatal(err)
	}
	if d := mergetest.Differing(mergetest.Tensors(t, dir), mergetest.Tensors(t, plain)); len(d) > 0 {
		t.Errorf("%v differ", d)
	}
}

// TestMediateKeepsEverything: with everything routed and kept, every expert comes back bit for bit in its
// layers; with nothing kept, every expert is the dense model.
func TestMediateKeepsEverything(t *testing.T) {
	t.Parallel()

	for _, keep := range []string{"1", "{best: 1}"} {
		_, e := mediated(t, mediateRecipe("{select: all, keep: "+keep+"}", trio...), merge.Options{})
		for _, name := range trio {
			got, want := exported(t, e, map[string]float64{name: 1}), mergetest.Tensors(t, nano+name)
			for _, n := range mergetest.Differing(got, want) {
				if strings.Contains(n, ".layers.") {
					t.Errorf("keep %s: %s: %s is not the expert's", keep, name, n)
				}
			}
		}
	}

	dir, e := mediated(t, mediateRecipe("{select: all, keep: 0}", trio...), merge.Options{})
	for _, name := range trio {
		own := exported(t, e, map[string]float64{name: 1})
		if d := mergetest.Differing(own, mergetest.Tensors(t, dir)); len(d) > 0 {
			t.Errorf("%s: %v are not the dense model's", name, d)
		}
	}
}

// TestWeightsThatOverflow: weights whose sums the type cannot hold are refused by the tensor's name, for each
// encoding; those that are not finite as float32 at once.
func TestWeightsThatOverflow(t *testing.T) {
	t.Parallel()

	for _, keep := range []string{"1", "0.1", "sign1", "{bits: 3}", "{lowrank: 2}", "{best: 0.1}"} {
		_, e := mediated(t, "dtype: float16\n"+mediateRecipe("{select: all, keep: "+keep+"}", trio...), merge.Options{})
		dir := filepath.Join(t.TempDir(), "export")
		_, err := e.Export(t.Context(), dir, []float64{1e9, -3e9, 0}, ExportOptions{})
		if !errors.Is(err, merge.ErrOverflow) || !strings.Contains(err.Error(), "news=1e+09,rumours=-3e+09") {
			t.Errorf("keep %s: %v", keep, err)
		}

		for _, w := range []float64{1e300, math.NaN(), math.Inf(-1)} {
			if _, err := e.Weights(map[string]float64{"news": w}); !errors.Is(err, merge.ErrOption) {
				t.Errorf("weight %v: %v", w, err)
			}
			_, err := e.Export(t.Context(), dir, []float64{w, 0, 0}, ExportOptions{})
			if !errors.Is(err, merge.ErrOption) {
				t.Errorf("weight %v: %v", w, err)
			}
		}
	}
}

// TestMediateErrorFallsWithShare: the more is kept, the smaller the error of reconstruction, which the
// measurement on the experts' own files confirms.
func TestMediateErrorFallsWithShare(t *testing.T) {
	t.Parallel()

	last := map[string]float64{}
	for _, p := range []float64{0, 0.05, 0.4, 1} {
		_, e := mediated(t, mediateRecipe(fmt.Sprintf("{select: all, keep: %v}", p), trio...), merge.Options{})
		v, err := e.Verify(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		for _, x := range v.Experts {
			if before, ok := last[x.Name]; ok && x.Error > before || !x.Measured {
				t.Errorf("keep %v: error of %s rises from %v to %v", p, x.Name, before, x.Error)
			}
			last[x.Name] = x.Error
		}
	}

	for name, x := range last {
		if x != 0 {
			t.Errorf("%s: everything is kept, and the error is %v", name, x)
		}
	}
}

// TestMediateIsTheSameForAnyFiles: the tensors are, whatever files of whatever size the inputs and the output
// are split into.
func TestMediateIsTheSameForAnyFiles(t *testing.T) {
	t.Parallel()

	for _, keep := range []string{"0.1", "{bits: 3}", "{best: 0.1}"} {
		text := mediateRecipe("{select: {top_k: 2}, granularity: block, keep: "+keep+"}", trio...)
		var dense, kept map[string]string
		for i, size := range []int64{0, 30_000, 1 << 20} {
			own := text
			if size > 0 {
				for _, name := range append([]string{"base"}, trio...) {
					own = strings.ReplaceAll(own, nano+name, resplit(t, name, size))
				}
			}

			dir, _ := mediated(t, own, merge.Options{MaxShard: size, Threads: i + 1, Memory: 200 << 20})
			parts := map[string]string{}
			for _, name := range trio {
				for tensor, data := range mergetest.Tensors(t, filepath.Join(dir, sideFolder, experts.FileOf(name))) {
					parts[name+" "+tensor] = data
				}
			}

			got := mergetest.Tensors(t, dir)
			if dense == nil {
				dense, kept = got, parts
			}
			d := append(mergetest.Differing(got, dense), mergetest.Differing(parts, kept)...)
			if len(d) > 0 || len(kept) == 0 {
				t.Errorf("keep %s, files of %d: %v differ", keep, size, d)
			}
		}
	}
}

// TestMediateIsTheSameForAnyWorkers: every file is, whatever the workers and the memory.
func TestMediateIsTheSameForAnyWorkers(t *testing.T) {
	t.Parallel()

	keeps := []string{"0.1", "{energy: 0.5}", "{random: 0.3}", "{lowrank: 2}", "{bits: 3}", "sign1", "{best: 0.1}"}
	for _, keep := range keeps {
		text := mediateRecipe("{select: {top_k: 2}, granularity: block, keep: "+keep+"}", trio...)
		var want map[string]string
		for _, o := range []merge.Options{
			{Threads: 1},
			{Threads: 2, Memory: 64 << 20},
			{Threads: 5, Memory: 300 << 20},
			{Threads: 3, Memory: 1 << 40},
		} {
			dir, _ := mediated(t, text, o)
			got := mergetest.Files(t, dir)
			if want == nil {
				want = got
			}
			if d := mergetest.Differing(got, want); len(d) > 0 {
				t.Errorf("keep %s: %v differ", keep, d)
			}
		}
	}
}

// TestMediateDoesNotDependOnTheOrder: another order of the experts gives the same weights and the same files of
// experts.
func TestMediateDoesNotDependOnTheOrder(t *testing.T) {
	parameters := "{select: {sigma: 0}, granularity: tensor, keep: {random: 0.2}}"
	a, _ := mediated(t, mediateRecipe(parameters, "news", "rumours", "sums"), merge.Options{})
	b, _ := mediated(t, mediateRecipe(parameters, "sums", "news", "rumours"), merge.Options{})
	if d := mergetest.Differing(mergetest.Tensors(t, a), mergetest.Tensors(t, b)); len(d) > 0 {
		t.Errorf("dense: %v differ", d)
	}

	for _, name := range trio {
		x, y := filepath.Join(a, sideFolder, experts.FileOf(name)),
			filepath.Join(b, sideFolder, experts.FileOf(name))
		if d := mergetest.Differing(mergetest.Tensors(t, x), mergetest.Tensors(t, y)); len(d) > 0 {
			t.Errorf("%s: %v differ", name, d)
		}
	}
}

// TestMediateBudget: the experts never take more than they may, and what would fit is used.
func TestMediateBudget(t *testing.T) {
	t.Parallel()

	most := 0
	for _, budget := range []int64{0, 50_000, 300_000} {
		for _, keep := range []string{
			"0.1", "{random: 0.1}", "{energy: 0.2}", "sign1", "{lowrank: 1}", "{bits: 2}", "{best: 0.1}",
		} {
			_, e := mediated(t,
				mediateRecipe(fmt.Sprintf("{select: {budget: %d}, keep: %s, granularity: tensor}", budget, keep),
					trio...), merge.Options{})
			var sum int64
			for _, f := range e.manifest.Files {
				sum += f.Size
			}
			if sum > budget {
				t.Errorf("keep %s: %d bytes, the budget is %d", keep, sum, budget)
			}

			most = max(most, len(e.manifest.Routed))
		}
	}

	if most == 0 {
		t.Error("nothing was ever routed")
	}
}

// TestMediateDensePartIsOrdinary: the engine loads the dense model without knowing of experts, and the manifest
// lies apart.
func TestMediateDensePartIsOrdinary(t *testing.T) {
	dir, _ := mediated(t, mediateRecipe("{}", trio...), merge.Options{})
	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	m, err := lm.Load(context.Background(), dir, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	r, err := m.Forward(context.Background(), [][]int32{{0, 65, 12, 300}}, lm.ForwardOptions{Logits: true})
	if err != nil || math.IsNaN(r.Loss) {
		t.Errorf("%v %v", r, err)
	}

	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Error(err)
	}
}

// TestMediateEncodings: each kind of keeping is read back as it was meant.
func TestMediateEncodings(t *testing.T) {
	t.Parallel()

	for keep, want := range map[string]string{
		"0.01": experts.Rows, "0.3": experts.Bitmap, "1": experts.Full,
		"0": experts.Nothing, "sign1": experts.Signs, "{lowrank: 2}": experts.LowRank, "{bits: 3}": experts.Codes,
	} {
		_, e := mediated(t, mediateRecipe("{select: {top_k: 1}, keep: "+keep+"}", trio...), merge.Options{})
		found := false
		for _, p := range e.manifest.Experts[0].Tensors {
			found = found || p.Encoding == want
		}
		if !found {
			t.Errorf("keep %s: nothing is stored as %s", keep, want)
		}

		v, err := e.Verify(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		for i, x := range v.Experts {
			noted := notedError(e, i)
			// noted from float32 differences before, measured after the rounding of the result to bfloat16
			if math.Abs(x.Error-noted) > 0.02 || x.Error > 1 {
				t.Errorf("keep %s, %s: error %v, noted %v", keep, x.Name, x.Error, noted)
			}
		}
	}
}

// notedError is the error that the manifest has of an expert.
func notedError(e *Experts, member int) float64 {
	var energy, lost float64
	for _, p := range e.manifest.Experts[member].Tensors {
		energy, lost = energy+p.Energy, lost+p.Lost
	}
	if energy == 0 {
		return 0
	}
	return math.Sqrt(lost / energy)
}

// TestMediateEnergyHoldsItsShare: what is kept holds the share of the energy that was asked for, and one
// element less would not.
func TestMediateEnergyHoldsItsShare(t *testing.T) {
	_, e := mediated(t, mediateRecipe("{select: all, keep: {energy: 0.6}}", trio...), merge.Options{})
	for _, m := range e.manifest.Experts {
		for name, p := range m.Tensors {
			if p.Energy == 0 {
				continue
			}
			// sums of squares in another order
			if held := 1 - p.Lost/p.Energy; held < 0.6-1e-9 || p.Kept > 100 && held > 0.61 {
				t.Errorf("%s, %s: %v of the energy in %d elements", m.Name, name, held, p.Kept)
			}
		}
	}
}

// TestMediateWeighsExperts: weights mix what was kept: with everything kept, halves of two experts are their mean.
func TestMediateWeighsExperts(t *testing.T) {
	text := "dtype: float32\n" + mediateRecipe("{select: all, keep: 1, dense: base}", trio...)
	_, e := mediated(t, text, merge.Options{})
	got := exported(t, e, map[string]float64{"news": 0.5, "sums": 0.5})
	a := exported(t, e, map[string]float64{"news": 1})
	b := exported(t, e, map[string]float64{"sums": 1})
	const name = "model.layers.0.mlp.up_proj.weight"

	x := valuesOf(got[name])
	y := valuesOf(a[name])
	z := valuesOf(b[name])
	for i := range x {
		if want := (y[i] + z[i]) / 2; math.Abs(float64(x[i]-want)) > 1e-6 { // a few roundings of numbers below 1
			t.Fatalf("element %d is %v, want %v", i, x[i], want)
		}
	}
}

func valuesOf(s string) []float32 {
	out := make([]float32, len(s)/4)
	for i := range out {
		out[i] = math.Float32frombits(
			uint32(s[4*i]) | uint32(s[4*i+1])<<8 | uint32(s[4*i+2])<<16 | uint32(s[4*i+3])<<24)
	}
	return out
}

// TestMediateResumes: stopped at any point, the merge continues to the same bytes.
func TestMediateResumes(t *testing.T) {
	t.Parallel()

	text := mediateRecipe("{select: {top_k: 2}}", trio...)
	whole, _ := mediated(t, text, merge.Options{})

	want := mergetest.Files(t, whole)
	for stop := int64(1); stop < 900_000; stop += 300_000 {
		dir := filepath.Join(t.TempDir(), "out")
		ctx, cancel := context.WithCancel(t.Context())
		o := merge.Options{Progress: func(p merge.Progress) {
			if p.Done >= stop {
				cancel()
			}
		}}

		if _, err := models(ctx, parse(t, text), dir, o); err == nil {
			t.Fatal("was not stopped")
		}

		cancel()
		if _, err := models(t.Context(), parse(t, text), dir, merge.Options{Resume: true}); err != nil {
			t.Fatal(err)
		}
		if d := mergetest.Differing(mergetest.Files(t, dir), want); len(d) > 0 {
			t.Errorf("stopped at %d: %v differ", stop, d)
		}
	}
}

// TestMediateResumeDamaged: a finished folder is not taken for finished if an expert, the router or the manifest is not
// what was written.
func TestMediateResumeDamaged(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	text := strings.Replace(routedRecipe("keep: 0.1"), "FEATURES", "embed_mean", 1)
	dir, _ := mediated(t, text, merge.Options{Device: dev})
	again := func() error {
		_, err := models(t.Context(), parse(t, text), dir, merge.Options{Device: dev, Resume: true})
		return err
	}

	entries, err := os.ReadDir(filepath.Join(dir, sideFolder))
	if err != nil || len(entries) < 4 {
		t.Fatal(entries, err)
	}

	for _, e := range entries {
		path := filepath.Join(dir, sideFolder, e.Name())
		flip(t, path)
		if err := again(); !errors.Is(err, merge.ErrVerify) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s changed: %v", e.Name(), err)
		}
		flip(t, path)

		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		if err := again(); !errors.Is(err, merge.ErrVerify) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s away: %v", e.Name(), err)
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}

	if err := again(); err != nil {
		t.Errorf("put back: %v", err)
	}
}

// TestSharedFilesAreChecked: an expert that shares tensors with another is exported from that one's file, which then
// must be what was written.
func TestSharedFilesAreChecked(t *testing.T) {
	t.Parallel()

	twin := filepath.Join(t.TempDir(), "twin")
	if err := os.CopyFS(twin, os.DirFS(nano+"sums")); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("merge_method: mediate\nbase_model: %sbase\nmodels:\n- {model: %ssums, name: a}\n"+
		"- {model: %s, name: b}\n- {model: %snews, name: c}\nparameters: {select: all, dense: base, keep: {bits: 3}}\n",
		nano, nano, twin, nano)
	dir, e := mediated(t, text, merge.Options{})
	if got := exported(t, e, map[string]float64{"b": 1}); len(mergetest.Differing(got,
		exported(t, e, map[string]float64{"a": 1}))) > 0 {
		t.Error("twins are exported as different models")
	}

	path := filepath.Join(dir, sideFolder, experts.FileOf("a"))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-9] ^= 1
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}

	for i, want := range []error{ErrHash, ErrHash, nil} {
		weights := make([]float64, 3)
		weights[i] = 1
		_, err := e.Export(t.Context(), filepath.Join(t.TempDir(), "out"), weights, ExportOptions{})
		if !errors.Is(err, want) {
			t.Errorf("expert %d: %v, want %v", i, err, want)
		}
	}
}

// TestMediateBadInput: recipes that make no sense, and folders that were changed.
func TestMediateBadInput(t *testing.T) {
	t.Parallel()

	for parameters, want := range map[string]error{
		"{select: {layers: [99]}}":                       merge.ErrRecipe,
		"{average: {method: slerp, t: 0.5}}":             merge.ErrRecipe,
		"{average: {method: nonsense}}":                  merge.ErrRecipe,
		"{router: {prompts: {news: none.jsonl}}}":        os.ErrNotExist,
		"{router: {prompts: {news: mediate_test.go}}}":   ErrPrompts,
		"{select: all, keep: {lowrank: 2}, dense: mean}": nil,
	} {
		_, err := models(t.Context(), parse(t, mediateRecipe(parameters, trio...)), filepath.Join(t.TempDir(), "out"),
			merge.Options{})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", parameters, err, want)
		}
	}

	// The same prompts in another order, and some twice, tell no experts apart.
	prompts := t.TempDir()
	for name, text := range map[string]string{
		"a.jsonl": "\"one\"\n\"two\"\n", "b.jsonl": "\"two\"\n\"one\"\n\"two\"\n", "c.jsonl": "\"three\"\n\"two\"\n",
	} {
		if err := os.WriteFile(filepath.Join(prompts, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	recipe := mediateRecipe(fmt.Sprintf("{router: {prompts: {news: %[1]s/a.jsonl, rumours: %[1]s/c.jsonl, sums: "+
		"%[1]s/b.jsonl}}}", prompts), trio...)
	_, same := models(t.Context(), parse(t, recipe), filepath.Join(t.TempDir(), "out"), merge.Options{})
	if !errors.Is(same, ErrPrompts) || !strings.Contains(same.Error(), `experts "news" and "sums" are the same`) {
		t.Errorf("the same prompts: %v", same)
	}

	dir, e := mediated(t, mediateRecipe("{select: {top_k: 1}}", trio...), merge.Options{})
	if _, err := e.Weights(map[string]float64{"plays": 1}); !errors.Is(err, ErrUnknownExpert) {
		t.Errorf("%v", err)
	}

	if _, err := e.Export(t.Context(), dir, []float64{1, 0, 0}, ExportOptions{Overwrite: true}); !errors.Is(err,
		merge.ErrInPlace) {
		t.Errorf("%v", err)
	}

	manifest := filepath.Join(dir, sideFolder, manifestName)
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}

	for from, to := range map[string]string{
		`"format_version": 1`: `"format_version": 7`, `"complete": true`: `"complete": false`,
		`"expert-news.safetensors"`: `"../x.safetensors"`,
		`"encoding": "bitmap"`:      `"encoding": "csr"`, `"kept": 9`: `"kept": 10`, `"granularity"`: `"grain"`,
	} {
		changed := strings.Replace(string(text), from, to, 1)
		if changed == string(text) {
			t.Fatalf("%s is not there", from)
		}
		if err := os.WriteFile(manifest, []byte(changed), 0o666); err != nil {
			t.Fatal(err)
		}

		if x, err := Open(t.Context(), dir); !errors.Is(err, ErrManifest) && !errors.Is(err, ErrExperts) ||
			x != nil {
			t.Errorf("%s: %v", to, err)
		}
	}

	if err := os.WriteFile(manifest, text, 0o666); err != nil {
		t.Fatal(err)
	}

	flip(t, filepath.Join(dir, sideFolder, experts.FileOf("sums")))
	if _, err := e.Verify(t.Context()); !errors.Is(err, ErrHash) {
		t.Errorf("%v", err)
	}

	for weights, want := range map[[3]float64]error{{0, 0, 1}: ErrHash, {1, 0, 0}: nil} {
		if _, err := e.Export(t.Context(), filepath.Join(t.TempDir(), "export"), weights[:],
			ExportOptions{}); !errors.Is(err, want) {
			t.Errorf("%v: %v", weights, err)
		}
	}
}

// TestVerifyCoversEveryFile: a bit that was changed in any file but the model card is seen, and so is a file
// that is not there any more, or that the manifest does not list.
func TestVerifyCoversEveryFile(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	text := strings.Replace(routedRecipe("keep: 0.1"), "FEATURES", "embed_mean", 1)
	dir, e := mediated(t, text, merge.Options{Device: dev})
	listed := 0
	for _, side := range []string{"", sideFolder} {
		entries, err := os.ReadDir(filepath.Join(dir, side))
		if err != nil {
			t.Fatal(err)
		}

		for _, x := range entries {
			path := filepath.Join(dir, side, x.Name())
			if x.IsDir() || x.Name() == "README.md" || x.Name() == manifestName {
				continue
			}

			flip(t, path)
			if _, err := e.Verify(t.Context()); !errors.Is(err, ErrHash) {
				t.Errorf("%s changed: %v", x.Name(), err)
			}

			flip(t, path)
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			if _, err := e.Verify(t.Context()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s away: %v", x.Name(), err)
			}
			if err := os.Rename(path+".away", path); err != nil {
				t.Fatal(err)
			}

			listed++
		}
	}

	if v, err := e.Verify(t.Context()); err != nil || v.Files != listed || listed < 9 {
		t.Errorf("%+v of %d, %v", v, listed, err)
	}

	m := *e.manifest
	for _, list := range []*[]hashedFile{&m.Files, &m.Weights} {
		all := *list
		for i := range all {
			*list = slices.Delete(slices.Clone(all), i, i+1)
			if err := m.Write(filepath.Join(dir, sideFolder)); err != nil {
				t.Fatal(err)
			}
			if x, err := Open(t.Context(), dir); !errors.Is(err, ErrManifest) || x != nil {
				t.Errorf("without %s: %v", all[i].Name, err)
			}
		}

		*list = all
	}
}

// flip changes the last byte of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestMediateManifest: the decisions are there before the weights, and every number of the manifest is finite.
func TestMediateManifest(t *testing.T) {
	dir, e := mediated(t, mediateRecipe("{}", trio...), merge.Options{})
	text, err := os.ReadFile(filepath.Join(dir, sideFolder, manifestName))
	if err != nil || !json.Valid(text) {
		t.Fatal(err)
	}
	if len(e.manifest.Groups) < 3 || len(e.manifest.Weights) != 1 || e.manifest.Base.Files[0].SHA256 == "" {
		t.Errorf("%+v", e.manifest)
	}
}

// TestMediateExpertsApart: a mediated model keeps each expert in a tensor of its own, whatever its models do,
// with the same bits, and says so.
func TestMediateExpertsApart(t *testing.T) {
	t.Parallel()

	a, err := arch.Lookup("qwen3_moe")
	if err != nil {
		t.Fatal(err)
	}

	var want map[string]string
	for _, fused := range []bool{false, true} {
		var dirs []any
		for seed := range uint64(3) {
			tensors := mergetest.MixtureTensors(t, a, seed)
			dirs = append(dirs, mergetest.WriteMixture(t, a, tensors, fused, safetensors.F32))
		}

		out := filepath.Join(t.TempDir(), "out")
		text := "merge_method: mediate\n" +
			"base_model: %s\nmodels:\n- {model: %s, name: one}\n- {model: %s, name: two}\nparameters: {select: " +
			"{top_k: 2}}\n"
		r, err := models(t.Context(), parse(t, fmt.Sprintf(text, dirs...)), out, merge.Options{})
		if err != nil {
			t.Fatal(err)
		}

		if said := slices.ContainsFunc(r.Warnings,
			func(s string) bool { return strings.Contains(s, "a tensor of its own") }); said != fused {
			t.Errorf("fused %v: warnings %q", fused, r.Warnings)
		}

		got, joined := mergetest.Apart(t, a, out)
		if joined || want != nil && len(mergetest.Differing(got, want)) > 0 || len(want) > len(got) {
			t.Errorf("joined %v, differing %v", joined, mergetest.Differing(got, want))
		}

		want = got
	}
}

// TestMediateWarnsOnce: the warnings of the methods of the dense model are in the report once, beside those of the
// conflicts.
func TestMediateWarnsOnce(t *testing.T) {
	r := parse(t, mediateRecipe("{select: none, average: {method: ties, density: 1.5}}", trio...))
	report, err := models(t.Context(), r, filepath.Join(t.TempDir(), "out"), merge.Options{})
	if err != nil {
		t.Fatal(err)
	}

	seen := map[string]bool{}
	for _, w := range report.Warnings {
		if seen[w] {
			t.Errorf("%q twice", w)
		}
		seen[w] = true
	}

	if len(seen) == 0 {
		t.Error("no warning of a density above 1")
	}
}
