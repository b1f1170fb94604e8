package lm

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/kernels/ref"
)

// FuzzLoad: a checkpoint from a stranger, of every architecture to begin with, plain, with experts in one
// tensor and packed as bitmasks. What loads can be run, or says why not.
func FuzzLoad(f *testing.F) {
	all := everyTiny()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		config := maps.Clone(all[name])
		if config["layer_types"] == nil {
			config["num_hidden_layers"] = 1 // small inputs are tried more often
		}

		small := recipe{config: config, seed: 1}.write(f, f.TempDir())
		addFolder(f, small, `{"eos_token_id":[2,3]}`)
		if slices.Contains(mixtures, name) {
			addFolder(f, fuse(f, small), `{}`)
		}

		if name == "llama" {
			_, packed := pairOf(f, small, inBlocks)
			addFolder(f, packed, `{"eos_token_id":7}`)
		}
	}

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, config, generation []byte, header string, data []byte) {
		defer fuzzlimit.Watch(t, len(config)+len(generation)+len(header)+len(data))()

		for name, text := range map[string][]byte{
			"config.json": config, "generation_config.json": generation,
			"model.safetensors": fuzzlimit.File(header, data),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
				t.Fatal(err)
			}
		}

		m, err := Load(ctx, dir, ref.New(), Options{})
		if err != nil {
			return
		}
		defer m.Close()

		if r, err := m.Forward(ctx, [][]int32{{0, 0, 0}}, ForwardOptions{Logits: true}); err == nil &&
			r.Logits.Rows != 3 {
			t.Errorf("%d rows of logits", r.Logits.Rows)
		}
	})
}

// addFolder adds the files of a checkpoint as a seed.
func addFolder(f *testing.F, dir, generation string) {
	f.Helper()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		f.Fatal(err)
	}

	if !json.Valid(config) {
		f.Fatal("no JSON")
	}

	file, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		f.Fatal(err)
	}

	header, data := fuzzlimit.Parts(file)
	f.Add(config, []byte(generation), header, data)
}
