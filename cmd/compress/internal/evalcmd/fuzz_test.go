package evalcmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzReadPlan: a plan of several models. Names of models become folders, so none may lead anywhere else.
func FuzzReadPlan(f *testing.F) {
	for _, s := range []string{
		"models: [a, {name: b, model: c}]\ntasks: [t]\n", "models:\n- {name: ../x, model: y}\ntasks: [t]\n",
		"models: !!timestamp 1\n", "a: &a [x, x]\nb: &b [*a, *a]\nmodels: *b\n",
		"models: [a]\ntasks: [t]\nlimit: 1.5\n", "- 1\n", "models: &m [*m]\n", "? {}\n: 1\n", "models: !!binary x\n",
	} {
		f.Add([]byte(s))
	}

	path := filepath.Join(f.TempDir(), "p.yaml")
	f.Add([]byte(fuzzlimit.Aliases(9) + "models: *a9\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}

		p, err := readPlan(path)
		if err != nil {
			return
		}

		for _, m := range p.Models {
			if !filepath.IsLocal(m.Name) || filepath.Base(m.Name) != m.Name {
				t.Errorf("the folder of %q", m.Name)
			}
		}
	})
}
