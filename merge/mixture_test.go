package merge

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// mixtureText makes a mixture of the project's small models without prompts.
const mixtureText = `base_model: base
gate_mode: random
experts:
- {source_model: sums, noise_scale: 0.01}
- {source_model: tales}
`

// nanoFolder holds the project's small models.
var nanoFolder = filepath.Join("..", "testdata", "nano")

func parseMixture(t *testing.T, text string) Mixture {
	t.Helper()
	m, err := ParseMixture(filepath.Join(nanoFolder, "mixture.yaml"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMixtureIsResumed: interrupted at any report of progress and continued, the files are those of an undisturbed run.
func TestMixtureIsResumed(t *testing.T) {
	m := parseMixture(t, mixtureText)
	whole := filepath.Join(t.TempDir(), "out")
	first, err := Mix(context.Background(), m, whole, MixtureOptions{Seed: 4})
	if err != nil {
		t.Fatal(err)
	}
	if first.Kind != "mixtral" || first.Experts != 2 || first.BytesOut == 0 {
		t.Errorf("%+v", first)
	}
	for _, stop := range []int64{1, first.BytesOut / 2, first.BytesOut - 1} {
		out := filepath.Join(t.TempDir(), "out")
		ctx, cancel := context.WithCancel(context.Background())
		_, err := Mix(ctx, m, out, MixtureOptions{Seed: 4, Workers: 2, Progress: func(p Progress) {
			if p.Done >= stop {
				cancel()
			}
		}})
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if _, err := Mix(context.Background(), m, out, MixtureOptions{Seed: 4, Resume: true}); err != nil {
			t.Fatal(err)
		}
		sameFolders(t, whole, out)
	}
	if _, err := Mix(context.Background(), m, whole, MixtureOptions{Seed: 4}); !errors.Is(err, ErrExists) {
		t.Errorf("%v", err)
	}
}

// sameFolders compares the files of two folders.
func sameFolders(t *testing.T, a, b string) {
	t.Helper()
	files, err := os.ReadDir(a)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		x, errX := os.ReadFile(filepath.Join(a, f.Name()))
		y, errY := os.ReadFile(filepath.Join(b, f.Name()))
		if errX != nil || errY != nil || !bytes.Equal(x, y) {
			t.Errorf("%s differs: %v %v", f.Name(), errX, errY)
		}
	}
}

func TestMixtureOptionsAreChecked(t *testing.T) {
	m := parseMixture(t, mixtureText)
	out := filepath.Join(t.TempDir(), "out")
	for name, o := range map[string]MixtureOptions{
		"workers": {Workers: -1}, "layout": {Layout: "flat"}, "dtype": {DType: "int8"}, "shard": {MaxShard: -1},
	} {
		if _, err := Mix(context.Background(), m, out, o); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	states := parseMixture(t, "base_model: base\nexperts:\n- {source_model: sums, positive_prompts: [a]}\n- {source_model: tales, positive_prompts: [b]}\n")
	if _, err := Mix(context.Background(), states, out, MixtureOptions{}); !states.NeedsDevice() || !errors.Is(err, ErrOption) {
		t.Errorf("%v", err)
	}
	if _, err := Mix(context.Background(), m, filepath.Join(nanoFolder, "sums"), MixtureOptions{Overwrite: true}); !errors.Is(err, ErrInPlace) {
		t.Errorf("%v", err)
	}
	if _, err := ParseMixture("x.yaml", []byte("experts: 1\n")); !errors.Is(err, ErrRecipe) || Excerpts(err) == "" {
		t.Errorf("%v", err)
	}
}
