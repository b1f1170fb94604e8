// Package clitest runs the work of verbs in tests: with the flags that all verbs have, and what they say kept apart.
package clitest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// Said is what a run of a verb has said and returned.
type Said struct {
	Stdout, Stderr string
	Result         any   // of the work
	Err            error // of the run, which may end before the work
	Code           int   // exit code
}

// Run does the work of a verb that is called "try" and has no flags of its own. flags are those of all verbs; without
// --device the reference device is taken, which every machine has.
func Run(t testing.TB, work func(j *cli.Job) (any, error), flags ...string) Said {
	t.Helper()
	var stdout, stderr bytes.Buffer
	var said Said

	a := cli.New(append([]string{"try", "--device=ref"}, flags...), &stdout, &stderr)
	root := &cobra.Command{Use: "compress"}
	root.AddCommand(a.Verb(cli.Verb{
		Use: "try", Short: "x", Args: cobra.NoArgs,
		Run: func(j *cli.Job, _ []string) (any, error) {
			r, err := work(j)
			said.Result, said.Err = r, err
			return r, err
		},
	}))

	said.Code = a.Execute(t.Context(), root)
	said.Stdout, said.Stderr = stdout.String(), stderr.String()

	return said
}

// Show is the stdout and stderr of work that only prints.
func Show(t testing.TB, work func(j *cli.Job), flags ...string) (stdout, stderr string) {
	t.Helper()
	said := Run(t, func(j *cli.Job) (any, error) { work(j); return struct{}{}, nil }, flags...)
	if said.Code != 0 {
		t.Fatalf("exit code %d: %s", said.Code, said.Stderr)
	}
	return said.Stdout, said.Stderr
}

// Refused reports a test failure unless the work was refused as a wrong use, before it began, with a message that has
// a text.
func Refused(t testing.TB, said Said, text string) {
	t.Helper()
	switch {
	case said.Code != 2 || said.Result != nil && !isNull(said.Result):
		t.Errorf("exit code %d, result %v; want a refusal: %s", said.Code, said.Result, said.Stderr)
	case !strings.Contains(said.Stderr, text):
		t.Errorf("it says %q, which lacks %q", said.Stderr, text)
	case said.Stdout != "":
		t.Errorf("it printed %q before it refused", said.Stdout)
	case strings.Count(said.Stderr, "\n") != 1:
		t.Errorf("%q is not one line", said.Stderr)
	}
}

// isNull tells a result that is a pointer to nothing.
func isNull(result any) bool {
	text, err := json.Marshal(result)
	return err == nil && string(text) == "null"
}
