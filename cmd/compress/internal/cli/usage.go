// How flags are described: which placeholder stands for the value, which default holds, and in which group it is
// listed; and the help of commands, written so that it fits the terminal and examples can be copied.

package cli

import (
	"fmt"
	"io"
	"slices"
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

// prose is the widest line of running text: longer ones are hard to read, however wide the terminal is.
const prose = 80

// Help writes what a command does, its examples as they can be copied, its verbs and its flags.
func Help(c *cobra.Command, _ []string) {
	w := helpWriter{Styled(c.OutOrStdout()), width(c.OutOrStdout()), Colours()}
	text := c.Long
	if text == "" {
		text = c.Short
	}

	fmt.Fprintf(w, "\n%s\n", indent(wrap(strings.TrimSpace(text), min(w.width, prose)-2), 2))
	w.title("usage")
	fmt.Fprintln(w, indent(c.UseLine(), 4))

	if c.Example != "" {
		w.title("examples")
		fmt.Fprintln(w, indent(c.Example, 4))
	}

	for _, g := range Verbs(c) {
		w.list(g.Title, g.Rows)
	}

	for _, g := range Flags(c) {
		var rows [][2]string
		for _, f := range g.Flags {
			rows = append(rows, [2]string{Term(f), Meaning(f)})
		}
		w.list(g.Title, rows)
	}

	fmt.Fprintln(w)
}

// VerbGroup is a part of the list of verbs below a command: names and what they do.
type VerbGroup struct {
	Title string
	Rows  [][2]string
}

// Verbs lists the verbs below a command: in the groups that it has, otherwise in one.
func Verbs(c *cobra.Command) (list []VerbGroup) {
	groups := append(slices.Clone(c.Groups()), &cobra.Group{Title: "Commands"}) // the last for verbs without a group

	for _, g := range groups {
		var rows [][2]string
		for _, sub := range c.Commands() {
			if sub.GroupID == g.ID && (sub.IsAvailableCommand() || sub.Name() == "help") {
				rows = append(rows, [2]string{sub.Name(), sub.Short})
			}
		}

		if len(rows) > 0 {
			list = append(list, VerbGroup{g.Title, rows})
		}
	}

	return list
}

// The groups in which flags are listed, in this order. A flag means the same in every verb, so its group hangs on its
// name alone.
var flagGroups = []struct {
	title string
	names []string
	rest  bool // flags without a group follow: they say how the verb works
}{
	{title: "Data", names: []string{
		"data", "data-weights", "calib", "samples", "seqlen", "join", "ppl", "eval", "heldout", "select", "test",
		"windows", "few", "select-windows", "test-windows", "stride", "limit", "task-limit", "tasks", "task-data",
		"num-fewshot", "fewshot-seed", "text", "file", "prompt", "ids", "features", "edits", "count",
		"skip-invalid", "stats", "stats-tokens", "texts", "grads", "chat", "system", "masks-from", "chat-template",
		"apply-chat-template", "answers", "fewshot-as-multiturn", "system-instruction", "subject", "answer",
		"model", "base", "adapter", "experts", "config", "init", "folder", "var",
	}},
	{title: "Method", rest: true, names: []string{
		"kind", "method", "methods", "patterns", "sparsity", "pattern", "group", "rank", "alpha", "targets", "steps",
		"lr", "batch",
	}},
	{title: "Output", names: []string{
		"out", "addr", "overwrite", "resume", "dry-run", "dtype", "max-shard-size", "save", "masks", "save-grads",
		"save-every", "html", "hidden", "grad", "log-samples", "keep-models", "keep-best", "tensors", "all", "layout",
	}},
	{title: "Compute", names: []string{
		"device", "threads", "fast", "memory", "hessian-memory", "in-memory", "batch-size", "micro-batch", "cache",
		"workers", "parallel",
	}},
	{title: "Other machines", names: []string{
		"cluster", "cluster-login", "cluster-creds", "cluster-nkey", "cluster-ca", "cluster-cert", "cluster-key",
		"cluster-pin", "listen", "listen-token", "listen-cert", "listen-key", "let-anyone-join", "key-file",
		"let-anyone-ask", "origin",
	}},
	{title: "General", names: []string{"seed", "json", "report", "quiet", "help", "version"}},
}

// FlagGroup is a part of the list of a command's flags.
type FlagGroup struct {
	Title string
	Flags []*pflag.Flag
}

// Flags lists the flags of a command that help shows, by groups. What one needs first stands first: the names of a
// group have its order, all others that in which the verb adds them.
func Flags(c *cobra.Command) (list []FlagGroup) {
	set := c.Flags()
	sorted := set.SortFlags
	set.SortFlags = false
	defer func() { set.SortFlags = sorted }()

	var shown []*pflag.Flag
	set.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			shown = append(shown, f)
		}
	})

	for _, g := range flagGroups {
		var flags []*pflag.Flag
		for _, name := range g.names {
			// Not by an alias, or it stands there twice.
			if f := set.Lookup(name); f != nil && f.Name == name && !f.Hidden {
				flags = append(flags, f)
			}
		}

		for _, f := range shown {
			if g.rest && !grouped(f.Name) {
				flags = append(flags, f)
			}
		}

		if len(flags) > 0 {
			list = append(list, FlagGroup{g.title, flags})
		}
	}

	return list
}

