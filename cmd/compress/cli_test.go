package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// TestEveryVerb: each command has a sentence, a help text, an example of itself, and the flags that all verbs have.
func TestEveryVerb(t *testing.T) {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("%s: the example does not show the verb: %q", c.CommandPath(), c.Example)
		}
		if c.Short == "" || len(c.Long) < 60 || strings.Contains(strings.ReplaceAll(c.Long, "\n\n", " "), "\n") {
			t.Errorf("%s: help text is missing or broken into lines by hand", c.CommandPath())
		}

		for _, name := range []string{"device", "threads", "seed", "quiet", "json", "report"} {
			if c.Flags().Lookup(name) == nil {
				t.Errorf("%s lacks --%s", c.CommandPath(), name)
			}
		}

		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no description", c.CommandPath(), f.Name)
			}
		})

		for _, sub := range c.Commands() {
			visit(sub)
		}
	}

	for _, c := range root(cli.New(nil, nil, nil)).Commands() {
		visit(c)
	}
}

// TestHelpFitsTheTerminal: no line is wider than the page, running text no wider than 80 columns, and examples are
// whole.
func TestHelpFitsTheTerminal(t *testing.T) {
	root := root(cli.New(nil, nil, nil))
	for _, c := range root.Commands() {
		var b bytes.Buffer
		c.SetOut(&b)
		cli.Help(c, nil)

		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 100 &&
				!strings.Contains(c.Example, strings.TrimSpace(line)) {
				t.Errorf("%s: a line of %d characters: %s", c.Name(), n, line)
			}
		}

		prose, _, _ := strings.Cut(b.String(), "USAGE")
		for line := range strings.Lines(prose) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
				t.Errorf("%s: a line of %d characters: %s", c.Name(), n, line)
			}
		}

		for line := range strings.Lines(c.Example) {
			if !strings.Contains(b.String(), strings.TrimSpace(line)) {
				t.Errorf("%s: the example %q is cut", c.Name(), line)
			}
		}
	}
}
