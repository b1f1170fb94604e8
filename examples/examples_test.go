package examples

import (
	"bufio"
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// programs are the examples: the flags of a run that takes a second, what it has to print, and the files that
// it has to leave.
var programs = []struct {
	name, args, want string
	files            []string
}{
	{
		"prune", "-out OUT", `^wanda: 50\.0 % zeros; perplexity 2\.\d\d, 1\.\d\d before\n$`,
		[]string{"model.safetensors", "config.json", "tokenizer.json"},
	},
	{
		"search", "-population 8 -generations 1",
		`^\d+ formulas, best: .* \(Wanda's metric is 1, the dense model 0\): 0\.\d+; generations\n$`, nil,
	},
	{
		"merge", "-out OUT", `^ties of 38 tensors, \d+ bytes\n480096 parameters of \d models as map\[BF16:38\] in .*\n$`,
		[]string{"model.safetensors", "merge.json", "README.md"},
	},
	{
		"adapt", "-steps 4 -out OUT",
		`^mos: 13824 parameters, loss 0\.\d\d to 0\.\d\d in 4 steps\nWanda Thorne works as a \w+`,
		[]string{"adapter_model.safetensors", "adapter_config.json"},
	},
	{
		"editing", "-count 2",
		`(?s)^unedited  0 edits, .* base 0\.\d\d\n.*ft +2 edits, 100 % hold, base .*grace +2 edits, 100 % hold, base 0\.50\n$`, nil,
	},
}

// TestExamples builds and runs every example from the root of the repository.
func TestExamples(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./...")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}

	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			cmd := exec.Command(filepath.Join(dir, p.name), strings.Fields(strings.ReplaceAll(p.args, "OUT", out))...)
			cmd.Dir = ".."
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			text, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}

			if !regexp.MustCompile(p.want).Match(text) {
				t.Errorf("it prints\n%swant\n%s", text, p.want)
			}

			for _, f := range p.files {
				if _, err := os.Stat(filepath.Join(out, f)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestExamplesStandOutside: an example imports what any program may import, and fits on a page or two.
func TestExamplesStandOutside(t *testing.T) {
	list, err := filepath.Glob("*/*.go")
	if err != nil || len(list) != len(programs) {
		t.Fatalf("%d files, %v", len(list), err)
	}

	for _, file := range list {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}

		for _, spec := range f.Imports {
			if strings.Contains(spec.Path.Value, "/internal/") {
				t.Errorf("%s imports %s, which only this module can", file, spec.Path.Value)
			}
		}

		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		lines := slices.DeleteFunc(bytes.Split(text, []byte("\n")), func(l []byte) bool { return len(l) == 0 })
		if n := len(lines); n > 100 {
			t.Errorf("%s has %d lines that are not blank; at most 100", file, n)
		}
	}
}

// TestListed: the package comment tells about every example.
func TestListed(t *testing.T) {
	f, err := os.Open("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	listed := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		for _, p := range programs {
			if strings.Contains(s.Text(), fmt.Sprintf("//\texamples/%s ", p.name)) ||
				strings.Contains(s.Text(), fmt.Sprintf("//\texamples/%s\t", p.name)) {
				listed++
			}
		}
	}

	if listed != len(programs) {
		t.Errorf("%d of %d examples are listed", listed, len(programs))
	}
}
