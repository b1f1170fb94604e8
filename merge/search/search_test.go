package search

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/mergetest"
)

const nano = "../../testdata/nano"

// openText leaves the weight of one expert open.
const openText = `merge_method: task_arithmetic
base_model: base
models:
- {model: tales, parameters: {weight: {search: [-1, 2], start: 0}}}
`

// searchOptions measure on a few tokens.
func searchOptions(dev *cpu.Device) Options {
	ids := [][]int32{{0, 65, 12, 300, 41, 7, 9, 88}, {0, 5, 17, 99, 300, 7, 612, 3}}
	loss := func(ctx context.Context, m *lm.Model) (float64, error) {
		r, err := m.Forward(ctx, ids, lm.ForwardOptions{})
		if err != nil {
			return 0, err
		}
		return r.Loss, nil
	}

	return Options{
		Device: dev, Generations: 2, Seed: 3,
		Aims: []Aim{{Name: "ids", Hash: "x", Weight: 2, Loss: loss}},
	}
}

// TestSearchInMemoryIsThatOnDisk: to the bytes of the journal, with models that lose tensors, change their
// types, or have more layers, and for a recipe that has to be merged on the disk.
func TestSearchInMemoryIsThatOnDisk(t *testing.T) {
	recipe := filepath.Join(nano, "recipe.yaml")
	for name, text := range map[string]string{
		"plain": openText,
		"half":  openText + "dtype: float32\nout_dtype: float16\n",
		"wide":  openText + "dtype: float64\n",
		"deep": "merge_method: passthrough\nslices:\n- sources: [{model: base, layer_range: [0, 2]}]\n" +
			"- sources: [{model: tales, layer_range: [1, 2], parameters: {scale: {search: [0, 2]}}}]\n",
		"several": "name: first\nmerge_method: linear\nmodels:\n- {model: base, parameters: {weight: {search: [0.1, " +
			"1]}}}\n- {model: tales, parameters: {weight: 1}}\n---\nmerge_method: linear\nmodels:\n- {model: first, " +
			"parameters: {weight: 1}}\n" +
			"- {model: sums, parameters: {weight: {search: [0, 1]}}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dev := cpu.New(cpu.Options{})
			defer dev.Close()

			dir := t.TempDir()
			for _, disk := range []bool{false, true} {
				o := searchOptions(dev)
				o.Generations, o.OnDisk = 1, disk
				out := filepath.Join(dir, fmt.Sprint(disk))
				if _, err := Run(context.Background(), recipe, []byte(text), out, o); err != nil {
					t.Fatal(err)
				}
			}

			mergetest.Same(t, filepath.Join(dir, "false"), filepath.Join(dir, "true"))
		})
	}
}

// TestJudgeHoldsOneModel: in memory, the disk gets the outline of a candidate once, whose weights take no space there.
func TestJudgeHoldsOneModel(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	scratch := filepath.Join(t.TempDir(), "scratch")
	o := searchOptions(dev)
	judge, err := NewJudge(filepath.Join(nano, "recipe.yaml"), scratch, JudgeOptions{Device: dev, Aims: o.Aims})
	if err != nil {
		t.Fatal(err)
	}

	var times []time.Time
	for _, weight := range []string{"0.5", "1"} {
		text := strings.Replace(openText, "{search: [-1, 2], start: 0}", weight, 1)
		if r, err := judge.Rate(context.Background(), []byte(text)); err != nil || r.Failed != "" || !(r.Score > 0) {
			t.Fatalf("%+v %v", r, err)
		}

		st, err := os.Stat(filepath.Join(scratch, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}

		if on := system.Allocated(st); runtime.GOOS != "windows" && on > st.Size()/2 {
			t.Errorf("%d bytes on the disk, of %d", on, st.Size())
		}

		times = append(times, st.ModTime())
	}

	if !times[0].Equal(times[1]) {
		t.Error("the second candidate was written again")
	}
	if err := judge.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestSearchContinuesToTheSameRecipe: interrupted after any candidate, a search ends with the same recipe and
// the same report, and the candidates' folders are gone.
func TestSearchContinuesToTheSameRecipe(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	recipe := filepath.Join(nano, "recipe.yaml")
	whole := filepath.Join(t.TempDir(), "found")
	first, err := Run(context.Background(), recipe, []byte(openText), whole, searchOptions(dev))
	if err != nil {
		t.Fatal(err)
	}

	if first.Score > first.Start || len(first.Steps) != 9 || len(first.Values) != 1 {
		t.Errorf("%+v", first)
	}
	if _, err := merge.Read(filepath.Join(whole, BestName)); err != nil {
		t.Error(err)
	}

	for _, stop := range []int{1, 5} {
		out := filepath.Join(t.TempDir(), "found")
		ctx, cancel := context.WithCancel(context.Background())
		o, n := searchOptions(dev), 0
		o.Each = func(Step) {
			n++
			if n == stop {
				cancel()
			}
		}

		if _, err := Run(ctx, recipe, []byte(openText), out, o); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}

		cancel()

		if _, err := Run(context.Background(), recipe, []byte(openText), out, searchOptions(dev)); !errors.Is(err,
			merge.ErrExists) {
			t.Errorf("%v", err)
		}

		o = searchOptions(dev)
		o.Resume, o.Seed = true, 4
		if _, err := Run(context.Background(), recipe, []byte(openText), out, o); !errors.Is(err, ErrJournal) {
			t.Errorf("%v", err)
		}

		o.Seed = 3
		again, err := Run(context.Background(), recipe, []byte(openText), out, o)
		if err != nil {
			t.Fatal(err)
		}

		mergetest.Same(t, whole, out)
		if again.Recipe != first.Recipe || len(again.Steps) != len(first.Steps) {
			t.Errorf("%+v", again)
		}
		if _, err := os.Stat(filepath.Join(out, ".candidate")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v", err)
		}
	}
}

func TestSearchRefuses(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	recipe, out := filepath.Join(nano, "recipe.yaml"), filepath.Join(t.TempDir(), "found")
	o := searchOptions(dev)
	for name, text := range map[string]string{
		"nothing open": "merge_method: linear\nmodels: [{model: base}]\n",
		"not a recipe": "merge_mehtod: linear\nx: {search: [0, 1]}\n",
	} {
		if _, err := Run(context.Background(), recipe, []byte(text), out, o); !errors.Is(err, merge.ErrRecipe) {
			t.Errorf("%s: %v", name, err)
		}
	}

	for name, bad := range map[string]func(*Options){
		"device": func(o *Options) { o.Device = nil }, "aims": func(o *Options) { o.Aims = nil },
		"weight": func(o *Options) { o.Aims[0].Weight = 0 }, "sigma": func(o *Options) { o.Sigma = 2 },
		"population": func(o *Options) { o.Population = 1 },
		"memory":     func(o *Options) { o.Merge.Memory = -1 },
	} {
		o := searchOptions(dev)
		bad(&o)
		if _, err := Run(context.Background(), recipe, []byte(openText), out, o); !errors.Is(err, merge.ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused search left %s: %v", out, err)
	}

	missing := "merge_method: linear\nmodels: [{model: nowhere, parameters: {weight: {search: [0, 1]}}}]\n"
	if _, err := Run(context.Background(), recipe, []byte(missing), out, o); err == nil {
		t.Error("a model that is not there")
	}
}
