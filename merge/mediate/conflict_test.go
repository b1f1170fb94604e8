package mediate

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/mergetest"
)

// The hand-made tensors of the specification's conflict vectors; all values are exact in bfloat16.
var handMade = map[string][]float32{
	"base": {0.5, -0.25, 0.125, 1.0, -1.0, 0.75, 0.0, 0.25},
	"m1":   {0.75, -0.25, 0.625, 0.5, -0.5, 0.75, -0.125, 0.3125},
	"m2":   {0.25, -0.75, 0.25, 0.875, -1.75, 1.0, 0.25, 0.25},
	"m3":   {1.0, -0.5, 0.0, 1.125, -1.0, 0.25, 0.375, -0.25},
}

// handMadeRecipe writes the hand-made models, as layer 0 of a model, and gives a mediate recipe of them.
func handMadeRecipe(t testing.TB, parameters string) string {
	t.Helper()
	dir := t.TempDir()
	for name, x := range handMade {
		mergetest.WriteModel(t, filepath.Join(dir, name), map[string][]float32{"model.layers.0.w": x})
	}
	return "merge_method: mediate\nbase_model: " + dir + "/base\nmodels: [{model: " + dir + "/m1}, {model: " + dir +
		"/m2}, {model: " + dir +
		"/m3}]\nparameters: " + parameters + "\n"
}

// TestConflictVectors: the counts and metrics of the specification's vectors, without and with denoising.
func TestConflictVectors(t *testing.T) {
	for _, c := range []struct {
		density                                float64
		disagree, mass                         float64
		conflicting, several, active, elements int64
	}{
		{1, 0.708333, 0.438095, 7, 8, 8, 8},
		{0.5, 0.333333, 0.372093, 3, 3, 8, 8},
	} {
		r := parse(t, handMadeRecipe(t, "{}"))
		got, err := Conflict(t.Context(), r, ConflictOptions{Density: c.density})
		if err != nil {
			t.Fatal(err)
		}

		g := got.Groups[0]
		if g.Both != c.conflicting || g.Several != c.several || g.Active != c.active || g.Elements != c.elements {
			t.Errorf("density %v: %+v", c.density, g)
		}

		for _, x := range [][2]float64{{g.Disagree, c.disagree}, {g.Mass, c.mass}} {
			if math.Abs(x[0]-x[1]) > 5e-7 { // the vectors have six decimals
				t.Errorf("density %v: %v, want %v", c.density, x[0], x[1])
			}
		}
	}
}

// TestConflictOfNonFinite: with leave, differences that are not finite count as none in every figure and are
// counted themselves; what has some is not routed.
func TestConflictOfNonFinite(t *testing.T) {
	t.Parallel()

	huge := float32(math.Inf(1))
	for _, bad := range [][]float32{{float32(math.NaN()), 1}, {huge, -huge}, {math.MaxFloat32, -math.MaxFloat32}} {
		dir := t.TempDir()
		for name, x := range handMade {
			x = slices.Clone(x)
			if name == "m2" {
				x[1], x[2] = bad[0], bad[1]
			}
			if name == "m3" && bad[0] == math.MaxFloat32 {
				x[1] = bad[0] // the sum of two is not finite
			}

			mergetest.WriteModel(t, filepath.Join(dir, name),
				map[string][]float32{"model.layers.0.w": x, "model.layers.1.w": handMade[name]})
		}

		text := "merge_method: mediate\nbase_model: " + dir + "/base\nmodels: [{model: " + dir + "/m1}, {model: " +
			dir + "/m2}, {model: " + dir + "/m3}]\n"
		r, err := Conflict(t.Context(), parse(t, text), ConflictOptions{Density: 1, AllowNonFinite: true})
		if err != nil {
			t.Fatal(err)
		}

		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%v: %v", bad, err)
		}

		want := int64(0)
		for _, v := range bad {
			if v-v != 0 {
				want++
			}
		}

		if g := r.Groups[0]; g.NonFinite != want || r.Whole.NonFinite != want || r.Groups[1].NonFinite != 0 ||
			(want > 0) != (len(r.Warnings) > 0) && want > 0 {
			t.Errorf("%v: %+v, %q", bad, g, r.Warnings)
		}

		if want == 0 {
			continue
		}
		if g := r.Groups[0]; !(g.Cosine > 0.1) || !(g.Mass > 0) {
			t.Errorf("%v: %+v", bad, g)
		}

		for _, c := range []struct {
			rule string
			want error
		}{{"{layers: [0]}", merge.ErrMethod}, {"{layers: [1]}", nil}, {"none", nil}} {
			_, err := models(t.Context(), parse(t, text+"parameters: {select: "+c.rule+"}\n"),
				filepath.Join(t.TempDir(), "out"), merge.Options{AllowNonFinite: true})
			if !errors.Is(err, c.want) {
				t.Errorf("%v, %s: %v", bad, c.rule, err)
			}
		}
	}
}

