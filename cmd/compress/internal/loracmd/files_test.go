package loracmd

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"
)

// TestFiles: a flag that is given several times names several files, whose names may hold commas; reports have
// one as a text.
func TestFiles(t *testing.T) {
	var f Files
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.Var(&f, "data", "")
	if err := set.Parse([]string{"--data", "a, b.txt"}); err != nil || f.Reported() != "a, b.txt" {
		t.Fatal(err, f)
	}

	if err := set.Parse([]string{"--data=c.txt"}); err != nil ||
		!slices.Equal(f.GetSlice(), []string{"a, b.txt", "c.txt"}) {
		t.Fatal(err, f)
	}

	if list, ok := f.Reported().([]string); !ok || len(list) != 2 {
		t.Errorf("%v", f.Reported())
	}
	if err := set.Parse([]string{"--data="}); err == nil {
		t.Error("a file without a name")
	}
}
