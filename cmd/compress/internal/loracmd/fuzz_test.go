package loracmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzConfigure: a file of settings sets flags that it may set, and no other.
func FuzzConfigure(f *testing.F) {
	for _, s := range []string{
		"rank: 8\ntargets: [q_proj, v_proj]\n", "rank: &a [1]\n", "a: &a [x, x]\nb: &b [*a, *a]\nrank: [*b]\n",
		"rank: !!timestamp 1\n", "rank: 1\n---\nrank: 2\n", "? [1]\n: 2\n", "seed: 5\n", "rank: 1e400\n", "- 1\n",
		"rank: {a: 1}\n", "<<: *x\n",
	} {
		f.Add([]byte(s))
	}

	f.Add([]byte(fuzzlimit.Aliases(9) + "rank: *a9\ntargets: *a9\n"))
	path := filepath.Join(f.TempDir(), "c.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}

		flags := pflag.NewFlagSet("train", pflag.ContinueOnError)
		flags.Int("rank", 0, "")
		flags.StringSlice("targets", nil, "")
		flags.Uint64("seed", 0, "")
		if err := Configure(path, flags, []string{"rank", "targets"}); err == nil && flags.Changed("seed") {
			t.Error("a flag that is none of the settings was set")
		}
	})
}
