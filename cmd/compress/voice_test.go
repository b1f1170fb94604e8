package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// everyVerb calls a function for each verb and sub-verb.
func everyVerb(visit func(c *cobra.Command)) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		visit(c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}

	for _, c := range root(cli.New(nil, nil, nil)).Commands() {
		walk(c)
	}
}

// form is what several verbs must agree on about a flag. They describe it in their own words.
type form struct{ kind, shorthand string }

// otherwise lists the flags that differ between verbs, and why.
var otherwise = map[string]string{
	"hidden":   "prune: how many channels stay; forward: whether hidden states are written",
	"layers":   "prune: how many stay, or the share that goes; lora train: which are trained",
	"adapter":  "serve: each with a name",
	"calib":    "search takes one for each model",
	"sparsity": "search takes several",
	"pattern":  "search takes several",
	"model":    "worker takes several",
	"data":     "lora train and merge search take several",
	"to":       "edit undo: a number of edits; quantize: a scheme",
	"select":   "experts route: which experts; search: data to select by",
}

// usual lists the flags whose default differs between verbs, and why. A default that is empty in one verb and
// not in another counts: empty mostly means that it depends on other flags.
var usual = map[string]string{
	"adapter":         "serve: each with a name",
	"listen":          "serve: an address of this machine; elsewhere none is opened",
	"batch":           "edit: as the method has it",
	"bootstrap-iters": "eval: as the harness",
	"calib":           "search takes several",
	"data":            "merge search takes several",
	"dtype":           "of what is computed anew f32, of what is carried over as it was",
	"experts":         "prune: how many stay; elsewhere how they are picked",
	"generations":     "of formulas and of numbers",
	"hidden":          "prune: how many channels stay; forward: whether hidden states are written",
	"layers":          "prune: how many stay; lora train: which are trained",
	"kind":            "of statistics: as the method; of adapters mos",
	"max-shard-size":  "what is made anew is cut as usual, what is changed as it was",
	"memory":          "lora train: what the machine has",
	"method":          "edit: rome; elsewhere it has to be said",
	"model":           "worker takes several",
	"out":             "demo needs none",
	"pattern":         "search takes several",
	"population":      "of formulas and of numbers",
	"samples":         "as published for each",
	"select":          "search: data to select by",
	"seqlen":          "lora train: training needs memory for each token",
	"sparsity":        "search takes several",
	"to":              "edit undo: no edits",
	"workers":         "for measurements as many as there are processors, for whole models one",
}

// TestOneVoice: a flag that several verbs have is of one type, has one shorthand and one default.
func TestOneVoice(t *testing.T) {
	seen, defaults := map[string]map[form][]string{}, map[string]map[string][]string{}
	everyVerb(func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			g := form{f.Value.Type(), f.Shorthand}
			if seen[f.Name] == nil {
				seen[f.Name], defaults[f.Name] = map[form][]string{}, map[string][]string{}
			}

			seen[f.Name][g] = append(seen[f.Name][g], c.CommandPath())
			defaults[f.Name][f.DefValue] = append(defaults[f.Name][f.DefValue], c.CommandPath())
		})
	})

	for name, kinds := range seen {
		if len(kinds) > 1 && otherwise[name] == "" {
			for g, verbs := range kinds {
				t.Errorf("--%s is %s -%s in %s", name, g.kind, g.shorthand, strings.Join(verbs, ", "))
			}
		}

		if len(defaults[name]) > 1 && usual[name] == "" {
			for value, verbs := range defaults[name] {
				t.Errorf("--%s is %q by default in %s", name, value, strings.Join(verbs, ", "))
			}
		}
	}

	for name := range otherwise {
		if len(seen[name]) < 2 {
			t.Errorf("--%s: the exception of the type is not needed", name)
		}
	}

	for name := range usual {
		if len(defaults[name]) < 2 {
			t.Errorf("--%s: the exception of the default is not needed", name)
		}
	}
}

// placeholders are the names for values in help: what kind of value it is, not what it means.
var placeholders = strings.Fields("DIR DIRS FILE PATH MODEL ADAPTER N X NAME LIST MODE FORM TYPE SIZE TIME TEXT BOOL " +
	"URL ADDRESS SHA256 NAME=TEXT NAME=DIR PATTERN PATTERN=TYPE")

// unclear are words and forms that a user of the field's tools would have to read twice.
var unclear = regexp.MustCompile(`(?i)\b0 (is|:)|-1 is\b|empty is|left out,|\bshare of\b|\bdrawn\b|likeliest|` +
	`\banew\b|what flows|graphics processor|way back|told apart|the first only|how many at once|texts of`)

// TestFlagWords: a flag that takes a value has a placeholder, says its default where that is not the value itself, and
// neither flags nor descriptions of verbs use words that the field does not.
func TestFlagWords(t *testing.T) {
	everyVerb(func(c *cobra.Command) {
		for _, text := range []string{c.Short, c.Long} {
			if bad := unclear.FindString(text); bad != "" {
				t.Errorf("%s: %q in %q", c.CommandPath(), bad, text)
			}
		}

		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name, text := cli.Placeholder(f)
			flag := c.CommandPath() + " --" + f.Name
			switch f.Value.Type() {
			case "bool":
				if name != "" {
					t.Errorf("%s: placeholder %s of a flag without a value", flag, name)
				}
			default:
				if !slices.Contains(placeholders, name) {
					t.Errorf("%s: placeholder %q", flag, name)
				}
			}

			if bad := unclear.FindString(text); bad != "" {
				t.Errorf("%s: %q in %q", flag, bad, text)
			}
			if strings.Contains(text, "`") || strings.HasSuffix(text, ".") || text == "" {
				t.Errorf("%s: %q", flag, text)
			}
		})
	})
}

