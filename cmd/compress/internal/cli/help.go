package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpCmd shows a verb's help.
func helpCmd() *cobra.Command {
	return &cobra.Command{
		Use: "help [VERB]", Short: "Show a verb's help",
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			for _, sub := range c.Root().Commands() {
				names = append(names, sub.Name())
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownVerb(c.Root(), args[0])
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// unknownVerb is the error about a verb that there is not, with those of a similar name.
func unknownVerb(root *cobra.Command, name string) error {
	root.SuggestionsMinimumDistance = 2
	if near := root.SuggestionsFor(name); len(near) > 0 {
		return Usagef("unknown verb %.60q (HINT: did you mean %s?)", name, strings.Join(near, ", "))
	}
	return Usagef("unknown verb %.60q (HINT: %s --help lists the verbs)", name, root.CommandPath())
}

// flagKinds says what the values of flags look like.
var flagKinds = map[string]string{
	"int": "a whole number", "uint64": "a whole number, 0 or more", "float64": "a number such as 0.5",
	"bool":     "true or false",
	"duration": "a time such as 300ms or 2s",
}

// flagError words what is wrong with a flag.
func flagError(c *cobra.Command, err error) error {
	if bad, ok := err.(*pflag.InvalidValueError); ok && flagKinds[bad.GetFlag().Value.Type()] != "" {
		return Usagef("--%s %q: want %s", bad.GetFlag().Name, bad.GetValue(), flagKinds[bad.GetFlag().Value.Type()])
	}
	return Usagef("%w (HINT: %s --help lists the flags)", err, c.CommandPath())
}

// checkArgs words a wrong number of arguments.
func checkArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if err == nil {
			return nil
		}

		if c.HasSubCommands() && strings.HasPrefix(err.Error(), "unknown command") { // it only has verbs
			return unknownVerb(c, args[0])
		}
		if text := err.Error(); strings.HasPrefix(text, "accepts") || strings.HasPrefix(text, "requires") ||
			strings.HasPrefix(text, "unknown command") {
			return Usagef("%d arguments are given, which does not fit: %s (HINT: a name with blanks needs quotes)",
				len(args), strings.TrimSuffix(c.UseLine(), " [flags]"))
		}

		return Usagef("%w; known: %s", err, strings.Join(c.ValidArgs, ", "))
	}
}
