package hparams

import (
	"testing"

	"github.com/modelcompress/compress/lm"
)

// TestWideRate: fine-tuning takes smaller steps in wide models, unless a rate was published for the model.
func TestWideRate(t *testing.T) {
	for _, c := range []struct {
		method string
		config lm.Config
		want   float64
	}{
		{"ft", lm.Config{ModelType: "llama", Layers: 4, Hidden: 64}, 1e-3},
		{"ft", lm.Config{ModelType: "llama", Layers: 30, Hidden: 576}, 2e-4},
		{"ft", lm.Config{ModelType: "gptj", Layers: 28, Hidden: 4096}, 5e-4},
		{"ft-m", lm.Config{ModelType: "llama", Layers: 30, Hidden: 576}, 2e-4},
	} {
		h, err := DefaultsOf(c.method, &c.config)
		if err != nil || h.LearningRate != c.want {
			t.Errorf("%s, %d wide: %g, want %g (%v)", c.method, c.config.Hidden, h.LearningRate, c.want, err)
		}
	}
}
