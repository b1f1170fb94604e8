package edit

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm"
)

// FuzzMerge: a file of hyper-parameters is taken or refused; values out of range are found before anything is
// computed with them.
func FuzzMerge(f *testing.F) {
	for _, s := range []string{
		"layers: [1, 2]\nsteps: 3\nlearning_rate: 0.5\n", "layers: 1.5", "templates: [[\"{}\"], [\"a {}\"]]\n",
		"steps: !!timestamp 1\n", "a: &a [*a]\n", "a: &a [1,2]\nb: &b [*a,*a]\nc: [*b,*b]\n", "steps: 1e99", "- 1",
		"? [a]\n: b\n", "kl_factor: .nan\nclamp: .inf\n",
	} {
		f.Add([]byte(s))
	}

	f.Add([]byte(fuzzlimit.Aliases(9) + "layers: *a9\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		h := automatic("memit", 12)
		if err := h.Merge(text); err != nil {
			if !errors.Is(err, ErrOptions) {
				t.Error(err)
			}
			return
		}

		if err := h.Validate(12); err == nil && (len(h.Layers) == 0 || h.Steps < 1) {
			t.Errorf("%+v", h)
		}
	})
}

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
		h, err := Defaults(c.method, &c.config)
		if err != nil || h.LearningRate != c.want {
			t.Errorf("%s, %d wide: %g, want %g (%v)", c.method, c.config.Hidden, h.LearningRate, c.want, err)
		}
	}
}

// TestIdle: keys of other methods are named, those of all methods are not; every key that a method alone reads is one
// of the hyper-parameters.
func TestIdle(t *testing.T) {
	const text = "anchor: true\nsteps: 5\nmask: 0.5\nlayers: [1]\n"
	for method, want := range map[string][]string{
		"grace": {"anchor", "mask"}, "rome": {"mask"}, "wise": {"anchor"}, "ultraedit": {"anchor", "mask"},
	} {
		if got := Idle(method, []byte(text)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", method, got, want)
		}
	}

	var keys []string
	for f := range reflect.TypeFor[HParams]().Fields() {
		keys = append(keys, f.Tag.Get("yaml"))
	}
	for key, list := range readBy {
		if !slices.Contains(keys, key) {
			t.Errorf("%s is no hyper-parameter", key)
		}
		for _, method := range list {
			if !slices.Contains(Methods(), method) {
				t.Errorf("%s: no method %s", key, method)
			}
		}
	}
}
