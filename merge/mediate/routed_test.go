package mediate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/safetensors"
)

// routedRecipe has a router on the tiny experts' prompts.
func routedRecipe(rest string) string {
	const prompts = nano + "tasks/prompts/"
	return mediateRecipe(
		"{select: all, "+rest+", router: {features: FEATURES, prompts: {news: "+prompts+"news.jsonl, rumours: "+prompts+
			"rumours.jsonl, sums: "+prompts+"sums.jsonl}}}", trio...)
}

// atWork mediates on a device and attaches.
func atWork(t *testing.T, text string, dev kernels.Device, cache int64) (*Experts, *lm.Model, *Routed) {
	t.Helper()
	dir, e := mediated(t, text, merge.Options{Device: dev})
	m, err := lm.Load(t.Context(), dir, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { m.Close() })
	r, err := e.Attach(m, cache)
	if err != nil {
		t.Fatal(err)
	}

	return e, m, r
}

// logits of a few tokens.
func logits(t *testing.T, m *lm.Model) []float32 {
	t.Helper()
	r, err := m.Forward(t.Context(), [][]int32{{0, 65, 12, 300, 41}}, lm.ForwardOptions{Logits: true})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(r.Logits.Buf.F32())
}

// TestRoutedModelIsTheExportedOne: under any weights the model computes, bit for bit, what the exported
// checkpoint does, in whatever order weights follow each other and however small the cache; undone, it is the
// dense model again.
func TestRoutedModelIsTheExportedOne(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	for _, keep := range []string{"keep: 0.1", "keep: {random: 0.2}", "keep: sign1", "keep: {bits: 3}"} {
		for _, cache := range []int64{1, 0} {
			e, m, r := atWork(t, mediateRecipe("{select: all, "+keep+"}", trio...), dev, cache)
			dense := logits(t, m)
			if held := r.MemorySize(); cache == 1 && held <= 1 || cache == 0 && held > 16*m.DataSize() {
				t.Errorf("cache %d: %d bytes for experts of a model of %d", cache, held, m.DataSize())
			}

			want := map[string][]float32{}
			for round := range 2 {
				for _, w := range [][]float64{{1, 0, 0}, {0, 0.25, 0.75}, {0.5, 0.25, 0.25}} {
					name := fmt.Sprint(w)
					if round == 0 {
						dir := filepath.Join(t.TempDir(), "export")
						if _, err := e.Export(t.Context(), dir, w, ExportOptions{}); err != nil {
							t.Fatal(err)
						}

						plain, err := lm.Load(t.Context(), dir, dev, lm.Options{})
						if err != nil {
							t.Fatal(err)
						}

						want[name] = logits(t, plain)
						plain.Close()
					}

					if err := r.Use(w); err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(logits(t, m), want[name]) {
						t.Errorf("%s, cache %d: weights %v give another model than their export", keep, cache, w)
					}
				}
			}

			if err := r.Undo(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(logits(t, m), dense) {
				t.Errorf("%s: undone, it is not the dense model", keep)
			}
			if s := r.Statistics(); s.Switches != 6 || cache == 0 && s.Hits != 3 {
				t.Errorf("%s: %+v", keep, s)
			}
		}
	}
}

// TestRouterFindsTheExpert: prompts of the tiny experts go their way under all kinds of features, a request
// does not depend on the one before it, and a router that was changed is refused.
func TestRouterFindsTheExpert(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	for _, features := range []string{
		"auto", "embed_mean", "early", "early_last", "hidden_last", "hidden_mean, classifier: lda",
	} {
		e, _, r := atWork(t, strings.ReplaceAll(routedRecipe("keep: 0.1"), "FEATURES", features), dev, 0)
		if e.manifest.Router.Accuracy < 0.6 { // a third would be chance
			t.Errorf("%s: %+v", features, e.manifest.Router)
		}

		ids := []int32{0, 65, 12, 300, 41}
		first, v, err := r.Route(t.Context(), ids, Policy{})
		if err != nil || v.Uncertainty < 0 || v.Uncertainty > 1 {
			t.Fatalf("%+v %v", v, err)
		}

		if err := r.Use([]float64{0, 0, 1}); err != nil {
			t.Fatal(err)
		}

		if again, w, err := r.Route(t.Context(), ids, Policy{}); err != nil || !slices.Equal(first, again) ||
			v.Distance != w.Distance {
			t.Errorf("%s: routed to %v, then to %v: %v", features, first, again, err)
		}

		if _, _, err := r.Route(t.Context(), nil, Policy{}); !errors.Is(err, ErrFeature) {
			t.Errorf("empty prompt: %v", err)
		}
		if _, _, err := e.Judge([]float64{math.NaN()}, Policy{}); !errors.Is(err, ErrFeature) {
			t.Errorf("NaN: %v", err)
		}

		flip(t, filepath.Join(e.Dir(), sideFolder, routerName))
		if x, err := Open(t.Context(), e.Dir()); !errors.Is(err, ErrHash) || x != nil {
			t.Errorf("changed router: %v", err)
		}
	}
}

// TestQuantise: weights become 64ths, and still sum to 1.
func TestQuantise(t *testing.T) {
	for _, w := range [][]float64{
		{1, 0, 0},
		{1. / 3, 1. / 3, 1. / 3},
		{0.9999, 0.0001, 0},
		{0.123, 0.456, 0.421},
		{0, 0, 0},
	} {
		sum, total := 0.0, 0.0
		for i, v := range quantise(w) {
			if v*64 != math.Trunc(v*64) || math.Abs(v-w[i]) > 1.0/64 {
				t.Errorf("%v: %v", w, v)
			}
			sum, total = sum+v, total+w[i]
		}

		if sum != math.Round(total) {
			t.Errorf("%v: sum %v", w, sum)
		}
	}
}

// TestNoRouter: a folder without prompts cannot route, and prompts without a device cannot train.
func TestNoRouter(t *testing.T) {
	t.Parallel()

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	_, _, r := atWork(t, mediateRecipe("{}", trio...), dev, 0)
	if _, _, err := r.Route(t.Context(), []int32{1}, Policy{}); !errors.Is(err, ErrNoRouter) {
		t.Errorf("%v", err)
	}

	text := strings.ReplaceAll(routedRecipe("keep: 0.1"), "FEATURES", "hidden_mean")
	if _, err := models(t.Context(), parse(t, text), filepath.Join(t.TempDir(), "x"), merge.Options{}); !errors.Is(err,
		merge.ErrOption) {
		t.Errorf("%v", err)
	}

	file := filepath.Join(t.TempDir(), "prompts.jsonl")
	for content, want := range map[string]string{
		"": "no prompts", "{\"text\": \"\"}\n": "line 1: no text",
		"\"a\"\n{\"foo\": 1}\n": "line 2: no text",
	} {
		if err := os.WriteFile(file, []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadPrompts(file); !errors.Is(err, ErrPrompts) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", content, err)
		}
	}

	if err := os.WriteFile(file, []byte("\"one\"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if list, err := ReadPrompts(file); err != nil || len(list) != 1 {
		t.Errorf("%q, %v", list, err)
	}

	if _, err := merge.Check(t.Context(), parse(t, strings.ReplaceAll(text, nano+"tasks/prompts/sums.jsonl", file)),
		merge.Options{Mediator: Mediator()}); !errors.Is(err, ErrPrompts) {
		t.Errorf("one prompt: %v", err)
	}
}

// TestOneRowOfFeatures: a file with the feature of one prompt routes it, though it could train nothing; a
// router on features from outside says so where it is given a prompt.
func TestOneRowOfFeatures(t *testing.T) {
	t.Parallel()

	rng := rand.New(rand.NewPCG(1, 2))
	features := func(rows, axis int) string {
		path := filepath.Join(t.TempDir(), "features.safetensors")
		data := make([]byte, 0, 16*rows)
		for i := range 4 * rows {
			v := 0.1 * rng.NormFloat64()
			if i%4 == axis {
				v++
			}
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		}

		w, err := safetensors.Create(path,
			[]safetensors.Info{{Name: "features", DType: safetensors.F32, Shape: []int64{int64(rows), 4}}}, nil,
			safetensors.Options{})
		if err != nil {
			t.Fatal(err)
		}

		if err := errors.Join(w.WriteTensor("features", data), w.Finish()); err != nil {
			t.Fatal(err)
		}

		return path
	}

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	text := fmt.Sprintf("{select: all, keep: 0.1, router: {features: external, prompts: {news: %s, rumours: "+
		"%s, sums: %s}}}", features(9, 0), features(9, 1), features(9, 2))
	e, _, r := atWork(t, mediateRecipe(text, trio...), dev, 0)
	rows, err := ReadFeatures(features(1, 2))
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}

	if w, _, err := e.Judge(rows[0], Policy{Select: "top1"}); err != nil || w[2] != 1 {
		t.Errorf("%v, %v", w, err)
	}
	if _, _, err := r.Route(t.Context(), []int32{1}, Policy{}); !errors.Is(err, ErrExternal) {
		t.Errorf("%v", err)
	}
}
