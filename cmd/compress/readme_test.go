package main

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// command is one line of a page's console block and what it says the output is.
type command struct{ line, want string }

// quickStart reads the commands of the console block of the page of the demo.
func quickStart() ([]command, error) {
	text, err := os.ReadFile("../../docs/demo.md")
	if err != nil {
		return nil, err
	}

	var list []command
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllSubmatch(text, -1) {
		for _, part := range strings.Split("\n"+string(block[1]), "\n$ ")[1:] {
			line, want, _ := strings.Cut(part, "\n")
			list = append(list, command{line, want})
		}
	}

	return list, nil
}

// TestDemoPage runs the commands of docs/demo.md and compares their output word by word, but for the demo,
// which takes a minute: unless COMPRESS_DEMO is "full", the script of the demo compares its parts alone.
// Perplexities may differ by 2 %: another processor adds in another order, which can tip near ties between
// weights. Times are left out.
func TestDemoPage(t *testing.T) {
	commands, err := quickStart()
	if err != nil {
		t.Fatal(err)
	}

	if len(commands) != 3 {
		t.Fatalf("%d commands, want 3", len(commands))
	}

	binary, dir := program(t), t.TempDir()
	data, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(data, filepath.Join(dir, "testdata")); err != nil {
		t.Fatal(err)
	}

	for _, c := range commands {
		args, ok := strings.CutPrefix(c.line, "go run ./cmd/compress ")
		if !ok {
			t.Errorf("%q does not run the program", c.line)
			continue
		}

		if args == "demo" && os.Getenv("COMPRESS_DEMO") != "full" {
			continue
		}

		cmd := exec.Command(binary, words(args)...)
		cmd.Dir = dir
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v: %s", c.line, err, stderr.String())
			continue
		}

		compareWords(t, c.line, string(out), c.want)
	}
}

// words splits a command line at blanks outside of single quotes.
func words(line string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
		out = append(out, m[1]+m[2])
	}
	return out
}

var duration = regexp.MustCompile(`in [0-9.]+ s(, [0-9.]+ of them pruning)?`)

func compareWords(t *testing.T, line, got, want string) {
	t.Helper()
	g, w := strings.Fields(duration.ReplaceAllString(got, "")), strings.Fields(duration.ReplaceAllString(want, ""))
	if len(g) != len(w) {
		t.Errorf("%s: the page shows\n%s\nbut it prints\n%s", line, want, got)
		return
	}

	for i := range g {
		x, errX := strconv.ParseFloat(g[i], 64)
		y, errY := strconv.ParseFloat(w[i], 64)
		near := errX == nil && errY == nil && math.Abs(x-y) <= 0.02*math.Abs(y)
		if g[i] != w[i] && !near && !strings.HasPrefix(w[i], "0.0") {
			t.Errorf("%s: the page shows %q, it prints %q", line, w[i], g[i])
		}
	}
}

// asPage compares the output of a demo with that on its page: the parts, which come before the figures, and the
// commands to try next.
func asPage(ts *testscript.TestScript, _ bool, args []string) {
	commands, err := quickStart()
	ts.Check(err)
	parts := func(text string) []string {
		return regexp.MustCompile(`(?m)^[A-Z][a-z]+|^  compress .*`).FindAllString(text, -1)
	}
	if g, w := parts(ts.ReadFile(args[0])), parts(strings.ReplaceAll(commands[0].want, "go run ./cmd/compress",
		"compress")); !slices.Equal(g, w) || len(g) < 9 {
		ts.Fatalf("docs/demo.md has the parts %q, the demo prints %q", w, g)
	}
}

// TestReadmeFirstLines: the README begins with what runs the demo and the tests, both on lines of their own, and has at
// most one screen and a half. Its three commands on a real model are run by TestTutorials.
func TestReadmeFirstLines(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}

	lines := strings.Split(string(readme), "\n")
	first := strings.Join(lines[:12], "\n")
	if !strings.Contains(first, "\n\n    go run ./cmd/compress demo\n    go test ./...\n\n") {
		t.Errorf("the first lines of the README do not run the demo and the tests:\n%s", first)
	}
	if len(lines) > 150 {
		t.Errorf("the README has %d lines: long texts belong to pages of docs", len(lines))
	}
}

// TestReadmeLibrary: the README's library lines are the package's example, which the tests run.
func TestReadmeLibrary(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}

	example, err := os.ReadFile("../../example_test.go")
	if err != nil {
		t.Fatal(err)
	}

	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("README.md has no Go block")
	}

	body := strings.ReplaceAll(string(example), "\n\t", "\n")
	if !strings.Contains(body, string(block[1])) {
		t.Errorf("these lines of the README are not those of example_test.go:\n%s", block[1])
	}
}