// TestRootHelp: the first page says what the program does, and lists every verb in a group.
func TestRootHelp(t *testing.T) {
	var out bytes.Buffer
	if code := run([]string{}, &out, &bytes.Buffer{}); code != 0 {
		t.Fatalf("exit code %d", code)
	}

	text := out.String()
	at := 0
	for _, title := range []string{
		"LOOK AT A MODEL", "MAKE IT SMALLER", "COMBINE MODELS", "ADAPT", "EDIT FACTS", "MEASURE", "AUTOMATE AND REPORT",
		"THE PROGRAM",
	} {
		next := strings.Index(text, title)
		if next < at {
			t.Errorf("%q is missing or not in its place", title)
		}
		at = next
	}

	if strings.Contains(text, "COMMANDS") {
		t.Error("a verb is in no group")
	}

	everyVerb(func(c *cobra.Command) {
		if c.Parent() == c.Root() && !strings.Contains(text, "\n    "+c.Name()+" ") {
			t.Errorf("%s is not listed", c.Name())
		}
	})

	for _, words := range exampleLines(t, root(cli.New(nil, nil, nil)).Example) {
		if err := parses(words); err != nil {
			t.Errorf("example %q: %v", words, err)
		}
	}
}

// TestUnusedFlags: help leaves out the common flags that mean nothing to a verb, which accepts them all the same.
func TestUnusedFlags(t *testing.T) {
	for _, verb := range []string{"schema", "man", "eval tasks list", "report", "lora", "tokenize"} {
		var out, wrong bytes.Buffer
		words := strings.Fields(verb)
		if code := run(append(words, "--help"), &out, &wrong); code != 0 || strings.Contains(out.String(), "--device") {
			t.Errorf("%s: exit code %d, --device in %q", verb, code, out.String())
		}
	}

	var wrong bytes.Buffer
	if code := run([]string{"schema", "--threads", "1", "--device", "cpu"}, &bytes.Buffer{}, &wrong); code != 0 {
		t.Errorf("exit code %d: %s", code, wrong.String())
	}
}

// TestClosedSets: a flag whose description lists its values, or that takes a folder, completes them.
func TestClosedSets(t *testing.T) {
	everyVerb(func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			_, has := c.GetFlagCompletionFunc(f.Name)
			if slices.Contains([]string{
				"device", "method", "kind", "allocation", "update", "group", "pattern", "permutation", "sequential",
				"alpha-estimator", "save", "dtype", "missing",
				"layout", "granularity", "schedule", "optimizer", "sampling", "bias", "convention", "select", "outside",
				"majority-sign", "grammar", "mode", "aim", "experts",
				"fewshot-as-multiturn", "tasks", "targets", "max-shard-size", "methods",
			}, f.Name) && !has && !(c.Name() == "search" && (f.Name == "select")) {
				t.Errorf("%s --%s completes nothing", c.CommandPath(), f.Name)
			}
		})
	})
}

// TestExamplesParse: every line of every example is a command line that the verb takes: its flags are there,
// none that it needs is missing, and it has as many arguments as it should.
func TestExamplesParse(t *testing.T) {
	everyVerb(func(c *cobra.Command) {
		for _, words := range exampleLines(t, c.Example) {
			if err := parses(words); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), strings.Join(words, " "), err)
			}
		}
	})
}

// parses reports whether a command line would be begun.
func parses(words []string) error {
	top := root(cli.New(nil, nil, nil))
	if words[0] != "compress" {
		return fmt.Errorf("begins with %s", words[0])
	}

	c, rest, err := top.Find(words[1:])
	if err != nil {
		return err
	}

	if c == top {
		return fmt.Errorf("names no verb")
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if err := c.ValidateRequiredFlags(); err != nil {
		return err
	}
	if err := c.ValidateFlagGroups(); err != nil {
		return err
	}

	for _, arg := range append(c.Flags().Args(), pathsOf(c)...) {
		if strings.HasPrefix(arg, "testdata/") || strings.HasPrefix(arg, "cmd/") {
			if _, err := os.Stat(filepath.Join("../..", arg)); err != nil {
				return err
			}
		}
	}

	return c.Args(c, c.Flags().Args())
}

// pathsOf lists the values of the flags that were given.
func pathsOf(c *cobra.Command) (list []string) {
	c.Flags().Visit(func(f *pflag.Flag) { list = append(list, f.Value.String()) })
	return list
}

// exampleLines splits an example into command lines, and these into words, as a shell does.
func exampleLines(t *testing.T, text string) (lines [][]string) {
	var words []string
	var word strings.Builder
	quote, inside := rune(0), false
	end := func() {
		if inside {
			words = append(words, word.String())
		}
		word.Reset()
		inside = false
	}

	for _, r := range strings.ReplaceAll(text, "\\\n", " ") + "\n" {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inside = r, true
		case r == '\n':
			end()
			if len(words) > 0 {
				lines = append(lines, words)
			}
			words = nil
		case r == ' ':
			end()
		default:
			word.WriteRune(r)
			inside = true
		}
	}

	if quote != 0 {
		t.Errorf("a quote is open in %q", text)
	}

	return lines
}
