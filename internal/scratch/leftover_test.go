package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// A folder may be emptied where nothing is in it, or something that outputs have; nobody's papers count as that.
func TestLeftover(t *testing.T) {
	outputs := []string{
		"config.json", "adapter_config.json", "model.safetensors",
		"model-00001-of-00002.safetensors.partial", "journal.jsonl", "samples_a.jsonl",
	}
	others := []string{
		"thesis.txt", "photos", "model.bin", "config.yaml", "samples.txt", ".hidden",
		"journal.jsonl.bak",
	}
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "scratch-test-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)

		has := rapid.SliceOfDistinct(rapid.SampledFrom(outputs), rapid.ID[string]).Draw(t, "outputs")
		foreign := rapid.SliceOfDistinct(rapid.SampledFrom(others), rapid.ID[string]).Draw(t, "others")
		for _, name := range append(append([]string(nil), has...), foreign...) {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}

		err = Leftover(dir, "journal.jsonl", "samples_*.jsonl")
		if refused := len(has) == 0 && len(foreign) > 0; refused != errors.Is(err, ErrForeign) ||
			!refused && err != nil {
			t.Errorf("%q and %q: %v", has, foreign, err)
		}
	})

	if err := Leftover(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Error(err)
	}
}
