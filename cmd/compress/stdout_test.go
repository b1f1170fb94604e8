package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestFullStdout: what cannot be printed is a failure, said in one line, whatever the verb.
func TestFullStdout(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("/dev/full:", err)
	}
	defer full.Close()

	dir := t.TempDir()
	recipe := filepath.Join(dir, "recipe.yaml")
	nano := "../../testdata/nano/"
	text := "merge_method: linear\nmodels:\n  - {model: " + nano + "base, parameters: {weight: 1}}\n  - {model: " +
		nano + "sums, parameters: {weight: 1}}\n"
	if err := os.WriteFile(recipe, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}

	lines := []string{
		"version", "version --json", "--version", "--help", "help prune", "schema", "schema ppl", "completion bash",
		"completion zsh",
		"tokenize " + nano + "base --text a", "inspect " + nano + "base",
		"inspect diff " + nano + "base " + nano + "sums", "inspect " + nano + "base --json",
		"eval tasks list", "eval tasks show arc_easy", "merge " + recipe + " --dry-run",
		"merge " + recipe + " -q --dry-run",
		"generate " + nano + "base --prompt a --max-tokens 2",
		"ppl " + nano + "base --data " + nano + "text/test.txt --seqlen 64 --limit 1",
		"prune " + nano + "base --method magnitude --out " + filepath.Join(dir, "pruned"),
		"man --out " + filepath.Join(dir, "man"),
		"prune " + nano + "base -q --method magnitude --out " + filepath.Join(dir, "quiet"),
		"convert " + nano + "base -q --out " + filepath.Join(dir, "converted"),
	}

	everyVerb(func(c *cobra.Command) {
		lines = append(lines, strings.TrimPrefix(c.CommandPath(), "compress ")+" --help")
	})

	for _, line := range lines {
		var stderr strings.Builder
		code := run(strings.Fields(line), full, &stderr)
		said := stderr.String()
		if i := strings.LastIndexByte(strings.TrimSuffix(said, "\n"), '\n'); i >= 0 && !strings.Contains(line, "-q") {
			said = said[i+1:] // remarks of the work
		}
		if code != 1 || strings.Count(said, "\n") != 1 || !strings.Contains(said, "no space left on device") {
			t.Errorf("%s: exit code %d, %q", line, code, stderr.String())
		}
	}
}
