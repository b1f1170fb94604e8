package reportcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// Manual says which pages were written.
type Manual struct {
	Out   string   `json:"out"`
	Pages []string `json:"pages"`

	fresh []string // pages that were not there before
}

// WriteManual writes the pages of a command and of all its verbs to a folder, which is made if it is not there.
func WriteManual(j *cli.Job, root *cobra.Command, out string) (*Manual, error) {
	if st, err := os.Stat(out); err == nil && !st.IsDir() {
		return nil, cli.Usagef("--out %s: a file (HINT: name a folder)", out)
	}

	_, err := os.Stat(out)
	made := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(out, 0o777); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}

	r := &Manual{Out: out}
	if err := r.write(root); err != nil {
		return nil, errors.Join(err, r.remove(made))
	}

	j.Printf("%d pages in %s; man -l %s shows one\n", len(r.Pages), out, filepath.Join(out, r.Pages[0]))
	return r, nil
}

func (r *Manual) write(c *cobra.Command) error {
	if c.Hidden || c.Name() == "help" {
		return nil
	}

	name := manualName(c) + ".1"
	_, err := os.Lstat(filepath.Join(r.Out, name))
	if err := cli.WriteFile(filepath.Join(r.Out, name), ManualPage(c)); err != nil {
		return err
	}

	r.Pages = append(r.Pages, name)
	if errors.Is(err, fs.ErrNotExist) {
		r.fresh = append(r.fresh, name)
	}

	for _, sub := range c.Commands() {
		if err := r.write(sub); err != nil {
			return err
		}
	}

	return nil
}

// remove takes back the pages that were not there before, after a failure, and the folder if it was made for them.
func (r *Manual) remove(made bool) (err error) {
	for _, name := range r.fresh {
		err = errors.Join(err, os.Remove(filepath.Join(r.Out, name)))
	}
	if made {
		err = errors.Join(err, os.Remove(r.Out))
	}
	return err
}

func manualName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// edition is the date on the pages: that of the program's build would make every build's pages differ.
const edition = "2026-11-21"

// ManualPage is the manual page of a command.
func ManualPage(c *cobra.Command) []byte {
	p, root := &roff{}, c.Root()
	p.line(`.TH "%s" 1 "%s" "%s %s" "Manual of %s"`, escaped(strings.ToUpper(manualName(c))), edition, root.Name(),
		escaped(root.Version), root.Name())
	p.section("NAME")
	p.line(`%s \- %s`, escaped(manualName(c)), escaped(c.Short))
	p.section("SYNOPSIS")
	p.line(`\fB%s\fR`, escaped(c.UseLine()))
	p.section("DESCRIPTION")
	p.paragraphs(c.Long)
	p.verbs(c)
	p.flags(c)

	if c.Example != "" {
		p.section("EXAMPLES")
		p.line(".nf\n%s\n.fi", escaped(c.Example))
	}

	p.section("EXIT STATUS")

	for _, code := range [][2]string{
		{"0", "done"},
		{"1", "the work failed"},
		{"2", "the command line, a recipe or a plan is wrong, or an output exists"},
		{"130", "interrupted (verbs with --resume can continue)"},
	} {
		p.item(code[0], code[1])
	}

	p.others(c)
	return p.Bytes()
}

// roff is a page in the making.
type roff struct{ bytes.Buffer }

func (p *roff) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *roff) section(title string) { p.line(".SH %s", title) }

// paragraphs writes the lines of a text, each as a paragraph.
func (p *roff) paragraphs(text string) {
	first := true
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if !first {
			p.line(".PP")
		}

		p.line("%s", escaped(line))
		first = false
	}
}

// item is a term and what it means.
func (p *roff) item(term, text string) { p.line(".TP\n\\fB%s\\fR\n%s", escaped(term), escaped(text)) }

// verbs lists the verbs below a command.
func (p *roff) verbs(c *cobra.Command) {
	groups := cli.Verbs(c)
	if len(groups) == 0 {
		return
	}

	p.section("COMMANDS")
	for _, g := range groups {
		if len(groups) > 1 {
			p.line(".SS %s", escaped(g.Title))
		}

		for _, row := range g.Rows {
			if row[0] != "help" { // which has no page
				p.item(row[0], row[1])
			}
		}
	}
}

// flags lists the flags of a command with their defaults.
func (p *roff) flags(c *cobra.Command) {
	groups := cli.Flags(c)
	if len(groups) == 0 {
		return
	}

	p.section("OPTIONS")
	for _, g := range groups {
		p.line(".SS %s", escaped(g.Title))
		for _, f := range g.Flags {
			p.item(cli.Term(f), cli.Meaning(f))
		}
	}
}

// others names the pages of the commands above, below and beside.
func (p *roff) others(c *cobra.Command) {
	var list []string
	if c.HasParent() {
		list = append(list, manualName(c.Parent()))
	}

	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			list = append(list, manualName(sub))
		}
	}

	for i, name := range list {
		list[i] = `\fB` + escaped(name) + `\fR(1)`
	}

	if len(list) > 0 {
		p.section("SEE ALSO")
		p.line("%s", strings.Join(list, ", "))
	}
}

// escaped keeps text from being taken for requests.
func escaped(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, `"`, `\(dq`, "`", `\(ga`, "'", `\(aq`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}

	var b strings.Builder
	for _, r := range strings.Join(lines, "\n") {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else { // roff reads bytes
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}

	return b.String()
}
