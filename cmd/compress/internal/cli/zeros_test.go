package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestCheckZeros: a 0 that would stand for another number is refused; one that means what it says is not.
func TestCheckZeros(t *testing.T) {
	const said = " 0: want another number than 0 (HINT: leave it out for the default: "
	for _, c := range []struct{ flag, value, want string }{
		{"rank", "0", "--rank" + said + "8; less for few layers)"},
		{"share", "0.0", "--share" + said + "0.25)"},
		{"alpha", "0", "--alpha" + said + "16)"},
		{"steps", "0", "--steps" + said + "one pass)"},
		{"rank", "1", ""},
		{"limit", "0", ""},
		{"swaps", "0", ""},
		{"generations", "0", ""},
		{"name", "0", ""},
	} {
		cmd := &cobra.Command{}
		f := cmd.Flags()
		f.Int("rank", 0, "`N` rank (default: 8; less for few layers)")
		f.Float64("share", 0, "`X` share (default: 0.25)")
		f.Float64("alpha", 16, "`X` scale")
		f.Int("steps", 0, "`N` steps (default: one pass)")
		f.Int("limit", 0, "`N` only the first (default: all)")
		f.Int("swaps", 0, "`N` swaps (default: 0, none)")
		f.Int("generations", 50, "`N` generations")
		f.String("name", "", "`NAME` a name (default: 1)")
		NotZero(cmd, "alpha", "steps")

		if err := f.Set(c.flag, c.value); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := CheckZeros(f); err != nil {
			got = err.Error()
			if !IsUsage(err) {
				t.Errorf("%s: no wrong use", got)
			}
		}
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("--%s %s: %q, want %q", c.flag, c.value, got, c.want)
		}
	}
}
