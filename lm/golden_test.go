package lm

import (
	"context"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

var writeModels = flag.String("models", "", "write the models of the golden losses to this folder")

// golden is what another implementation computes from a model made by code: per sequence the losses of its tokens.
type golden map[string][][]float64

func goldenIDs() [][]int32 { return tokens(3, 37, 33, 20) }

// Architectures and options beyond the oracle's, against losses that transformers computed (testdata/README.md).
func TestGoldenLosses(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want golden
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	for name, config := range tiny() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if *writeModels != "" {
				dir = filepath.Join(*writeModels, name)
				if err := os.MkdirAll(dir, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			recipe{config: config, seed: 5, std: 0.2}.write(t, dir)
			if want[name] == nil {
				t.Fatal("no golden losses")
			}
			devices(t, func(t *testing.T, dev kernels.Device) {
				m := load(t, dir, dev, Options{})
				r, err := m.Forward(context.Background(), goldenIDs(), ForwardOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for i, seq := range r.LossPerToken {
					for j, l := range seq {
						if d := math.Abs(l - want[name][i][j]); !(d <= tolToken) {
							t.Fatalf("sequence %d, position %d: %.7f, want %.7f", i, j, l, want[name][i][j])
						}
					}
				}
			})
		})
	}
}
