package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"charm.land/fang/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Colours are those that every terminal shows in its own way, so that it need not be asked for its background: one that
// does not answer would delay every message.
func Colours() fang.ColorScheme { return fang.AnsiColorScheme(lipgloss.LightDark(true)) }

// Help writes what a command does, its examples as they can be copied, its verbs and its flags.
func Help(c *cobra.Command, _ []string) {
	w := helpWriter{Styled(c.OutOrStdout()), width(c.OutOrStdout()), Colours()}
	text := c.Long
	if text == "" {
		text = c.Short
	}

	fmt.Fprintf(w, "\n%s\n", indent(wrap(text, w.width-2), 2))
	w.title("usage")
	fmt.Fprintln(w, indent(c.UseLine(), 4))

	if c.Example != "" {
		w.title("examples")
		fmt.Fprintln(w, indent(c.Example, 4))
	}

	var verbs, flags [][2]string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() || sub.Name() == "help" {
			verbs = append(verbs, [2]string{sub.Name(), sub.Short})
		}
	}

	w.list("commands", verbs)
	c.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, flagHelp(f)) })
	w.list("flags", flags)
	fmt.Fprintln(w)
}

type helpWriter struct {
	io.Writer
	width  int
	scheme fang.ColorScheme
}

// width is that of the terminal, between 40 and 120 columns.
func width(w io.Writer) int {
	if f, ok := w.(interface{ Fd() uintptr }); ok {
		if n, _, err := term.GetSize(f.Fd()); err == nil && n > 0 {
			return max(40, min(n, 120))
		}
	}
	return 120
}

func (w helpWriter) title(text string) {
	style := lipgloss.NewStyle().Bold(true).Foreground(w.scheme.Title)
	fmt.Fprintf(w, "\n  %s\n\n", style.Render(strings.ToUpper(text)))
}

// list writes names and what they mean, in two columns.
func (w helpWriter) list(title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}

	w.title(title)
	first := 0
	for _, r := range rows {
		first = max(first, len(r[0]))
	}

	name := lipgloss.NewStyle().Foreground(w.scheme.Flag)
	for _, r := range rows {
		lines := strings.Split(wrap(r[1], max(20, w.width-first-7)), "\n")
		fmt.Fprintf(w, "    %s%s  %s\n", name.Render(r[0]), strings.Repeat(" ", first-len(r[0])), lines[0])
		for _, line := range lines[1:] {
			fmt.Fprintln(w, strings.Repeat(" ", first+6)+line)
		}
	}
}

func flagHelp(f *pflag.Flag) [2]string {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + " " + name
	}
	text := f.Usage
	if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
		text += " (" + f.DefValue + ")"
	}
	return [2]string{name, text}
}

// wrap breaks lines at blanks, so that names of flags stay whole.
func wrap(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		at := 0
		for word := range strings.FieldsSeq(line) {
			n := utf8.RuneCountInString(word)
			switch {
			case at == 0:
			case at+1+n > width:
				b.WriteByte('\n')
				at = 0
			default:
				b.WriteByte(' ')
				at++
			}

			b.WriteString(word)
			at += n
		}

		if strings.HasSuffix(line, "\n") {
			b.WriteByte('\n')
		}
	}

	return b.String()
}

func indent(text string, by int) string {
	space := strings.Repeat(" ", by)
	return space + strings.ReplaceAll(text, "\n", "\n"+space)
}
