package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/evalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/loracmd"
	"github.com/modelcompress/compress/cmd/compress/internal/prunecmd"
	"github.com/modelcompress/compress/editeval"
	editing "github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/merge"
	"github.com/spf13/pflag"
)

// yamlReaders are all formats of YAML that the program reads from files, each with a file that is fine. Its first line
// has the key that twice, unknown and mistyped make wrong.
var yamlReaders = map[string]struct {
	read                           func(path string) error
	fine, twice, unknown, mistyped string
}{
	"overrides": {
		func(path string) error {
			_, err := prunecmd.ReadOverrides(path)
			return err
		},
		"- dense: true\n  blocks: [0]\n", "- dense: true\n  dense: true\n", "- dens: true\n", "- dense: many\n",
	},
	"settings of training": {
		func(path string) error {
			flags := pflag.NewFlagSet("train", pflag.ContinueOnError)
			flags.Int("rank", 0, "")
			return loracmd.Configure(path, flags, []string{"rank"})
		},
		"rank: 8\n", "rank: 8\nrank: 8\n", "rnk: 8\n", "rank: many\n",
	},
	"plan of evaluations": {
		func(path string) error { return onText(path, evalcmd.CheckPlan) },
		"limit: 1\nmodels: [a]\ntasks: [t]\n", "limit: 1\nlimit: 1\nmodels: [a]\ntasks: [t]\n",
		"limt: 1\nmodels: [a]\ntasks: [t]\n", "limit: many\nmodels: [a]\ntasks: [t]\n",
	},
	"hyper-parameters": {
		func(path string) error {
			var h editing.HParams
			return onText(path, h.MergeFile)
		},
		"steps: 3\n", "steps: 3\nsteps: 3\n", "step: 3\n", "steps: many\n",
	},
	"plan of edits": {
		func(path string) error {
			return onText(path, func(file string, text []byte) error {
				_, err := editeval.Parse(file, text)
				return err
			})
		},
		"limit: 1\nmodels: a\neditors: rome\nedits: x\n",
		"limit: 1\nlimit: 1\nmodels: a\neditors: rome\nedits: x\n",
		"limt: 1\nmodels: a\neditors: rome\nedits: x\n", "limit: many\nmodels: a\neditors: rome\nedits: x\n",
	},
	"recipe": {
		func(path string) error {
			return onText(path, func(file string, text []byte) error {
				_, err := merge.Parse(file, text)
				return err
			})
		},
		"dtype: float32\nmerge_method: linear\nmodels: [{model: a}]\n",
		"dtype: float32\ndtype: float32\nmerge_method: linear\nmodels: [{model: a}]\n",
		"dtpe: float32\nmerge_method: linear\nmodels: [{model: a}]\n",
		"dtype: [1]\nmerge_method: linear\nmodels: [{model: a}]\n",
	},
	"task": {
		func(path string) error {
			_, err := task.Load([]string{path})
			return err
		},
		"repeats: 1\n" + restOfTask, "repeats: 1\nrepeats: 1\n" + restOfTask, "repets: 1\n" + restOfTask,
		"repeats: many\n" + restOfTask,
	},
}

const restOfTask = `task: t
dataset_path: json
dataset_kwargs: {data_files: {test: a.jsonl}}
test_split: test
doc_to_text: a
doc_to_target: b
`

// onText gives a reader of text that of a file.
func onText(path string, read func(file string, text []byte) error) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return read(path, text)
}

// TestYAMLReaders: every format is as strict as the others, and says where a fault is.
func TestYAMLReaders(t *testing.T) {
	for name, c := range yamlReaders {
		for fault, x := range map[string]struct{ text, want string }{
			"duplicate key":    {c.twice, `:2:\d+: .*given twice`},
			"unknown key":      {c.unknown, `:1:\d+: .*did you mean "\w+"`},
			"wrong type":       {c.mistyped, `:1:\d+: `},
			"deep in brackets": {"a: " + strings.Repeat("[", 10_000), `:1:\d+: .* deep`},
			"deep in blocks":   {strings.Repeat("- ", 5000) + "x\n", `:1:\d+: .* deep`},
			"aliases":          {fuzzlimit.Aliases(9), `:\d+:\d+: (.*aliases expand|an anchor)`},
			"tab":              {"a:\n\tb: 1\n", `:2:1: `},
			"second document":  {c.fine + "---\n" + c.fine, `:\d+:\d+: .*(one document|documents)`},
			"unknown tag":      {"a: !!set {x}\n", `:1:\d+: .*tag !!set`},
		} {
			if name == "recipe" && fault == "second document" {
				continue // a recipe may have several
			}

			path := filepath.Join(t.TempDir(), "x.yaml")
			if err := os.WriteFile(path, []byte(x.text), 0o666); err != nil {
				t.Fatal(err)
			}

			err := c.read(path)
			if err == nil || !regexp.MustCompile(`x\.yaml`+x.want).MatchString(err.Error()) {
				t.Errorf("%s, %s: %v, want x.yaml%s", name, fault, err, x.want)
			}
		}

		// what an editor puts around a text, and what ends it, changes nothing
		for _, text := range []string{
			c.fine, "\ufeff" + c.fine, strings.ReplaceAll(c.fine, "\n", "\r\n"), "# why\n---\n" + c.fine + "...\n",
		} {
			path := filepath.Join(t.TempDir(), "x.yaml")
			if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
			if err := c.read(path); err != nil {
				t.Errorf("%s: %q: %v", name, text, err)
			}
		}
	}
}
