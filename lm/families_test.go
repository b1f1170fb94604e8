package lm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// families calls f with the folder of every small checkpoint that transformers has computed: those kept here, made by
// compare/oracle.py, or those in the folder that COMPRESS_FAMILIES names.
func families(t *testing.T, f func(t *testing.T, dir string)) {
	root := filepath.Join("testdata", "families")
	if other := os.Getenv("COMPRESS_FAMILIES"); other != "" {
		root = other
	}

	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		if dir := filepath.Join(root, e.Name()); e.IsDir() {
			t.Run(e.Name(), func(t *testing.T) { f(t, dir) })
		}
	}
}

// Logits, hidden states, losses and the greedy continuation of every family, with both spellings of the configuration.
func TestFamilies(t *testing.T) {
	families(t, func(t *testing.T, dir string) {
		configs, _ := filepath.Glob(filepath.Join(dir, "config*.json"))
		for _, c := range configs {
			config := filepath.Base(c)
			t.Run(config, func(t *testing.T) {
				devices(t, func(t *testing.T, dev kernels.Device) {
					m := load(t, withConfig(t, dir, config), dev, Options{})
					if u := m.Config().Unknown; len(u) > 0 {
						t.Errorf("keys that nobody reads: %q", u)
					}
					checkForward(t, m, openExpected(t, filepath.Join(dir, "oracle")))
				})
			})
		}
	})
}

// Every gradient of every family.
func TestFamilyGradients(t *testing.T) {
	families(t, func(t *testing.T, dir string) {
		devices(t, func(t *testing.T, dev kernels.Device) {
			checkGradients(t, load(t, dir, dev, Options{}), openExpected(t, filepath.Join(dir, "oracle")))
		})
	})
}