// resplit is a copy of a model in files of at most so many bytes.
func resplit(t *testing.T, model string, size int64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), model)
	if _, err := models(t.Context(), parse(t, "merge_method: passthrough\nmodels: [{model: "+nano+model+"}]\n"), dir,
		merge.Options{MaxShard: size}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestConflictIsTheSameForAnyWorkers: bit for bit, whatever the workers, the memory and the split into files.
func TestConflictIsTheSameForAnyWorkers(t *testing.T) {
	t.Parallel()

	text := "merge_method: mediate\nbase_model: " + nano + "base\nmodels: [{model: " + nano + "news}, {model: " + nano +
		"sums}, {model: SPLIT}]\n"
	models := []string{nano + "tales"}
	for _, size := range []int64{30_000, 100_000, 1 << 20} {
		models = append(models, resplit(t, "tales", size))
	}

	var want string
	for _, o := range []ConflictOptions{
		{Threads: 1},
		{Threads: 2},
		{Threads: 3, Memory: 64 << 20},
		{Threads: 7, Memory: 256 << 20},
		{Threads: 2, Memory: 1 << 40},
	} {
		for _, model := range models {
			o.Granularity = "tensor"
			got, err := Conflict(t.Context(), parse(t, strings.ReplaceAll(text, "SPLIT", model)), o)
			if err != nil {
				t.Fatal(err)
			}

			got.Seconds = 0
			data, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}

			if want == "" {
				want = string(data)
			}
			if string(data) != want {
				t.Errorf("%+v: another result", o)
			}
		}
	}
}

// TestConflictOfWords: where bfloat16 elements are stored changes no bit of a result: as they are, widened to
// F32, or at odd places of a file; for sizes around the words of signs, the blocks and the segments that are
// counted at a time, with ties at the cut.
func TestConflictOfWords(t *testing.T) {
	t.Parallel()

	r := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	for _, n := range []int{2, 126, 130, 8190, 16384, 20002, 1<<19 + 130} {
		if n > 1<<17 && testing.Short() {
			continue
		}

		// so few that many differences are equal at the cut, of sizes that make sums round
		values := make([]float32, 40)
		for i := range values {
			values[i] = math.Float32frombits(
				math.Float32bits(float32(math.Ldexp(r.NormFloat64(), r.IntN(40)-20))) & 0xffff0000)
		}

		all := map[string][]float32{}
		for _, model := range []string{"base", "a", "b", "c"} {
			x := make([]float32, n)
			for i := range x {
				x[i] = values[r.IntN(len(values))]
			}

			all[model] = x
			mergetest.WriteModel(t, filepath.Join(dir, fmt.Sprint(n), "wide", model), map[string][]float32{"w": x})
			for odd, kind := range []string{"plain", "odd"} {
				writeWords(t, filepath.Join(dir, fmt.Sprint(n), kind, model), x, odd)
			}
		}

		for _, density := range []float64{0.2, 1} {
			active, several, both := counted(all, density)
			var want string
			for _, kind := range []string{"wide", "plain", "odd"} {
				text := "merge_method: mediate\nbase_model: D/base\nmodels: [{model: D/a}, {model: D/b}, " +
					"{model: D/c}]\n"
				for _, workers := range []int{1, 3} {
					got, err := Conflict(t.Context(),
						parse(t, strings.ReplaceAll(text, "D", filepath.Join(dir, fmt.Sprint(n), kind))),
						ConflictOptions{Density: density, Threads: workers})
					if err != nil {
						t.Fatal(err)
					}

					data, err := json.Marshal([]any{got.Whole, got.Tensors})
					if err != nil {
						t.Fatal(err)
					}

					if w := got.Whole; w.Active != active || w.Several != several || w.Both != both {
						t.Errorf("%d elements, density %v: %+v, want %d, %d, %d", n, density, w.Totals, active, several,
							both)
					}

					if want == "" {
						want = string(data)
					}

					if string(data) != want {
						t.Errorf("%d elements, density %v, %s, %d workers: %s, want %s", n, density, kind, workers,
							data, want)
					}
				}
			}
		}
	}
}

