package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestMarks: a file that a marked flag names is not replaced by the report, and an empty text passes only where
// it is a value.
func TestMarks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data.json")
	if err := os.WriteFile(file, []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--data", file, "--report", file}, 2, "it is an input of this run"},
		{[]string{file, "--report", file}, 2, "it is an input of this run"},
		{[]string{"--data", ""}, 2, "--data is empty"},
		{[]string{"--prompt", ""}, 0, ""},
		{[]string{""}, 2, "argument 1 is empty"},
	} {
		var stderr strings.Builder
		a := New(append([]string{"try"}, c.args...), io.Discard, &stderr)
		cmd := a.Verb(Verb{
			Use: "try [FILE]", Short: "Try", Args: cobra.MaximumNArgs(1),
			Run: func(*Job, []string) (any, error) { return struct{}{}, nil },
		})

		cmd.Flags().String("data", "", "")
		cmd.Flags().String("prompt", "", "")
		Inputs(cmd, "data")
		MayBeEmpty(cmd, "prompt")
		root := &cobra.Command{Use: "compress"}
		root.AddCommand(cmd)
		if code := a.Execute(context.Background(), root); code != c.code || !strings.Contains(stderr.String(), c.text) {
			t.Errorf("%q: exit code %d, %q", c.args, code, stderr.String())
		}
	}
}
