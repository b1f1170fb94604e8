package docscmd

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
	"github.com/modelcompress/compress/cmd/compress/internal/prunecmd"
	"github.com/modelcompress/compress/cmd/compress/internal/reportcmd"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/quantize"
)

// Reference makes the pages that follow from the program's own tables: those that help, manual pages and the checks of
// files go by.
func Reference(root *cobra.Command) []Source {
	list := []Source{{Path: "reference/verbs.md", Markdown: verbsPage(root)}}
	list = append(list,
		Source{Path: "reference/merge-methods.md", Markdown: mergePage()},
		Source{Path: "reference/pruning-methods.md", Markdown: prunePage()},
		Source{Path: "reference/quantisation-types.md", Markdown: quantizePage()},
		Source{Path: "reference/adapters-and-editors.md", Markdown: adaptPage()},
		Source{Path: "reference/task-files.md", Markdown: tasksPage()},
		Source{Path: "reference/input-files.md", Markdown: inputsPage()},
		Source{Path: "reference/report-files.md", Markdown: reportsPage(root)},
	)

	for _, g := range cli.Verbs(root) {
		for _, row := range g.Rows {
			if c, _, err := root.Find([]string{row[0]}); err == nil && c.Name() != "help" && c.Name() != "completion" {
				list = append(list, Source{Path: verbPath(c), Markdown: verbPage(c)})
			}
		}
	}

	return append(list, Source{Path: "docs/howto/flags-of-other-tools.md", Markdown: foreignPage()})
}

func verbPath(c *cobra.Command) string { return "reference/compress-" + c.Name() + ".md" }

// md is Markdown in the making.
type md struct{ strings.Builder }

func (m *md) line(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) }

// paragraphs writes the paragraphs of a help text.
func (m *md) paragraphs(text string) {
	for part := range strings.SplitSeq(text, "\n\n") {
		m.line("\n%s", prose(part))
	}
}

func (m *md) code(text string) { m.line("\n```\n%s\n```", strings.TrimRight(text, "\n")) }

// table writes rows below headings; the cells are Markdown.
func (m *md) table(heads []string, rows [][]string) {
	m.line("\n| %s |\n|%s", strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
	for _, r := range rows {
		m.line("| %s |", strings.Join(r, " | "))
	}
}

var (
	punctuation = regexp.MustCompile("[\\\\`*_\\[\\]<>|#~{}]")
	flagWord    = regexp.MustCompile(`--[a-z][a-z0-9-]*(?:=[a-z]+)?`)
)

// prose is plain text as Markdown, with flags as code.
func prose(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	var b strings.Builder
	last := 0
	for _, at := range flagWord.FindAllStringIndex(text, -1) {
		b.WriteString(punctuation.ReplaceAllString(text[last:at[0]], `\$0`))
		b.WriteString(code(text[at[0]:at[1]]))
		last = at[1]
	}
	b.WriteString(punctuation.ReplaceAllString(text[last:], `\$0`))
	return b.String()
}

// code is text in a code span, which may stand in a table.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(strings.ReplaceAll(text, "`", "'"), "|", `\|`) + "`"
}

func verbsPage(root *cobra.Command) string {
	var m md
	m.line("# Verbs\n\nEvery verb also has `compress VERB --help` and a manual page (`compress " +
		"man`), of the same text.")
	for _, g := range cli.Verbs(root) {
		m.line("\n## %s", prose(g.Title))
		var rows [][]string
		for _, row := range g.Rows {
			name := code("compress " + row[0])
			if c, _, err := root.Find([]string{row[0]}); err == nil && row[0] != "help" && row[0] != "completion" {
				name = "[" + name + "](compress-" + c.Name() + ".md)"
			}
			rows = append(rows, []string{name, prose(row[1])})
		}
		m.table([]string{"verb", "what it does"}, rows)
	}
	m.line("\n## Exit codes\n")
	m.table([]string{"code", "meaning"}, [][]string{
		{"0", "done"},
		{"1", "the work failed, or what it is about (model, text, adapter, task file, …) is absent or damaged"},
		{"2", "the command line is wrong, or a recipe, a plan or settings are, or an output exists"},
		{"130", "interrupted; verbs with `--resume` continue"},
	})
	return m.String()
}

func verbPage(c *cobra.Command) string {
	var m md
	m.line("# compress %s", c.Name())
	m.verb(c, "##")
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			m.line("\n## %s", strings.TrimPrefix(sub.CommandPath(), c.Root().Name()+" "))
			m.verb(sub, "###")
			for _, deep := range sub.Commands() {
				if deep.IsAvailableCommand() {
					m.line("\n## %s", strings.TrimPrefix(deep.CommandPath(), c.Root().Name()+" "))
					m.verb(deep, "###")
				}
			}
		}
	}
	return m.String()
}

// verb writes what help says of a command.
func (m *md) verb(c *cobra.Command, level string) {
	m.line("\n**%s.**", prose(c.Short))
	m.code(c.UseLine())
	m.paragraphs(c.Long)
	if c.Example != "" {
		m.line("\n%s Examples", level)
		m.code(c.Example)
	}

	for _, g := range cli.Flags(c) {
		m.line("\n%s %s", level, g.Title)
		var rows [][]string
		for _, f := range g.Flags {
			rows = append(rows, []string{code(cli.Term(f)), prose(cli.Meaning(f))})
		}
		m.table([]string{"flag", "what it does"}, rows)
	}
}

