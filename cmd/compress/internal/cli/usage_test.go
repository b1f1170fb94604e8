package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 10, ""},
		{"one two three", 7, "one two\nthree"},
		{"prune --method tree", 9, "prune\n--method\ntree"},
		{"first line\nsecond", 20, "first line\nsecond"},
		{"a wordthatislongerthantheline b", 8, "a\nwordthatislongerthantheline\nb"},
		{"äöü äöü", 7, "äöü äöü"},
	} {
		if got := wrap(c.text, c.width); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.text, c.width, got, c.want)
		}
	}
}

// TestInputsOnce: a flag that takes one input refuses a second, and keeps its value, type and text; one that takes
// several takes them.
func TestInputsOnce(t *testing.T) {
	var one string
	var several []string
	cmd := &cobra.Command{}
	cmd.Flags().StringVar(&one, "data", "none", "")
	cmd.Flags().StringArrayVar(&several, "calib", nil, "")
	Inputs(cmd, "data", "calib")

	f := cmd.Flags().Lookup("data")
	if f.Value.Type() != "string" || f.Value.String() != "none" || f.DefValue != "none" {
		t.Errorf("%s %s", f.Value.Type(), f.Value)
	}
	if err := cmd.ParseFlags([]string{"--calib", "x", "--data", "a", "--calib", "y"}); err != nil || one != "a" ||
		strings.Join(several, " ") != "x y" {
		t.Errorf("%q, %q: %v", one, several, err)
	}
	if err := cmd.ParseFlags([]string{"--data", "b"}); err == nil || one != "a" ||
		!strings.Contains(err.Error(), `--data`) || !strings.Contains(err.Error(), `given twice, first as "a"`) {
		t.Errorf("%q: %v", one, err)
	}
}
