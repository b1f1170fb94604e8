package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestForeignFlags: every flag of the table is answered in each verb that it is about, spelt with dashes or with
// underscores, and an answer that names a flag is given only where the verb has that flag.
func TestForeignFlags(t *testing.T) {
	a := New(nil, nil, nil)
	for _, f := range foreigners {
		for verb := range strings.SplitSeq(f.verbs, ",") {
			root := &cobra.Command{Use: "compress"}
			c := root
			for _, word := range strings.Fields(verb + " try") {
				if word == "try" && verb != "" {
					break
				}
				next := a.Verb(Verb{Use: word, Args: cobra.NoArgs})
				c.AddCommand(next)
				c = next
			}

			name, isFlag := strings.CutPrefix(f.here, "--")
			if end := strings.IndexAny(name, " ;,="); end >= 0 {
				name = name[:end]
			}

			if isFlag && c.Flags().Lookup(name) == nil {
				everywhere := strings.Contains(f.here, "where a verb has it")
				if f.fits(c) != everywhere {
					t.Errorf("%s %s: answered with --%s, which the verb does not have", verb, f.flags, name)
				}
				c.Flags().String(name, "", "")
			}

			for flag := range strings.FieldsSeq(f.flags) {
				for _, spelt := range []string{flag, strings.ReplaceAll(flag, "-", "_")} {
					if strings.HasPrefix(flag, "-") {
						spelt = flag
					}
					if got := foreignFlag(c, spelt); got == "" {
						t.Errorf("%s %s: no answer", verb, spelt)
					}
				}
			}
		}
	}

	plain := a.Verb(Verb{Use: "plain", Args: cobra.NoArgs})
	if got := foreignFlag(plain, "lora-alpha"); got != "" {
		t.Errorf("%q, of a verb without --alpha", got)
	}
}
