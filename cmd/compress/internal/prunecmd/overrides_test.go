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
		"- roles: [q]\n  sparse: 0.4\n":      `:2:3: bad file of overrides: unknown field "sparse"`,
		"- sparsity: x\n":                    `:1:13: bad file of overrides: found string; want a number`,
		"- {blocks: [\"0\"], dense: true}\n": `: bad file of overrides: line 1: blocks: found the text "0"; want whole numbers`,
		"- {blocks: [0], sparsity: '0.5'}\n": `: bad file of overrides: line 1: sparsity: found the text "0.5"; want a number`,
		"a: b\n":                             ":1:2: ",
		"- roles: [down\n":                   ":1:10: ",
		"- roles: down\n":                    ":1:10: ",
		"- dense: true\n  dense: false\n":    `:2:3: bad file of overrides: mapping key "dense" already defined`,
		"- pattern: 4:2\n":                   ": bad file of overrides: bad pruning options: pattern 4:2",
		"- blocks: [99999999999999999999]":   "",
		"!!set {a}":                          "a tag (!!)",
		"- dense: true\n  blocks: [0]\n---\n- dense: true\n  blocks: [1]\n": "line 3 begins another document",
		"- dense: true\n  blocks: [0]\n---\n":                               "line 3 begins another document",
		"---\n---\n- dense: true\n  blocks: [0]\n":                          "want a list of overrides",
		"- dense: true\n  blocks: [0]\n...\n- dense: true\n":                "",
		"":                                     "want a list of overrides",
		"[]":                                   "want a list of overrides",
		"# nothing":                            "want a list of overrides",
		strings.Repeat("[", maxOverrides):      ":1:16384: ",
		strings.Repeat("- ", maxOverrides/2):   "",
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
		if err := c.flags.Apply(&o); err != nil || NeedsData(o) != c.want {
			t.Errorf("%s %+v: %v, %v", c.method, c.flags, NeedsData(o), err)
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