// counted counts by the definition: how many elements have a difference, at least two, and both signs, of the
// ⌊density·n⌋ largest.
func counted(all map[string][]float32, density float64) (active, several, both int64) {
	n := len(all["base"])
	plus, minus := make([]int, n), make([]int, n)
	for _, model := range []string{"a", "b", "c"} {
		d, order := make([]float32, n), make([]int, n)
		for i := range d {
			d[i], order[i] = all[model][i]-all["base"][i], i
		}

		slices.SortStableFunc(order, func(i, j int) int {
			return cmp.Compare(math.Abs(float64(d[j])), math.Abs(float64(d[i])))
		})

		for _, i := range order[:max(1, int(density*float64(n)))] {
			if d[i] > 0 {
				plus[i]++
			} else if d[i] < 0 {
				minus[i]++
			}
		}
	}

	for i := range n {
		if plus[i]+minus[i] > 0 {
			active++
		}
		if plus[i]+minus[i] > 1 {
			several++
		}
		if plus[i] > 0 && minus[i] > 0 {
			both++
		}
	}

	return active, several, both
}

// writeWords writes the folder of a model with one bfloat16 tensor, some bytes after the place that writers choose.
func writeWords(t *testing.T, dir string, x []float32, shift int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}

	header := fmt.Sprintf(`{"w":{"dtype":"BF16","shape":[2,%d],"data_offsets":[0,%d]}}`, len(x)/2, 2*len(x))
	header += strings.Repeat(" ", 8-len(header)%8+shift)
	data := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	data = append(data, header...)
	for _, v := range x {
		data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestConflictBadInput: what cannot be compared is refused with a sentinel, and a strange base is warned of.
func TestConflictBadInput(t *testing.T) {
	r := parse(t, "merge_method: linear\nmodels: [{model: "+nano+"news, parameters: {weight: 1}}]\n")
	if _, err := Conflict(t.Context(), r, ConflictOptions{}); !errors.Is(err, merge.ErrRecipe) {
		t.Errorf("no base: %v", err)
	}
	if _, err := Conflict(t.Context(), r, ConflictOptions{Density: 2}); !errors.Is(err, merge.ErrOption) {
		t.Errorf("density: %v", err)
	}

	dir := t.TempDir()
	mergetest.WriteModel(t, filepath.Join(dir, "a"), map[string][]float32{"w": {1, 2, 3, 4}})
	mergetest.WriteModel(t, filepath.Join(dir, "b"), map[string][]float32{"w": {-4, 3, -2, 1}})
	mergetest.WriteModel(t, filepath.Join(dir, "c"), map[string][]float32{"w": {1, 2, 3, 4, 5, 6}})
	recipe := "merge_method: mediate\nbase_model: " + dir + "/a\nmodels: [{model: " + dir + "/X}]\n"
	got, err := Conflict(t.Context(), parse(t, strings.ReplaceAll(recipe, "X", "b")), ConflictOptions{})
	if err != nil || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "ancestor") {
		t.Errorf("%v %v", got, err)
	}

	if _, err := Conflict(t.Context(), parse(t, strings.ReplaceAll(recipe, "X", "c")), ConflictOptions{}); err == nil ||
		!strings.Contains(err.Error(), "shape") {
		t.Errorf("shapes: %v", err)
	}

	if _, err := Conflict(t.Context(), parse(t, strings.ReplaceAll(recipe, "X", "d")), ConflictOptions{}); err == nil ||
		!strings.Contains(err.Error(), "not found") {
		t.Errorf("no model: %v", err)
	}
}
