package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// helpCmd shows a verb's help. It stands in the last group of the verbs.
func helpCmd(root *cobra.Command) *cobra.Command {
	group := ""
	if all := root.Groups(); len(all) > 0 {
		group = all[len(all)-1].ID
	}

	return &cobra.Command{
		Use: "help [VERB]", Short: "Show a verb's help", GroupID: group,
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			for _, sub := range c.Root().Commands() {
				names = append(names, sub.Name())
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			switch {
			case err != nil: // no verb begins like this
				return unknownVerb(c.Root(), args[0])
			case len(rest) > 0:
				return unknownVerb(found, rest[0])
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// unknownVerb is the error about a verb that a group of verbs does not have, with those of a similar name: in the
// group, or else one level below (train is lora train).
func unknownVerb(group *cobra.Command, name string) error {
	group.SuggestionsMinimumDistance = 2
	near := group.SuggestionsFor(name)
	if len(near) == 0 {
		for _, verb := range group.Commands() {
			for _, sub := range verb.Commands() {
				if alike(name, sub.Name()) {
					near = append(near, verb.Name()+" "+sub.Name())
				}
			}
		}
	}

	if len(near) > 0 {
		return Usagef("unknown verb %.60q (HINT: did you mean %s?)", name, strings.Join(near, ", "))
	}
	if !group.HasSubCommands() {
		return Usagef("unknown verb %.60q: %s has none", name, group.CommandPath())
	}
	return Usagef("unknown verb %.60q (HINT: %s --help lists the verbs)", name, group.CommandPath())
}

// alike reports whether a word is a verb's name, or one misspelt by a letter or two.
func alike(word, name string) bool { return strictyaml.Distance(word, name) <= max(1, len(word)/3) }

// verbsOnly reports whether a verb is nothing but the group of others, and takes no arguments of its own.
func verbsOnly(c *cobra.Command) bool {
	return c.HasSubCommands() && !strings.Contains(c.Use, " ")
}

// missingVerb is the error about the first argument where it stands in the place of a verb that there is not, nil if it
// does not. Flags behind it are not at fault for being unknown, nor are others for not being given.
//
// Where a verb takes files and has verbs below it too (inspect PATH, inspect diff A B), the word is taken for one of
// these if it is spelt like it and nothing of the name exists.
func missingVerb(c *cobra.Command, args []string) error {
	if len(args) == 0 || !c.HasSubCommands() {
		return nil
	}

	word := args[0]
	if verbsOnly(c) {
		return unknownVerb(c, word)
	}
	if slices.Contains(c.ValidArgs, word) {
		return nil
	}
	if _, err := os.Lstat(word); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	for _, sub := range c.Commands() {
		if alike(word, sub.Name()) {
			return Usagef("%.60q is neither a verb nor a file or folder here (HINT: did you mean %s?)", word,
				sub.CommandPath())
		}
	}

	return nil
}

// flagKinds says what the values of flags look like.
var flagKinds = map[string]string{
	"int": "a whole number", "uint64": "a whole number, 0 or more", "float64": "a number such as 0.5",
	"bool":     "true or false",
	"duration": "a time such as 300ms or 2s",
}

// flagError words what is wrong with a flag.
func flagError(c *cobra.Command, err error) error {
	switch e := err.(type) {
	case *pflag.InvalidValueError:
		if kind := flagKinds[e.GetFlag().Value.Type()]; kind != "" {
			if strings.HasPrefix(e.GetValue(), "auto") {
				return Usagef("--%s (HINT: leave --%s out: its default is chosen automatically)", BadValue(e),
					e.GetFlag().Name)
			}
			return Usagef("--%s", BadValue(e))
		}
	case *pflag.NotExistError:
		return unknownFlag(c, e)
	case *pflag.ValueRequiredError:
		name, _ := Placeholder(e.GetFlag())
		return Usagef("--%s needs a value: --%[1]s %s", e.GetFlag().Name, name)
	}

	return Usagef("%w (HINT: %s --help lists the flags)", err, c.CommandPath())
}

// BadValue words a value that a flag does not take, with the flag's bare name: for messages of files whose keys are
// flags too.
func BadValue(err *pflag.InvalidValueError) string {
	flag := err.GetFlag()
	if kind := flagKinds[flag.Value.Type()]; kind != "" {
		return fmt.Sprintf("%s %q: want %s", flag.Name, err.GetValue(), kind)
	}
	return fmt.Sprintf("%s %q: %v", flag.Name, err.GetValue(), err.Unwrap())
}

// unknownFlag answers a flag that the verb does not have: with what another tool's flag is here, with the flag that is
// spelt alike, or with where the flags are listed.
func unknownFlag(c *cobra.Command, err *pflag.NotExistError) error {
	name := err.GetSpecifiedName()
	given, names := "--"+name, []string{name}
	if short := err.GetSpecifiedShortnames(); short != "" { // -ngl is one flag of another tool, or -n with a value
		given, names = "-"+short, []string{"-" + short, "-" + name}
	}

	for _, n := range names {
		if answer := foreignFlag(c, n); answer != "" {
			return Usagef("unknown flag %.60s (HINT: %s)", given, answer)
		}
	}

	var known []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})

	if near := nearest(string(dashes(nil, name)), known); near != "" {
		return Usagef("unknown flag %.60s (HINT: did you mean --%s?)", given, near)
	}

	return Usagef("unknown flag %.60s (HINT: %s --help lists the flags)", given, c.CommandPath())
}

// nearest is the known flag that is spelt alike, or that alone begins or ends with the given one; "" if there is none.
func nearest(name string, known []string) string {
	if text := strictyaml.Suggest(name, known); strings.Contains(text, "did you mean") {
		_, text, _ = strings.Cut(text, `"`)
		text, _, _ = strings.Cut(text, `"`)
		return text
	}

	var parts []string
	for _, k := range known {
		if len(name) > 2 && (strings.HasPrefix(k, name+"-") || strings.HasSuffix(k, "-"+name)) {
			parts = append(parts, k)
		}
	}

	if len(parts) == 1 {
		return parts[0]
	}

	return ""
}

// checkArgs words a wrong number of arguments.
func (a *App) checkArgs(v Verb) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if !a.rehearses { // the outputs that a plan's steps read need not be there yet
			if err := missingVerb(c, args); err != nil {
				return err
			}
		}

		err := v.Args(c, args)
		if err == nil {
			return nil
		}

		if text := err.Error(); strings.HasPrefix(text, "accepts") || strings.HasPrefix(text, "requires") ||
			strings.HasPrefix(text, "unknown command") {
			return a.wrongCount(c, v, args)
		}

		return Usagef("%w; known: %s", err, strings.Join(c.ValidArgs, ", "))
	}
}

