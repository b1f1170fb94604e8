package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/reportcmd"
)

// TestManual: there is a page for every verb, with every flag that is not hidden, the same one each time, and groff
// finds nothing to say of it.
func TestManual(t *testing.T) {
	groff, missing := exec.LookPath("groff")
	everyVerb(func(c *cobra.Command) {
		text := reportcmd.ManualPage(c)
		if !bytes.Equal(text, reportcmd.ManualPage(c)) {
			t.Errorf("%s: the page differs from run to run", c.CommandPath())
		}

		plain := strings.NewReplacer(`\-`, "-", `\(dq`, `"`, `\(aq`, "'", `\(ga`, "`", `\e`, `\`).Replace(string(text))
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(plain, "--"+f.Name) == f.Hidden && !strings.Contains(c.Example+c.Long, "--"+f.Name) {
				t.Errorf("%s: --%s is not on the page, or is though it is hidden", c.CommandPath(), f.Name)
			}
		})

		if !strings.Contains(plain, c.Example) {
			t.Errorf("%s: the example is not on the page as it is", c.CommandPath())
		}
		if bad := regexp.MustCompile(`\n\n|\.SH [A-Z ]+\n\.PP|\.PP\n\.`).Find(text); bad != nil {
			t.Errorf("%s: %q is nothing that roff needs", c.CommandPath(), bad)
		}

		if missing == nil && (c.Name() == "prune" || c.Name() == "train") {
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

	for _, name := range []string{
		"compress.1", "compress-prune.1", "compress-lora-train.1",
		"compress-eval-tasks-check.1",
	} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// completed is what the shell offers at the end of a command line.
func completed(t *testing.T, args ...string) string {
	var out bytes.Buffer
	a := cli.New(append([]string{cobra.ShellCompRequestCmd}, args...), &out, &bytes.Buffer{})
	if code := a.Execute(context.Background(), root(a)); code != 0 {
		t.Fatalf("%q: exit code %d", args, code)
	}
	return out.String()
}

// TestCompletions: scripts are written for four shells, those that are here accept them, and closed sets,
// folders, files and values that are none of these complete as such.
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

// bashTry calls the function that completion bash defines as bash does. What it needs of the package
// bash-completion stands before.
const bashTry = `
_init_completion() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${words[cword]}; prev=${words[cword-1]}; }
compopt() { :; }
source <(compress completion bash)
complete -p compress >&2
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMPREPLY=(); __start_compress; echo "$*: ${COMPREPLY[*]}"; }
try compress pru
try compress prune --save b
try compress prune compare --methods magnitude,sp
try compress lora combine a --majority-sign fr
try compress convert a --dtype bf
try compress prune --calib no
`

// TestBashCompletes: bash completes verbs, closed sets and parts of lists, and leaves files to itself.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}

	cmd := exec.Command(bash, "--norc", "-c", bashTry)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program(t))+string(os.PathListSeparator)+os.Getenv("PATH"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	want := "compress pru: prune\ncompress prune --save b: bitmask\ncompress prune compare --methods magnitude,sp: " +
		"magnitude\\,sparsegpt\n" +
		"compress lora combine a --majority-sign fr: frequency\n" +
		"compress convert a --dtype bf: bf16\n" +
		"compress prune --calib no: \n"
	if err != nil || string(out) != want || !strings.Contains(stderr.String(), "-o default") {
		t.Errorf("%v: %s\ngot\n%s\nwant\n%s", err, stderr.String(), out, want)
	}
}
