package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// trial is a release into a folder of the test, of the files of this repository.
func trial(t *testing.T, version string) *release {
	t.Helper()
	return &release{
		src: "..", out: t.TempDir(), version: version, commit: "0123abc", url: homepage + "/releases/download",
	}
}

// TestAbsolute: links between files of the repository lead to the commit, others stay.
func TestAbsolute(t *testing.T) {
	r := trial(t, "0.1.0")
	for page, want := range map[string]string{
		"[a](docs/a.md#b) ![p](docs/p.svg)": "[a](" + homepage + "/blob/0123abc/docs/a.md#b) ![p](" + homepage +
			"/raw/0123abc/docs/p.svg)",
		"[a](#b), [c](https://example.org/d)": "[a](#b), [c](https://example.org/d)",
	} {
		if got := string(r.absolute([]byte(page))); got != want {
			t.Errorf("%s: %s", page, got)
		}
	}
}

// TestNotes: the page of a release is the changelog's lead, all of whose links lead somewhere else than beside it.
func TestNotes(t *testing.T) {
	r := trial(t, "0.1.0-dev")
	if err := r.notes(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.out, "NOTES.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	if !strings.HasPrefix(page, "# compress 0.1.0-dev\n\n") || strings.Contains(page, "### All changes") ||
		!strings.Contains(page, "[All changes]("+homepage+"/blob/0123abc/CHANGELOG.md)") {
		t.Errorf("%.300s", page)
	}
	for _, m := range link.FindAllStringSubmatch(page, -1) {
		t.Errorf("a link to %s", m[3])
	}
}

// TestFormula: the formula is Ruby, where there is one, and has the sum of every archive beside its name.
func TestFormula(t *testing.T) {
	r := trial(t, "0.1.0")
	sums := map[string]string{}
	for i, of := range targets[:4] {
		sums[of.os+"/"+of.arch] = strings.Repeat(string(rune('a'+i)), 64)
	}
	if err := r.formula(sums); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(r.out, distribution+".rb")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for platform, sum := range sums {
		name := "/v0.1.0/compress_0.1.0_" + strings.ReplaceAll(platform, "/", "_") + ".tar.gz\"\n      sha256 \"" +
			sum + "\""
		if !strings.Contains(string(text), name) {
			t.Errorf("%s is not there", name)
		}
	}
	if ruby, err := exec.LookPath("ruby"); err == nil {
		if out, err := exec.Command(ruby, "-wc", path).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// TestChanges: lines of the Debian package's changelog have less than 80 columns, or are an address alone, or the
// signature, which has to be one line.
func TestChanges(t *testing.T) {
	r := trial(t, "0.1.0")
	r.commit = strings.Repeat("0123abcd", 5)
	text := string(r.changes("0.1.0~dev"))
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); len(line) >= 80 && len(strings.Fields(line)) > 1 && line[:4] != " -- " {
			t.Errorf("%q has %d columns", line, len(line))
		}
	}
	if want := homepage + "/blob/" + r.commit + "/CHANGELOG.md"; !slices.Contains(strings.Fields(text), want) {
		t.Errorf("%s is not in\n%s", want, text)
	}
}

// TestPythonVersion: versions between tags are such that pip takes.
func TestPythonVersion(t *testing.T) {
	for of, want := range map[string]string{"0.1.0": "0.1.0", "0.1.0-dev+1a2b": "0.1.0.dev0+1a2b"} {
		if got := pythonVersion(of); got != want {
			t.Errorf("%s: %s", of, got)
		}
	}
}