// wrongCount is the error about too few or too many arguments.
func (a *App) wrongCount(c *cobra.Command, v Verb, args []string) error {
	fits := len(args) // the most that the verb takes
	for n := range args {
		if v.Args(c, args[:n]) == nil {
			fits = n
		}
	}

	count := strconv.Itoa(len(args)) + " arguments are given"
	if len(args) == 1 {
		count = "1 argument is given"
	}

	line := strings.TrimSuffix(c.UseLine(), " [flags]")
	if fits == len(args) {
		return Usagef("%s, which is too few: %s", count, line)
	}
	if fixed := a.corrected(c, v, args[:fits], args[fits:]); fixed != "" {
		return Usagef("%s, which is too many: %s (HINT: did you mean %s?)", count, line, fixed)
	}

	if fits == 0 && v.Args(c, nil) == nil {
		return Usagef("%s, but there is nothing to give: %s", count, line)
	}

	return Usagef("%s, which is too many: %s (HINT: a name with blanks needs quotes)", count, line)
}

// longestLine is the longest command line that a message repeats.
const longestLine = 500

// corrected is the command line that was meant, if the arguments that are too many are values of flags that were not
// given: those of [Verb.Habit], in their order. It is empty if they cannot be.
func (a *App) corrected(c *cobra.Command, v Verb, args, more []string) string {
	line := []string{c.CommandPath()}
	for _, arg := range args {
		line = append(line, quoted(arg))
	}

	values, more := habitual(c, v.Habit, more)
	for _, name := range v.Habit {
		if value, ok := values[name]; ok {
			line = append(line, "--"+name, quoted(value))
		}
	}

	c.Flags().Visit(func(f *pflag.Flag) {
		switch list, several := f.Value.(pflag.SliceValue); {
		case several:
			for _, text := range list.GetSlice() {
				line = append(line, "--"+f.Name, quoted(text))
			}
		case f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal:
			line = append(line, "--"+f.Name)
		case f.NoOptDefVal != "":
			line = append(line, "--"+f.Name+"="+quoted(f.Value.String()))
		default:
			line = append(line, "--"+f.Name, quoted(f.Value.String()))
		}
	})

	text := strings.Join(withoutSecrets(line), " ")
	if len(more) > 0 || len(text) > longestLine || strings.ContainsAny(text, "\r\n") {
		return ""
	}

	return text
}

// habitual says which of the arguments that are too many belong to which flag: a word that a flag knows goes to it,
// wherever it stands (llama-quantize has the type last), the others to the flags without words of their own, in order.
// What is left belongs to none.
func habitual(c *cobra.Command, habit, more []string) (values map[string]string, rest []string) {
	values = map[string]string{}
	words := map[string][]string{}
	for _, name := range habit {
		if f := c.Flags().Lookup(name); f != nil {
			words[name] = f.Annotations[wordsMark]
		}
	}

	free := func(name string) bool {
		_, taken := values[name]
		return !taken && !c.Flags().Changed(name)
	}
	claim := func(word string) bool {
		for _, name := range habit {
			i := slices.IndexFunc(words[name], func(known string) bool { return strings.EqualFold(known, word) })
			if i >= 0 && free(name) {
				values[name] = words[name][i]
				return true
			}
		}
		for _, name := range habit {
			if len(words[name]) == 0 && free(name) {
				values[name] = word
				return true
			}
		}
		return false
	}

	for _, word := range more {
		if !claim(word) {
			rest = append(rest, word)
		}
	}

	return values, rest
}

// plainWord is a word that every shell takes as it stands.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// ShellLine writes the words of a command line so that a shell takes them apart again.
func ShellLine(words []string) string {
	list := make([]string, len(words))
	for i, word := range words {
		list[i] = quoted(word)
	}
	return strings.Join(list, " ")
}

// quoted is a word as a shell needs it.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// AsRun is a command line as it works for who started this program: go run leaves nothing in PATH, and neither does a
// binary that was called by its path.
func AsRun(line string) string { return asRun(line, os.Args[0]) }

func asRun(line, program string) string {
	rest, ok := strings.CutPrefix(line, "compress ")
	slashed := filepath.ToSlash(program)
	if !ok || !strings.Contains(slashed, "/") {
		return line
	}

	if strings.Contains(slashed, "/go-build") {
		if _, err := os.Stat(filepath.Join("cmd", "compress", "main.go")); err == nil {
			return "go run ./cmd/compress " + rest
		}
		return "go run github.com/modelcompress/compress/cmd/compress@latest " + rest
	}

	// What the bare name would start may be this program all the same.
	if inPath, err := exec.LookPath("compress"); err == nil {
		a, errA := os.Stat(inPath)
		b, errB := os.Stat(program)
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return line
		}
	}
	return quoted(program) + " " + rest
}