// grouped reports whether a flag is listed by its name.
func grouped(name string) bool {
	for _, g := range flagGroups {
		if slices.Contains(g.names, name) {
			return true
		}
	}
	return false
}

// Placeholder splits the description of a flag: the name for its value, which stands in back quotes at the beginning,
// and what the flag does. Flags that are only set or not have no placeholder.
func Placeholder(f *pflag.Flag) (name, text string) {
	if rest, ok := strings.CutPrefix(f.Usage, "`"); ok {
		if name, text, ok = strings.Cut(rest, "` "); ok {
			return name, text
		}
	}
	return "", f.Usage
}

// Term is a flag as a command line has it, with its placeholder.
func Term(f *pflag.Flag) string {
	term := "--" + f.Name
	if f.Shorthand != "" {
		term = "-" + f.Shorthand + ", " + term
	}

	name, _ := Placeholder(f)
	switch {
	case name == "":
		return term
	case f.NoOptDefVal != "":
		return term + "[=" + name + "]"
	}

	return term + " " + name
}

// Meaning is what a flag does, with its default, unless the description has said that in words.
func Meaning(f *pflag.Flag) string {
	switch f.Name { // whose descriptions are the flag library's
	case "help":
		return "show this help"
	case "version":
		return "print the version"
	}

	_, text := Placeholder(f)
	value := strings.TrimSuffix(strings.TrimPrefix(f.DefValue, "["), "]")

	switch {
	case strings.Contains(text, "(default") || value == "" || value == "false" || value == "0":
		return text
	case f.Value.Type() == "bool":
		return text + " (default: yes, --" + f.Name + "=false turns it off)"
	}

	return text + " (default: " + value + ")"
}

type helpWriter struct {
	io.Writer
	width  int
	scheme fang.ColorScheme
}

// width is that of the terminal, between 40 and 120 columns, and 100 where there is none.
func width(w io.Writer) int {
	if f, ok := w.(interface{ Fd() uintptr }); ok {
		if n, _, err := term.GetSize(f.Fd()); err == nil && n > 0 {
			return max(40, min(n, 120))
		}
	}
	return 100
}

func (w helpWriter) title(text string) {
	style := lipgloss.NewStyle().Bold(true).Foreground(w.scheme.Title)
	fmt.Fprintf(w, "\n  %s\n\n", style.Render(strings.ToUpper(text)))
}

// widest is the longest name beside which its meaning is written. Longer names have it below, so that one of them does
// not push all meanings to the right.
const widest = 26

// list writes names and what they mean, in two columns.
func (w helpWriter) list(title string, rows [][2]string) {
	w.title(title)
	first := 0
	for _, r := range rows {
		if n := len(r[0]); n <= widest {
			first = max(first, n)
		}
	}

	if first == 0 {
		first = widest
	}

	name := lipgloss.NewStyle().Foreground(w.scheme.Flag)
	margin := strings.Repeat(" ", first+6)
	for _, r := range rows {
		lines := strings.Split(wrap(r[1], max(20, w.width-first-7)), "\n")
		if len(r[0]) > first {
			fmt.Fprintf(w, "    %s\n", name.Render(r[0]))
			fmt.Fprintln(w, margin+lines[0])
		} else {
			fmt.Fprintf(w, "    %s%s  %s\n", name.Render(r[0]), strings.Repeat(" ", first-len(r[0])), lines[0])
		}

		for _, line := range lines[1:] {
			fmt.Fprintln(w, margin+line)
		}
	}
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

// indent moves the lines of a text to the right, but for empty ones.
func indent(text string, by int) string {
	space := strings.Repeat(" ", by)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = space + line
		}
	}
	return strings.Join(lines, "\n")
}
