package hparams

import (
	"errors"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/fuzzlimit"
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
			if !errors.Is(err, site.ErrOptions) {
				t.Error(err)
			}
			return
		}

		if err := h.Validate(12); err == nil && (len(h.Layers) == 0 || h.Steps < 1) {
			t.Errorf("%+v", h)
		}
	})
}
