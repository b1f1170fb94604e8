package prunecmd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/prune"
)

func file(t testing.TB, text string) string {
	path := filepath.Join(t.TempDir(), "o.yaml")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadOverrides(t *testing.T) {
	got, err := ReadOverrides(file(t, "- roles: [down]\n  sparsity: 0.4\n- {match: 'layers\\.3', pattern: 2:4} # "+
		"text\n- blocks: [0, -1]\n  dense: true\n"))
	if err != nil {
		t.Fatal(err)
	}

	for _, text := range []string{
		"---\n- {blocks: [0], dense: true}\n", "# why\n---\n- {blocks: [0], dense: true}\n",
		"- {blocks: [0], dense: true}\n...\n",
		// an empty document is nothing, as in recipes and plans
		"- {blocks: [0], dense: true}\n---\n", "---\n---\n- {blocks: [0], dense: true}\n",
	} {
		if list, err := ReadOverrides(file(t, text)); err != nil || len(list) != 1 {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}

	want := []prune.Override{
		{Roles: []string{"down"}, Sparsity: new(0.4)},
		{Match: `layers\.3`, Pattern: &prune.Pattern{N: 2, M: 4}},
		{Blocks: []int{0, -1}, Dense: true},
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestOverridesThatAreWrong(t *testing.T) {
	for text, want := range map[string]string{
		"- roles: [q]\n  sparse: 0.4\n":      `:2:3: unknown key "sparse" in an override; did you mean "sparsity"?`,
		"- sparsity: x\n":                    `:1:13: sparsity must be a number, not "x"`,
		"- {blocks: [\"0\"], dense: true}\n": `:1:13: an entry of blocks must be a whole number, not "0"`,
		"- {blocks: [0], sparsity: '0.5'}\n": `:1:27: sparsity must be a number, not "0.5"`,
		"- {blocks: [0], dense: 'true'}\n":   `:1:24: dense must be true or false, not "true"`,
		"- {blocks: [true], dense: true}\n":  `:1:13: an entry of blocks must be a whole number, not "true"`,
		"a: b\n":                             ":1:1: a file of overrides must be a list, not a map",
		"- roles: [down\n":                   ":1:10: ",
		"- roles: down\n":                    ":1:10: roles must be a list",
		"- dense: true\n  dense: false\n":    `:2:3: key "dense" is given twice, first on line 1`,
		"- sparse: 1\n  sparsity: y\n":       `:1:3: unknown key "sparse" in an override; did you mean "sparsity"?; `,
		"- pattern: 4:2\n":                   ":1:12: pattern: bad pruning options: pattern 4:2",
		"- blocks: [99999999999999999999]":   ":1:12: an entry of blocks must be from",
		"!!set {a}":                          ":1:1: the tag !!set has no meaning here",
		"- dense: true\n  blocks: [0]\n---\n- dense: true\n  blocks: [1]\n": ":4:1: a file of overrides is one",
		"- dense: true\n  blocks: [0]\n...\n- dense: true\n":                ":4:1: a file of overrides is one",
		"":                                     "want a list of overrides",
		"[]":                                   "want a list of overrides",
		"# nothing":                            "want a list of overrides",
		strings.Repeat("[", maxOverrides):      ":1:49: lists and maps within each other more than 48 deep",
		strings.Repeat("- ", maxOverrides/2):   ":1:97: lists and maps within each other more than 48 deep",
		strings.Repeat("- ", maxOverrides/2+1): "more than 16384 bytes",
	} {
		_, err := ReadOverrides(file(t, text))
		if !errors.Is(err, ErrOverrides) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}

	if _, err := ReadOverrides(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestNeedsData(t *testing.T) {
	for _, c := range []struct {
		method string
		flags  Flags
		want   bool
	}{
		{"magnitude", Flags{}, false},
		{"magnitude", Flags{Update: prune.ADMM}, true},
		{"magnitude", Flags{Allocation: prune.Alpha}, false},
		{"wanda", Flags{}, true},
		{"pruner-zero", Flags{}, true},
		{"pruner-zero", Flags{Gradients: "g"}, false},
		{"gblm", Flags{Gradients: "g"}, true},
		{"expr:W/Wr2", Flags{}, false},
	} {
		m, err := prune.MetricByName(c.method)
		if err != nil {
			t.Fatal(err)
		}

		o := prune.Options{Metric: m}
		if err := c.flags.Apply(&o); err != nil || o.NeedsCalibration() != c.want {
			t.Errorf("%s %+v: %v, %v", c.method, c.flags, o.NeedsCalibration(), err)
		}
	}
}

// TestWordsAreKnown: the library knows every word that the help shows.
func TestWordsAreKnown(t *testing.T) {
	check := func(word string, o prune.Options) {
		if err := o.Validate(); errors.Is(err, prune.ErrUnknown) {
			t.Errorf("%s: %v", word, err)
		}
	}

	for _, w := range Allocations {
		check(w, prune.Options{Allocation: prune.Allocation{Name: w}})
	}
	for _, w := range Updates {
		check(w, prune.Options{Update: prune.Update{Name: w}})
	}
	for _, w := range Permutations {
		check(w, prune.Options{Permutation: prune.Permutation(w)})
	}
	for _, w := range Groups {
		check(w, prune.Options{Group: prune.Group(w)})
	}
	for _, w := range Estimators {
		check(w, prune.Options{Allocation: prune.Allocation{Name: prune.Alpha, Estimator: w}})
	}
}

// FuzzReadOverrides: no file makes the reader panic, and every error is of the kind that it promises.
func FuzzReadOverrides(f *testing.F) {
	for _, s := range []string{
		"- {roles: [q], dense: true}", "- &a {match: *a}", "- <<: [*x]", "{",
		"- match: \"\x00\"", "!!set {a}", "- |\n x",
	} {
		f.Add([]byte(s))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		if list, err := ReadOverrides(file(t, string(text))); err == nil && len(list) == 0 ||
			err != nil && !errors.Is(err, ErrOverrides) {
			t.Errorf("%d overrides, %v", len(list), err)
		}
	})
}
