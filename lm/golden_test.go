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

func goldenRecipe(config map[string]any) recipe { return recipe{config: config, seed: 5, std: 0.2} }

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

			goldenRecipe(config).write(t, dir)
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

// The gradients of the same models: per tensor the scalar product with a direction, and the norm.
func TestGoldenGradients(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "golden_grads.json"))
	if err != nil {
		t.Fatal(err)
	}

	var want map[string]map[string][2]float64
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}

	for name, config := range tiny() {
		t.Run(name, func(t *testing.T) {
			dir := goldenRecipe(config).write(t, t.TempDir())
			top := 0.0
			for _, w := range want[name] {
				top = max(top, w[1])
			}

			devices(t, func(t *testing.T, dev kernels.Device) {
				got, _ := gradients(t, load(t, dir, dev, Options{}), goldenIDs(), BackwardOptions{})
				if len(got) != len(want[name]) {
					t.Fatalf("%d gradients, want %d", len(got), len(want[name]))
				}

				for tensor, g := range got {
					along, norm := 0.0, 0.0
					for i, v := range g {
						along += float64(v) * (uniform(uint64(len(g)), uint64(i)) - 0.5)
						norm += float64(v) * float64(v)
					}

					w := want[name][tensor]
					limit := 1e-4*w[1] + 1e-6*top // as for the oracle's gradients
					if math.Abs(along-w[0]) > limit || math.Abs(math.Sqrt(norm)-w[1]) > limit {
						t.Errorf("%s: %.7g along the direction, norm %.7g; want %.7g, %.7g", tensor, along,
							math.Sqrt(norm), w[0], w[1])
					}
				}
			})
		})
	}
}
