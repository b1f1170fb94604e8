package covariance

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
)

func nano(t *testing.T) *lm.Model {
	t.Helper()
	m, err := lm.Load(context.Background(), "../../../../testdata/nano/base", cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// documents are some of token ids, of different lengths.
func documents() [][]int32 { return [][]int32{{5, 6, 7, 8, 9}, {40}, {3, 15, 16, 40, 41, 42, 5, 6}} }

// TestCollect: the moments are Σ k·kᵀ / tokens over every token of every document, as the keys are where a pass over
// the model shows them; layers do not depend on which others are collected.
func TestCollect(t *testing.T) {
	m := nano(t)
	docs := documents()
	layers := []int{0, 2}
	var places []site.Place
	for _, d := range docs {
		for i := range d {
			places = append(places, site.Place{IDs: d, At: i})
		}
	}

	seen, err := site.Look(t.Context(), m, places, layers)
	if err != nil {
		t.Fatal(err)
	}

	var told []int
	got, err := Collect(t.Context(), m, docs, layers, func(done, total int) { told = append(told, done, total) })
	if err != nil {
		t.Fatal(err)
	}
	if got.Tokens != len(places) || !slices.Equal(told, []int{3, 3}) || got.Data == "" {
		t.Errorf("%d tokens, told of %v", got.Tokens, told)
	}

	for _, l := range layers {
		keys := seen.Keys[l]
		want := linalg.New(keys.Cols, keys.Cols)
		linalg.Solver{}.Mul(want, keys, keys, linalg.Product{TransA: true})
		want.Scale(1 / float64(len(places)))

		// products of a dozen float32 rows, summed in float32: a few roundings of 2^-24 of the largest
		tolerance := 1e-6 * want.Norm()
		for i := range want.Data {
			if math.Abs(got.Moments[l].Data[i]-want.Data[i]) > tolerance {
				t.Fatalf("layer %d, element %d: %g, want %g", l, i, got.Moments[l].Data[i], want.Data[i])
			}
		}
	}

	alone, err := Collect(t.Context(), m, docs, []int{2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(alone.Moments[2].Data, got.Moments[2].Data) || alone.Data != got.Data {
		t.Error("layer 2 alone has other moments")
	}
}

// TestCollectFaults: a layer that is not there, and no tokens, are errors.
func TestCollectFaults(t *testing.T) {
	m := nano(t)
	if _, err := Collect(t.Context(), m, documents(), []int{99}, nil); !errors.Is(err, site.ErrOptions) {
		t.Error(err)
	}
	if _, err := Collect(t.Context(), m, nil, []int{0}, nil); !errors.Is(err, site.ErrStatistics) {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Collect(ctx, m, documents(), []int{0}, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestCached: what a folder keeps is taken without a pass over the model, by model, text and layer; what is missing or
// damaged is computed anew, and alike.
func TestCached(t *testing.T) {
	m := nano(t)
	docs := documents()
	dir := filepath.Join(t.TempDir(), "new")
	passes := 0
	cached := func(model string, layers ...int) *Statistics {
		t.Helper()
		s, err := Cached(t.Context(), m, docs, layers, dir, model, func(int, int) { passes++ })
		if err != nil {
			t.Fatal(err)
		}
		return s
	}

	want, err := Collect(t.Context(), m, docs, []int{0, 1}, nil)
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		model  string
		layers []int
		passes int
	}{
		{"m", []int{0}, 1}, {"m", []int{0}, 0}, {"m", []int{0, 1}, 1}, {"m", []int{1, 0}, 0}, {"n", []int{0}, 1},
	} {
		passes = 0
		s := cached(c.model, c.layers...)
		if passes != c.passes || s.Tokens != want.Tokens || s.Data != want.Data || s.Model != c.model {
			t.Errorf("%+v: %d passes, %+v", c, passes, s)
		}
		for _, l := range c.layers {
			if !slices.Equal(s.Moments[l].Data, want.Moments[l].Data) {
				t.Errorf("%+v: layer %d has other moments", c, l)
			}
		}
	}

	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte("damaged"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	passes = 0
	if s := cached("m", 0); passes != 1 || !slices.Equal(s.Moments[0].Data, want.Moments[0].Data) {
		t.Errorf("damaged: %d passes", passes)
	}
}
