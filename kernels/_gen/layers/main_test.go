package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCommittedFilesAreCurrent regenerates every file and compares it with the committed one.
func TestCommittedFilesAreCurrent(t *testing.T) {
	for name, want := range generate() {
		got, err := os.ReadFile(filepath.Join(target, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run `go run .` in kernels/_gen/layers", name)
		}
	}
}
