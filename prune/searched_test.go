package prune

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/modeltest"
	"github.com/modelcompress/compress/lm"
)

// searched prunes with an allocation by search, with the figures of an earlier run and into those of this one.
func searched(t *testing.T, dir string, threads int, o Options, known map[string]float64) (*Report, map[string]float64,
	map[string]string,
) {
	t.Helper()
	measured := map[string]float64{}
	o.Known = func(key string) (float64, bool) { v, ok := known[key]; return v, ok }
	o.Note = func(key string, v float64) error { measured[key] = v; return nil }
	out := filepath.Join(t.TempDir(), "out")
	r := prunedTo(t, load(t, dir, threads, lm.Options{Stream: threads > 1}), windows(8, 12, 61), o, out)
	return r, measured, tensorsOf(t, out)
}

// TestSearch: an allocation that was searched for removes as many weights as a uniform one, predicts no worse on the
// calibration data, does not depend on threads, and goes on with what an interrupted search has measured.
func TestSearch(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(4), "gpt2": gpt2(), "mixtral": mixtral()} {
		dir := c.write(t, filepath.Join(t.TempDir(), name), nil)
		for _, metric := range []Metric{Wanda(), Magnitude()} {
			o := Options{Metric: metric, Sparsity: .5}
			m := load(t, dir, 1, lm.Options{})
			even := prunedTo(t, m, windows(8, 12, 61), o, filepath.Join(t.TempDir(), "even"))
			o.Allocation = Allocation{Name: Search, Generations: 5, Offspring: 4, Seed: 3}
			r, measured, weights := searched(t, dir, 1, o, nil)

			if s := r.Searched; s == nil || s.Generations != 5 || !(s.Best <= s.Start) ||
				s.Best < s.Start != (s.Better > 0) {
				t.Errorf("%s %s: %+v", name, metric.Name, s)
			}
			// Blocks gain what others lose, but for what masks of rows of a few dozen weights are rounded by.
			mean := 0.0
			for _, b := range r.Blocks {
				mean += b.Target / float64(len(r.Blocks))
			}
			if got, want := r.Total.Zeros, even.Total.Zeros; math.Abs(mean-.5) > 1e-9 ||
				math.Abs(float64(got-want)) > .05*float64(want) {
				t.Errorf("%s %s: %d zeros, uniform %d", name, metric.Name, got, want)
			}
			for _, b := range r.Blocks {
				steps := (b.Target - .5) / searchStep
				if math.Abs(steps-math.Round(steps)) > 1e-9 || math.Abs(steps) > searchSides+.1 {
					t.Errorf("%s %s: block %d: target %g", name, metric.Name, b.Index, b.Target)
				}
			}

			half := map[string]float64{}
			for key, v := range measured {
				if len(half) < len(measured)/2 {
					half[key] = v
				}
			}
			_, rest, again := searched(t, dir, 2, o, half)
			if !maps.Equal(again, weights) {
				t.Errorf("%s %s: other weights after an interruption", name, metric.Name)
			}
			for key, v := range rest {
				if _, twice := half[key]; twice || measured[key] != v {
					t.Errorf("%s %s: %s is %g, was %g", name, metric.Name, key, v, measured[key])
				}
			}
		}
	}
}

// TestSearchGains: where one block hardly matters, the search takes from it.
func TestSearchGains(t *testing.T) {
	dir := nano + "base"
	o := Options{Sparsity: .6, Allocation: Allocation{Name: Search, Generations: 8, Offspring: 6}}
	r, _, _ := searched(t, dir, 2, o, nil)
	if s := r.Searched; !(s.Best < .95*s.Start) {
		t.Errorf("%+v", s)
	}
}

// watched is a context that looks, now and then, at what is in memory.
type watched struct {
	context.Context
	asked int
	look  func()
}

func (w *watched) Err() error {
	if w.asked++; w.asked%31 == 0 {
		w.look()
	}
	return w.Context.Err()
}

