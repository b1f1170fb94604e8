package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNothingThatIsNotOursIsTouched: folders of other people stay, whatever their names: in TMPDIR, in the
// place of unfinished outputs, and under the names that --overwrite may replace.
func TestNothingThatIsNotOursIsTouched(t *testing.T) {
	const nano = "../../testdata/nano/"
	dir, temp := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temp)
	keep := func(path string) string {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("mine"), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}

	recipe := filepath.Join(dir, "recipe.yaml")
	text := "merge_method: linear\nmodels:\n  - {model: " + nano + "base, parameters: {weight: 1}}\n  - {model: " +
		nano + "sums, parameters: {weight: 1}}\n"
	if err := os.WriteFile(recipe, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}

	plan := "version: 1\njobs:\n  one: {verb: inspect, args: [" + nano + "base]}\n"
	if err := os.WriteFile(filepath.Join(dir, "plan.yaml"), []byte(plan), 0o666); err != nil {
		t.Fatal(err)
	}

	in := func(name string) string { return filepath.Join(dir, name) }
	for _, model := range []string{"h", "i"} {
		if err := os.CopyFS(in(model), os.DirFS(nano+"base")); err != nil {
			t.Fatal(err)
		}
	}

	for _, c := range []struct {
		mine string // a file that has to stay
		code int
		args []string
	}{
		{filepath.Join(temp, "compress-plan-mine", "notes"), 0, []string{"merge", recipe, "--dry-run"}},
		{filepath.Join(temp, "compress-plan-1234", "notes"), 0, []string{"merge", recipe, "--dry-run"}},
		{in(".a.partial/notes"), 2, []string{"convert", nano + "base", "--out", in("a")}},
		{in(".b.partial/notes"), 2, []string{
			"prune", nano + "base", "--method", "magnitude", "--out", in("b"),
			"--overwrite",
		}},
		{in(".c.partial/notes"), 2, []string{"merge", recipe, "--out", in("c"), "--overwrite"}},
		{in(".d.parts/notes"), 0, []string{"merge", recipe, "--out", in("d")}},
		{in("e/base/notes"), 2, []string{"demo", "--quick", "--out", in("e"), "--overwrite"}},
		{in("h/thesis.txt"), 2, []string{"merge", recipe, "--out", in("h"), "--overwrite"}},
		{in("i/sub/notes"), 2, []string{"merge", recipe, "--out", in("i"), "--overwrite"}},
		{in("notes.yaml"), 2, []string{
			"merge", "recommend", nano + "sums", nano + "news", "--base", nano + "base", "--out", in("notes.yaml"),
		}},
		{in("index.html"), 2, []string{"conflict", recipe, "--html", in("index.html")}},
		{in("log.csv"), 2, []string{
			"lora", "train", nano + "base", "--data", nano + "text/calib.txt", "--steps", "1", "--out", in("j"),
			"--log-csv", in("log.csv"), "--overwrite",
		}},
		{in("f/plan.yaml"), 2, []string{"editeval", "testdata/editeval/nano.yaml", "--out", in("f"), "--overwrite"}},
		{in("g/.run/notes"), 2, []string{"run", in("plan.yaml"), "--out", in("g"), "--overwrite"}},
	} {
		keep(c.mine)
		var stdout, stderr strings.Builder
		code := run(c.args, &stdout, &stderr)
		if text, err := os.ReadFile(c.mine); err != nil || string(text) != "mine" {
			t.Errorf("%q: %s is gone: %v", c.args, c.mine, err)
		}
		if code != c.code {
			t.Errorf("%q: exit code %d, want %d: %s", c.args, code, c.code, &stderr)
		}
	}
}
