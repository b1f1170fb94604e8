package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/manual"
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
)

// TestManual: there is a page for every verb, with every flag, the same one each time, and groff finds nothing to say of it.
func TestManual(t *testing.T) {
	groff, missing := exec.LookPath("groff")
	everyVerb(func(c *cobra.Command) {
		text := manual.Page(c)
		if !bytes.Equal(text, manual.Page(c)) {
			t.Errorf("%s: the page differs from run to run", c.CommandPath())
		}
		plain := strings.NewReplacer(`\-`, "-", `\(dq`, `"`, `\(aq`, "'", `\(ga`, "`", `\e`, `\`).Replace(string(text))
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(plain, "--"+f.Name) {
				t.Errorf("%s: no --%s on the page", c.CommandPath(), f.Name)
			}
		})
		if !strings.Contains(plain, c.Example) {
			t.Errorf("%s: the example is not on the page as it is", c.CommandPath())
		}
		if missing == nil && (c.Name() == "prune" || c.Name() == "lora") {
			cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z")
			cmd.Stdin = bytes.NewReader(text)
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%s: groff: %v %s", c.CommandPath(), err, out)
			}
		}
	})
	dir := filepath.Join(t.TempDir(), "man")
	for range 2 { // the second time over the first
		if code := run([]string{"man", "--out", dir, "-q"}, &bytes.Buffer{}, &bytes.Buffer{}); code != 0 {
			t.Fatalf("exit code %d", code)
		}
	}
	for _, name := range []string{"compress.1", "compress-prune.1", "compress-lora-train.1", "compress-eval-tasks-check.1"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// completed is what the shell offers at the end of a command line.
func completed(t *testing.T, args ...string) string {
	var out bytes.Buffer
	a := shell.New(append([]string{cobra.ShellCompRequestCmd}, args...), &out, &bytes.Buffer{})
	if code := a.Execute(context.Background(), root(a)); code != 0 {
		t.Fatalf("%q: exit code %d", args, code)
	}
	return out.String()
}

// TestCompletions: scripts are written for four shells, those that are here accept them, and closed sets, folders, files and
// values that are none of these complete as such.
func TestCompletions(t *testing.T) {
	for _, name := range []string{"bash", "zsh", "fish", "powershell"} {
		var out bytes.Buffer
		if code := run([]string{"completion", name}, &out, &bytes.Buffer{}); code != 0 || out.Len() < 1000 {
			t.Errorf("%s: exit code %d, %d bytes", name, code, out.Len())
		}
		if path, err := exec.LookPath(name); err == nil && name != "powershell" {
			cmd := exec.Command(path, "-n", "/dev/stdin")
			cmd.Stdin = &out
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s -n: %v: %s", name, err, text)
			}
		}
	}
	for _, c := range []struct {
		line, want string
	}{
		{"pru", "prune\t"},
		{"prune --method ", "sparsegpt\n"},
		{"prune --device c", "cuda:0\n"},
		{"prune compare --methods magnitude,w", "magnitude,wanda\n"},
		{"prune --sparsity ", ":4\n"}, // nothing, and no files
		{"prune --calib ", ":0\n"},    // files
		{"prune --out ", ":16\n"},     // folders
		{"prune ", ":0\n"},            // a model: files and folders
		{"version ", ":4\n"},
		{"lora train --kind ", "prolora\n"},
		{"lora train --targets q,", "q,gate\n"},
		{"merge --missing ", "copy\n"},
		{"eval --tasks mml", "mmlu\n"},
		{"schema lora", "lora train\n"},
		{"bench ", "kernels\n"},
	} {
		words := strings.Split(c.line, " ")
		if got := completed(t, words...); !strings.Contains(got, c.want) {
			t.Errorf("%q offers %q, want %q", c.line, got, c.want)
		}
	}
}