// TestSearchMemory: a search holds a block and what flows between blocks, whatever the number of blocks: neither the
// weights of candidates nor the levels of weights, nor pages of either file; and its scratch file goes with it.
func TestSearchMemory(t *testing.T) {
	const weights = 69_632 // of a block of deep
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	o := Options{
		Metric: Wanda(), Sparsity: .5, Allocation: Allocation{Name: Search, Generations: 2, Offspring: 4},
	}

	most, files := map[int]int64{}, map[int]int64{}
	for _, blocks := range []int{8, 64} {
		dir := deep(blocks).write(t, filepath.Join(t.TempDir(), "m"), nil)
		m := load(t, dir, 2, lm.Options{Stream: true})
		if got := o.SearchDisk(m); got != int64(blocks)*weights/2 {
			t.Errorf("%d bytes of levels, %d weights", got, blocks*weights/2)
		}

		before, mapped := liveHeap(), modeltest.Mapped(t)
		looks := 0
		w := &watched{Context: ctx, look: func() {
			looks++
			most[blocks] = max(most[blocks], liveHeap()-before)
			files[blocks] = max(files[blocks], modeltest.Mapped(t)-mapped)
		}}

		o := o
		o.Events.Tensor = func(Tensor) {
			w.look = func() {} // the search is over
		}
		if _, err := Model(w, m, windows(8, 12, 61), o); err != nil {
			t.Fatal(err)
		}
		if looks < 10 {
			t.Errorf("%d looks", looks)
		}
	}

	// Of a block stay names and places of its tensors, in the model, in that of the candidates and in the file of
	// levels: 19 kB. Its levels are twice as many bytes, its weights four times as many.
	if grown := (most[64] - most[8]) / (64 - 8); grown > weights/3 {
		t.Errorf("%d bytes over 8 blocks, %d over 64", most[8], most[64])
	}
	if grown := (files[64] - files[8]) / (64 - 8); grown > weights/4 {
		t.Errorf("%d bytes of files over 8 blocks, %d over 64", files[8], files[64])
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestSearchRecalled: what a finished output's search came to is taken from its record, and a record that says
// something else is refused.
func TestSearchRecalled(t *testing.T) {
	dir := nano + "base"
	out := filepath.Join(t.TempDir(), "out")
	o := Options{Sparsity: .6, Allocation: Allocation{Name: Search, Generations: 3, Offspring: 4}}
	m := load(t, dir, 2, lm.Options{Stream: true})
	first := prunedTo(t, m, windows(8, 12, 61), o, out)

	o.Note = func(key string, _ float64) error { t.Errorf("%s was measured again", key); return nil }
	again := func() (*Report, error) {
		s, err := m.NewSaver(out, lm.SaveOptions{Fingerprint: "test", Resume: true})
		if err != nil {
			t.Fatal(err)
		}
		o.Out = s
		return Model(ctx, m, windows(8, 12, 61), o)
	}
	r, err := again()
	if err != nil || !reflect.DeepEqual(r.Searched, first.Searched) || len(r.Searched.Sparsities) != m.Blocks() {
		t.Errorf("%+v, %v; was %+v", r.Searched, err, first.Searched)
	}
	for l, b := range r.Blocks {
		if b.Target != first.Blocks[l].Target {
			t.Errorf("block %d: %g, was %g", l, b.Target, first.Blocks[l].Target)
		}
	}

	file := filepath.Join(out, ManifestFile)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`"others": [`, `"sparsities": [7,`} {
		cut := strings.Replace(string(text), `"sparsities": [`, bad, 1)
		if err := os.WriteFile(file, []byte(cut), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := again(); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestSearchScratch: a search that cannot make its scratch file says so before anything is measured.
func TestSearchScratch(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	o := Options{Sparsity: .5, Allocation: Allocation{Name: Search, Generations: 1}}
	o.Events.Step = func(s Step) { t.Errorf("%+v", s) }
	m := load(t, nano+"base", 2, lm.Options{Stream: true})
	if _, err := Model(ctx, m, windows(2, 12, 61), o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder for temporary files: %v", err)
	}
}

// TestSearchRefused: what a search does not go with, and what goes with it alone.
func TestSearchRefused(t *testing.T) {
	search := Allocation{Name: Search}
	for text, o := range map[string]Options{
		"belong to search": {Sparsity: .5, Allocation: Allocation{Generations: 3}},
		"-1 generations":   {Sparsity: .5, Allocation: Allocation{Name: Search, Generations: -1}},
		"sparsegpt":        {Metric: SparseGPT(), Sparsity: .5, Allocation: search},
		"oats":             {Metric: OATS(), Sparsity: .5, Allocation: search},
		"pattern 2:4":      {Pattern: Pattern{2, 4}, Allocation: search},
		"group share":      {Sparsity: .5, Group: Share, Allocation: search},
		"overrides":        {Sparsity: .5, Allocation: search, Overrides: []Override{{Match: "q", Dense: true}}},
		"from elsewhere":   {Sparsity: .5, Allocation: search, Norms: &Norms{Sequences: 1}},
	} {
		if err := o.Validate(); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
