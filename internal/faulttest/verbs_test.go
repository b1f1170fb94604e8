//go:build linux && amd64

package faulttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryVerbThatResumes: a verb that goes on where an interrupted run stopped is part of the campaign, and is
// resumed there with its flag.
func TestEveryVerbThatResumes(t *testing.T) {
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}

	dir := filepath.Join(t.TempDir(), "pages")
	if text, err := exec.Command(binary, "man", "--out", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}

	found, err := filepath.Glob(filepath.Join(dir, "compress-*.1"))
	if err != nil {
		t.Fatal(err)
	}

	resuming := 0
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n\\fB\\-\\-resume\\fR") {
			continue
		}

		resuming++
		words := strings.Split(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "compress-"), ".1"), "-")
		if !slices.ContainsFunc(verbs, func(v verb) bool {
			args := strings.Fields(v.args)
			return v.again == "--resume" && len(args) >= len(words) && slices.Equal(args[:len(words)], words)
		}) {
			t.Errorf("%s has --resume and is not in the table of the campaign", strings.Join(words, " "))
		}
	}

	if resuming < 10 {
		t.Errorf("%d of %d pages tell of --resume", resuming, len(found))
	}
}
