package loracmd

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
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

// TestShares: there is a weight for each file, none negative and not all of them 0; what is wrong is told in one line.
func TestShares(t *testing.T) {
	two := Files{"a", "b"}
	for text, want := range map[string][]float64{"": nil, "3,1": {3, 1}, "0, 2.5": {0, 2.5}} {
		if got, err := shares(text, two); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got, err := shares("1,2,3", nil); err != nil || len(got) != 3 { // the files may stand in settings to come
		t.Errorf("%v, %v", got, err)
	}

	for text, want := range map[string]string{
		"1": "1 weights for 2 files", "1,2,3": "3 weights for 2 files", "1,-2": "-2 is negative",
		"0,0":   "all weights are 0",
		"1,NaN": `"NaN" is no number`, "1,inf": `"inf" is no number`, "1,": `"" is no number`,
	} {
		if _, err := shares(text, two); !cli.IsUsage(err) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
