package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/usage"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// TestEveryVerb: each command has a sentence, a help text, an example of itself, and the flags that all verbs have.
func TestEveryVerb(t *testing.T) {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("%s: the example does not show the verb: %q", c.CommandPath(), c.Example)
		}
		if c.Short == "" || len(c.Long) < 60 || strings.Contains(c.Long, "\n") {
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
	for _, c := range (&app{}).root().Commands() {
		visit(c)
	}
}

func TestExitCodes(t *testing.T) {
	working := &app{working: true}
	for _, c := range []struct {
		app  *app
		err  error
		want int
	}{
		{working, nil, exitDone},
		{working, io.ErrUnexpectedEOF, exitFailed},
		{working, fmt.Errorf("deep: %w", usagef("wrong")), exitUsage},
		{working, fmt.Errorf("deep: %w", checkpoint.ErrExists), exitUsage},
		{working, fmt.Errorf("block 3: %w", context.Canceled), exitInterrupted},
		{&app{}, errors.New("unknown flag"), exitUsage},
	} {
		if got := c.app.exitCode(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	err := errors.Join(errors.New("first\nline"), fmt.Errorf("second: %w", safetensors.ErrTruncated))
	got := oneLine(err)
	if strings.Contains(got, "\n") || !strings.Contains(got, "first; line; second") || strings.Count(got, "HINT:") != 1 {
		t.Errorf("%q", got)
	}
}

func TestSumsKnowTheirError(t *testing.T) {
	s := &sums{}
	w := corpus.Windows{}
	for i, row := range [][]float64{{1, 2, 3}, {2, 3, 4}, {3, 4, 5}} {
		s.add(row, w, i)
	}
	// Window means 2, 3, 4: mean 3, standard deviation 1, so the error of the mean is 1/√3.
	if m, se := s.mean(); math.Abs(m-3) > 1e-12 || se == nil || math.Abs(*se-1/math.Sqrt(3)) > 1e-12 || s.tokens != 9 {
		t.Errorf("mean %v ± %v over %d tokens", m, se, s.tokens)
	}
	s = &sums{}
	s.add([]float64{5, 7}, corpus.Windows{Labels: [][]int32{{1, corpus.Ignore, 2}}}, 0)
	if m, se := s.mean(); m != 7 || se != nil || s.tokens != 1 {
		t.Errorf("mean %v over %d tokens: a token that is context only was counted", m, s.tokens)
	}
}

func TestShardLimit(t *testing.T) {
	for text, want := range map[string]int64{"keep": checkpoint.KeepShards, "none": 0, "2GB": 2e9, "1.5KiB": 1536, "7B": 7} {
		if got, err := shardLimit(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "2", "-1GB", "NaNGB", "1e300GB", "GB"} {
		if n, err := shardLimit(text); !isMisuse(err) {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

func TestUnits(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 960192: "960 kB", 13_500_000_000: "13.5 GB", 2e15: "2e+03 TB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

// TestProgressIsSilent: where stderr is no terminal nothing is written before some seconds have passed.
func TestProgressIsSilent(t *testing.T) {
	var b bytes.Buffer
	p := (&job{app: &app{stderr: &b}}).progress("counting", 10)
	for i := range 10 {
		p.set(int64(i))
	}
	p.end()
	if b.Len() > 0 {
		t.Errorf("%q", b.String())
	}
	p = (&job{app: &app{stderr: &b}}).progress("counting", 10)
	p.last = p.last.Add(-2 * plainEvery)
	p.set(5)
	if got := b.String(); !strings.HasPrefix(got, "counting: 50 %, ") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}

// TestHelpFitsTheTerminal: no line of prose is wider than the terminal, and examples are whole.
func TestHelpFitsTheTerminal(t *testing.T) {
	root := (&app{}).root()
	for _, c := range root.Commands() {
		var b bytes.Buffer
		c.SetOut(&b)
		usage.Help(c, nil)
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 120 && !strings.Contains(c.Example, strings.TrimSpace(line)) {
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
