package cli

import (
	"strings"
	"testing"
)

// TestAsRun: a command to copy starts with what the reader started.
func TestAsRun(t *testing.T) {
	t.Chdir(t.TempDir())
	for program, want := range map[string]string{
		"compress": "compress ppl m", "./compress": "./compress ppl " +
			"m", "/opt/my tools/compress": "'/opt/my tools/compress' ppl m",
		"/x/go-build123/b001/exe/compress": "go run github.com/modelcompress/compress/cmd/compress@latest ppl m",
	} {
		if got := asRun("compress ppl m", program); got != want {
			t.Errorf("%s: %s", program, got)
		}
	}
	if got := asRun("hf download x", "./compress"); !strings.HasPrefix(got, "hf") {
		t.Error(got)
	}
}
