package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/system"
)

// Exit codes of the program.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// usageError is a wrong command line: exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }
func (e usageError) Usage() bool   { return true }

// Usagef is an error about a wrong command line, which ends the program with exit code 2.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Usage makes an error one about a wrong command line; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

func (a *App) exitCode(err error) int {
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case !a.working || IsUsage(err):
		return exitUsage
	}
	return exitFailed
}

// IsUsage reports whether an error is about a wrong command line and not about the work. The errors of libraries say
// so themselves.
func IsUsage(err error) bool { return failure.IsUsage(err) }

// printError writes the one line of a failed run.
func (a *App) printError(w io.Writer, root *cobra.Command, err error) {
	verb := root
	if c, _, findErr := root.Find(a.args); findErr == nil {
		verb = c
	}

	text := ShownLine(plainer(verb, oneLine(err)))
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
		if a.resumes {
			text += " (HINT: the same command with --resume continues)"
		}
	}

	style := lipgloss.NewStyle().Bold(true).Foreground(Colours().ErrorHeader[1])
	fmt.Fprintf(w, "%s %s\n", style.Render(verb.CommandPath()+":"), text)
}

// oneLine gives an error as one line, with a hint where there is one and the error has none yet.
func oneLine(err error) string {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if strings.Contains(text, "HINT:") {
		return text
	}
	if strings.Contains(text, "path escapes from parent") { // of package os, which has no name for it
		return text + " (HINT: a link leads out of the folder and is not followed; copy the folder with cp -rL)"
	}

	hint := failure.Hint(err)
	if hint == "" && system.Is(err, syscall.ENOSPC) { // also where no library has seen it
		hint = failure.NoSpace
	}
	if hint == "" {
		return text
	}

	return text + " (HINT: " + hint + ")"
}

// groups are what the flag library says about flags that belong together, with what is said here before and after
// their names, and between them.
var groups = []struct {
	form                   *regexp.Regexp
	before, between, after string
}{
	{regexp.MustCompile(`^at least one of the flags in the group \[(.+)\] is required$`), "give ", " or ", ""},
	{
		regexp.MustCompile(`^if any flags in the group \[(.+)\] are set none of the others can be; ` +
			`\[(.+)\] were all set$`),
		"", " and ", " exclude each other",
	},
}

// missingFlags is what the flag library says about flags that must be given.
var missingFlags = regexp.MustCompile(`^required flag\(s\) "(.+)" not set$`)

// plainer words what the flag library says about the flags of a command.
func plainer(c *cobra.Command, text string) string {
	for _, g := range groups {
		if names := g.form.FindStringSubmatch(text); names != nil {
			// Of those that exclude each other the ones that are set, in the order of the group.
			flags := slices.DeleteFunc(strings.Fields(names[1]), func(flag string) bool {
				return len(names) > 2 && !slices.Contains(strings.Fields(names[2]), flag)
			})
			return g.before + "--" + strings.Join(flags, g.between+"--") + g.after
		}
	}

	found := missingFlags.FindStringSubmatch(text)
	if found == nil {
		return text
	}

	var names, terms []string
	for name := range strings.SplitSeq(found[1], `", "`) {
		names = append(names, "--"+name)
		if f := c.Flags().Lookup(name); f != nil {
			terms = append(terms, Term(f))
		}
	}

	verb := "is"
	if len(names) > 1 {
		verb = "are"
	}

	return fmt.Sprintf("%s %s not given (HINT: add %s)", strings.Join(names, " and "), verb, strings.Join(terms, " "))
}