func mergePage() string {
	var m md
	m.line("# Merge methods\n\nA recipe names one as `merge_method`; `compress merge methods " +
		"NAME` prints the same. In " +
		"formulas x_j are the models, b is the base, δ_j is x_j - b, w_j are weights, N is the number of models. A " +
		"parameter of each model stands below that model, and may be a list over layers or a list of filters and " +
		"values, as in mergekit. [Merging](../docs/merging.md) has the rest of a recipe, " +
		"[Mediate](../docs/mediate.md) " +
		"the method mediate.")

	all := mergecmd.Methods()
	var rows [][]string
	for _, e := range all {
		rows = append(rows, []string{"[" + code(e.Name) + "](#" + e.Name + ")", prose(e.Summary), prose(e.Fits)})
	}
	m.table([]string{"method", "what it writes", "when"}, rows)

	for _, e := range all {
		m.line("\n## %s\n\n%s. %s", prose(e.Name), prose(strings.ToUpper(e.Summary[:1])+e.Summary[1:]), prose(e.Fits))
		m.line("\n%s", prose("Formula: "+e.Formula+"."))
		m.line("\n%s", prose("Models: "+mergecmd.Inputs(e)+". Source: "+e.Source+"."))
		var rows [][]string
		for _, p := range e.Parameters {
			rows = append(rows, []string{code(p.Name), mergecmd.Of(p), code(mergecmd.Default(p)), prose(p.Meaning)})
		}
		if len(rows) > 0 {
			m.table([]string{"parameter", "of", "default", "what it does"}, rows)
		}
		m.line("\n```yaml\n%s```", e.Example())
	}
	return m.String()
}

// words writes a table of names and their meanings.
func (m *md) words(title string, names []string, meaning func(string) string) {
	var rows [][]string
	for _, n := range names {
		rows = append(rows, []string{code(n), prose(meaning(n))})
	}
	m.line("\n## %s", title)
	m.table([]string{"name", "what it is"}, rows)
}

func prunePage() string {
	var m md
	m.line("# Pruning methods\n\nFor [`compress prune`](compress-prune.md). Any metric goes with " +
		"any pattern, allocation " +
		"and update. In formulas W is a weight, s the mean square of its input over the calibration text, G its " +
		"gradient, H the Hessian of the inputs.")
	m.words("Metrics: `--method`", prunecmd.Methods(), prune.Meaning)
	m.words("Allocations: `--allocation`", prunecmd.Allocations, prune.Meaning)
	m.words("Updates: `--update`", prunecmd.Updates, prune.Meaning)
	return m.String()
}

func quantizePage() string {
	var m md
	m.line("# Quantisation types\n\nFor [`compress quantize --to`](compress-quantize.md). Folders " +
		"are read by vLLM, SGLang " +
		"and transformers, GGUF files by llama.cpp and ollama; every verb here reads all of them " +
		"([formats](../docs/formats.md)).")
	var folders, files [][]string
	for _, s := range quantize.Schemes() {
		if s.File() {
			files = append(files, []string{code(s.Name), prose(s.Meaning())})
		} else {
			folders = append(folders, []string{code(s.Name), code(s.Layout), prose(s.Meaning())})
		}
	}
	m.line("\n## Folders")
	m.table([]string{"name", "layout", "what it is"}, folders)
	m.line("\n## GGUF files\n\nMixtures are those of llama.cpp: some tensors get more bits than most.")
	m.table([]string{"name", "what it is"}, files)
	m.words("Methods: `--method`", quantize.Methods, quantize.Meaning)
	m.words("Ranges: `--range`", quantize.Ranges, quantize.Meaning)
	return m.String()
}

func adaptPage() string {
	var m md
	m.line("# Adapters and editors")
	m.words("Adapters: `lora train --kind`", lora.Kinds, lora.Meaning)
	m.words("Editors: `edit --method`", edit.Methods(), edit.Meaning)
	return m.String()
}

func tasksPage() string {
	var m md
	m.line("# Task files\n\nThe keys of a task file for [`compress eval --tasks`](compress-eval.md), those of " +
		"lm-evaluation-harness. A key that is not here is an error with its line. `compress eval tasks check FILE` " +
		"shows the first prompt; [evaluation](../docs/evaluation.md) says more.")
	byPart := map[string][][]string{}
	var parts []string
	for _, k := range task.Keys() {
		if byPart[k.Within] == nil {
			parts = append(parts, k.Within)
		}
		byPart[k.Within] = append(byPart[k.Within], []string{code(k.Name), code(k.Default), prose(k.Meaning)})
	}
	for _, p := range parts {
		if p != "" {
			m.line("\n## Below %s", code(p))
		}
		m.table([]string{"key", "default", "what it says"}, byPart[p])
	}
	m.line("\n## Example\n\n```yaml\ntask: capitals\ndataset_path: json\ndataset_kwargs: {data_files: {test: " +
		"capitals.jsonl}}\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: \"The capital of " +
		"{{country}} is\"\ndoc_to_choice: [Paris, Rome, Madrid]\ndoc_to_target: \"{{city}}\"\n```")
	return m.String()
}

