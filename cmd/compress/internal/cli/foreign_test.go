package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestForeignFlags: every flag of the table is answered in the verb that it is about, by the entry that says so; an
// answer that is a flag here is given where the verb has it, and only there.
func TestForeignFlags(t *testing.T) {
	a := New(nil, nil, nil)
	for _, f := range foreigners {
		root := &cobra.Command{Use: "compress"}
		parent := root
		verb, _, _ := strings.Cut(f.verbs, ",")
		if verb == "" {
			verb = "any"
		}

		words := strings.Fields(verb)
		for i, word := range words {
			c := a.Verb(Verb{Use: word, Args: cobra.NoArgs})
			parent.AddCommand(c)
			parent = c
			if i < len(words)-1 {
				continue
			}

			name, isFlag := strings.CutPrefix(f.here, "--")
			if end := strings.IndexAny(name, " ;,="); end >= 0 {
				name = name[:end]
			}
			if isFlag && c.Flags().Lookup(name) == nil {
				if f.verbs == "" && !strings.Contains(f.here, "where a verb has it") && foreignFlag(c, first(f.flags)) == answer(f) {
					t.Errorf("%s: answered with %s, which the verb does not have", f.flags, f.here)
				}
				c.Flags().String(name, "", "")
			}

			for flag := range strings.FieldsSeq(f.flags) {
				if got := foreignFlag(c, strings.ReplaceAll(flag, "-", "_")); !strings.HasPrefix(flag, "-") && got == "" {
					t.Errorf("%s %s: no answer", verb, flag)
				}
				if got := foreignFlag(c, flag); got == "" || strings.Contains(got, "HINT") {
					t.Errorf("%s %s: %q", verb, flag, got)
				}
			}
		}
	}
}

func first(words string) string { return strings.Fields(words)[0] }

// answer is what an entry says of its first flag, if it is one that names a flag.
func answer(f foreign) string {
	return "--" + strings.TrimLeft(first(f.flags), "-") + " of " + f.tool + " is " + f.here + " here"
}