func inputsPage() string {
	var m md
	m.line("# Input files\n\nThe files that users write, by what reads them; `compress schema --input VERB` prints " +
		"the same. Recipes are under [merge methods](merge-methods.md), task files have [a page](task-files.md).")
	for _, in := range reportcmd.Inputs() {
		m.line("\n## %s", in.Name)
		m.line("\nFor `compress %s`. %s", strings.Join(in.Readers(), "`, `compress "), prose(in.What))
		var rows [][]string
		for _, k := range in.Keys {
			rows = append(rows, []string{code(k.Name), prose(k.Meaning)})
		}
		m.table([]string{"key", "what it says"}, rows)
		m.code(in.Example)
	}
	return m.String()
}

// schema is the part of a JSON Schema that the page shows.
type schema struct {
	Properties map[string]schema `json:"properties"`
	AnyOf      []schema          `json:"anyOf"`
	Items      *schema           `json:"items"`
	Ref        string            `json:"$ref"`
	Type       any               `json:"type"`
	Required   []string          `json:"required"`
	Others     any               `json:"additionalProperties"`
}

func reportsPage(root *cobra.Command) string {
	var m md
	m.line("# Report files\n\nThe keys at the top of what a verb prints with `--json` and writes " +
		"with `--report FILE`; " +
		"`compress schema VERB` prints the whole JSON Schema. Every report also has command, args, flags, version, " +
		"seed, started, finished, seconds, cpu\\_seconds and peak\\_memory\\_bytes, and where they apply device, " +
		"fallbacks and remarks. " +
		"[Pipelines](../docs/pipelines.md) says how to use them.")
	common := map[string]bool{}
	for _, k := range strings.Fields("command args flags version seed started finished seconds " +
		"cpu_seconds peak_memory_bytes device " +
		"fallbacks remarks") {
		common[k] = true
	}

	for _, verb := range reportcmd.SchemaVerbs(root) {
		var s schema
		if err := json.Unmarshal(reportcmd.SchemaOf(verb), &s); err != nil {
			panic("docscmd: an embedded schema is no JSON: " + err.Error())
		}
		forms := append(s.AnyOf, s)
		rows := map[string][]string{}
		for _, f := range forms {
			for key, p := range f.Properties {
				if !common[key] {
					always := ""
					if slices.Contains(f.Required, key) {
						always = "always"
					}
					rows[key] = []string{code(key), prose(p.kind()), always}
				}
			}
		}
		m.line("\n## %s", verb)
		if len(rows) == 0 {
			m.line("\nOnly what every report has.")
			continue
		}
		var list [][]string
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			list = append(list, rows[key])
		}
		m.table([]string{"key", "what it is", ""}, list)
	}
	return m.String()
}

// kind says in words what values a schema allows.
func (s schema) kind() string {
	switch {
	case s.Ref != "":
		_, name, _ := strings.Cut(strings.TrimPrefix(s.Ref, "#/$defs/"), "/")
		if name == "" {
			name = strings.TrimPrefix(s.Ref, "#/$defs/")
		}
		return "object " + name
	case len(s.AnyOf) > 0:
		var list []string
		for _, f := range s.AnyOf {
			if k := f.kind(); k != "null" {
				list = append(list, k)
			}
		}
		return strings.Join(list, " or ")
	case s.Items != nil:
		return "list of " + s.Items.kind()
	}

	switch t := s.Type.(type) {
	case string:
		return t
	case []any:
		var list []string
		for _, x := range t {
			if x != "null" {
				list = append(list, fmt.Sprint(x))
			}
		}
		return strings.Join(list, " or ")
	}
	return "any value"
}

func foreignPage() string {
	var m md
	m.line("# Flags of other tools\n\nFlags of mergekit, PEFT and TRL, axolotl, lm-eval, " +
		"llama.cpp, transformers and the " +
		"published pruning code, and what they are here. The program answers them the same way: " +
		"`--lora-r` says that it " +
		"is `--rank` here. Recipes of mergekit, adapters of PEFT and task files of lm-eval are taken as they are. " +
		"[Whole commands side by side](coming-from-other-tools.md).")

	var tools []string
	rows := map[string][][]string{}
	for _, f := range cli.ForeignFlags() {
		if rows[f.Tool] == nil {
			tools = append(tools, f.Tool)
		}
		var flags []string
		for _, n := range f.Names {
			flags = append(flags, code(n))
		}
		verbs := "all"
		if len(f.Verbs) > 0 {
			verbs = strings.Join(f.Verbs, ", ")
		}
		rows[f.Tool] = append(rows[f.Tool], []string{strings.Join(flags, ", "), verbs, prose(f.Here)})
	}
	for _, t := range tools {
		m.line("\n## %s", prose(t))
		m.table([]string{"flag there", "verbs", "here"}, rows[t])
	}
	return m.String()
}
