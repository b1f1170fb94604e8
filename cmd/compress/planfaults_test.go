package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// planFaults are jobs with a fault, which stands in the line that begins with the mark; says is what the
// message must hold.
var planFaults = []struct{ job, mark, says string }{
	{
		"verb: prune\nargs: [nano/base]\nflags: {method: magnitude,\nsave: bitmap}", "save",
		`"bitmap"; known: dense, bitmask`,
	},
	{"verb: prune\nargs: [nano/base]\nflags:\n  method: wandaa\n  calib: nano/text/calib.txt", "  method", "wandaa"},
	{"verb: prune\nargs: [nano/base]\nflags:\n  method: magnitude\n  pattern: 4:2", "  pattern", "4:2"},
	{"verb: prune\nargs: [nano/base]\nflags:\n  method: magnitude\n  sparsity: 1.5", "  sparsity", "1.5"},
	{"verb: prune\nargs: [nano/base]\nflags:\n  method: magnitude\n  sparsity: much", "  sparsity", "want a number"},
	{"verb: prune\nargs: [nano/base]\nflags:\n  metod: magnitude", "  metod", "did you mean"},
	{"verb: prune\nargs: [nano/base]\nflags:\n  method: wanda\n  calib: nano/none.txt", "  faulty", "nano/none.txt"},
	{"verb: prune\nargs: [nano/none]\nflags:\n  method: magnitude", "  faulty", "nano/none"},
	{"verb: prune\nargs: [\"${jobs.first.out}\"]\nflags:\n  method: nosuch", "  method", "nosuch"},
	{
		"verb: prune compare\nargs: [nano/base]\nflags:\n  ppl: nano/text/valid.txt\n  methods: magnitude,nosuch",
		"  methods", "nosuch",
	},
	{"verb: search\nargs: [nano/base]\nflags:\n  calib: nano/text/calib.txt\n  heldout: nano/text/valid.txt\n  " +
		"population: 1", "  population", "--population 1"},
	{"verb: search\nargs: [nano/base]\nflags:\n  calib: nano/text/calib.txt\n  heldout: nano/text/valid.txt\n  " +
		"grammar: W,Q", "  grammar", "Q"},
	{"verb: search\nargs: [nano/base]\nflags:\n  calib: nano/text/calib.txt\n  heldout: nano/text/valid.txt\n  " +
		"mode: steddy", "  mode", `did you mean "steady"`},
	{"verb: merge\nrecipe: {merge_method: nosuch, models: [{model: nano/base}]}", "recipe", "nosuch"},
	{"verb: merge\nrecipe: {merge_method: linear, models: [{model: nano/base, parameters: {weight: " +
		"1}}]}\nflags:\n  dtype: f9", "  dtype", "f9"},
	{"verb: merge\nrecipe: {merge_method: linear, models: [{model: nano/base, parameters: {weight: 1}}]}\nflags:\n  " +
		"memory: lots", "  memory", "lots"},
	{"verb: lora train\nargs: [nano/base]\nflags:\n  data: nano/text/calib.txt\n  kind: lorra", "  kind", "lorra"},
	{
		"verb: lora train\nargs: [\"${jobs.first.out}\"]\nflags:\n  data: nano/text/calib.txt\n  schedule: sine",
		"  schedule", "sine",
	},
	{
		"verb: lora train\nargs: [nano/base]\nflags:\n  data: nano/text/calib.txt\n  base-bits: 3", "  base-bits",
		"--base-bits 3",
	},
	{"verb: lora combine\nargs: [\"${jobs.first.out}\"]\nflags:\n  method: sum", "  method", "sum"},
	{"verb: edit\nargs: [nano/base]\nflags:\n  edits: nano/edits.json\n  method: romee", "  method", "romee"},
	{"verb: eval\nargs: [\"${jobs.first.out}\"]\nflags:\n  tasks: nosuch", "  tasks", "nosuch"},
	{"verb: eval\nargs: [nano/base]\nflags:\n  tasks: nano/tasks/base.yaml\n  limit: -4", "  limit", "-4"},
	{"verb: eval batch\nrecipe: {models: [nano/base], tasks: [nano/tasks/base.yaml], limmit: 3}", "recipe", "limmit"},
	{"verb: editeval\nrecipe: {models: [nano/base], editors: [{method: nosuch}], edits: nano/edits.json, tasks: " +
		"[nano/tasks/base.yaml]}", "recipe", "nosuch"},
	{"verb: convert\nargs: [nano/base]\nflags:\n  dtype: f8", "  dtype", "f8"},
	{"verb: convert\nargs: [nano/base]\nflags:\n  max-shard-size: big", "  max-shard-size", "big"},
	{"verb: ppl\nargs: [nano/base]\nflags:\n  data: nano/text/test.txt\n  convention: slide", "  convention", "slide"},
	{"verb: conflict\nrecipe: {merge_method: linear, models: [{model: nano/base, parameters: {weight: " +
		"1}}]}\nflags:\n  granularity: bloc", "  granularity", "bloc"},
	{"verb: lora train\nargs: [\"${jobs.first.out}\"]\nflags:\n  data: nano/none.jsonl", "  faulty", "nano/none.jsonl"},
	{
		"verb: lora train\nargs: [nano/base]\nflags:\n  data: [nano/text/calib.txt, nano/none.jsonl]", "  faulty",
		"nano/none.jsonl",
	},
	{
		"verb: lora train\nargs: [\"${jobs.first.out}\"]\nflags:\n  config: settings.yaml", "  faulty",
		"there is no lost.jsonl",
	},
	{
		"verb: search\nargs: [nano/base]\nflags:\n  calib: nano/none.txt\n  heldout: nano/text/valid.txt", "  faulty",
		"nano/none.txt",
	},
	{"verb: eval\nargs: [\"${jobs.first.out}\"]\nflags:\n  tasks: lost.yaml", "  faulty", "lost.jsonl"},
	{
		"verb: eval\nargs: [nano/base]\nflags:\n  tasks: nano/tasks/base.yaml\n  task-data: [nano/tasks, nano/none]",
		"  faulty", "nano/none",
	},
	{
		"verb: eval batch\nrecipe: {models: [\"${jobs.first.out}\", nano/none], tasks: [nano/tasks/base.yaml]}",
		"  faulty", "nano/none",
	},
	{"verb: eval batch\nrecipe: {models: [nano/base], tasks: [lost.yaml]}", "  faulty", "lost.jsonl"},
	{"verb: eval batch\nargs: [batch.yaml]", "  faulty", "there is no lost"},
	{"verb: editeval\nrecipe: {models: [nano/base], editors: [{method: ft}], edits: none.json, tasks: " +
		"[nano/tasks/base.yaml]}", "  faulty", "none.json"},
	{"verb: merge\nrecipe: {merge_method: linear, models: [{model: nano/none, parameters: {weight: 1}}, {model: " +
		"\"${jobs.first.out}\", parameters: {weight: 1}}]}", "  faulty", "nano/none"},
	{"verb: report\nargs: [nano/none.json]\nflags:\n  threads: 99999999", "  threads", "99999999"},
}

// TestPlanFaults: what a plan asks for and no verb would do is found before the first job, at its line.
func TestPlanFaults(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}

	t.Chdir(t.TempDir())
	if err := os.Symlink(nano, "nano"); err != nil {
		t.Fatal(err)
	}

	for name, text := range map[string]string{
		"settings.yaml": "data: [nano/text/calib.txt, lost.jsonl]\nsteps: 1\n",
		"batch.yaml":    "models: [nano/base, lost]\ntasks: [nano/tasks/base.yaml]\n",
		"lost.yaml": "task: lost\noutput_type: multiple_choice\ntest_split: test\ndataset_path: " +
			"json\ndataset_kwargs: {data_files: {test: lost.jsonl}}\ndoc_to_text: a\ndoc_to_target: " +
			"0\ndoc_to_choice: [a, b]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	for _, c := range planFaults {
		text := "version: 1\njobs:\n  first: {verb: convert, args: [nano/base]}\n  faulty:\n    " + strings.ReplaceAll(
			c.job, "\n", "\n    ") + "\n"
		line := 0
		for i, l := range strings.Split(text, "\n") {
			if strings.HasPrefix(l, "    "+c.mark) || c.mark == "  faulty" && strings.HasPrefix(l, c.mark) {
				line = i + 1
			}
		}

		if err := os.WriteFile("jobs.yaml", []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}

		var stdout, stderr bytes.Buffer
		code := run([]string{"run", "jobs.yaml", "--out", "built"}, &stdout, &stderr)
		said := stderr.String()
		at := fmt.Sprintf("jobs.yaml:%d:", line)
		if code != 2 || strings.Count(said, "\n") != 1 || !strings.Contains(said, at) ||
			!strings.Contains(said, c.says) {
			t.Errorf("exit code %d, want 2 and %s and %q: %s\n%s", code, at, c.says, said, text)
		}

		if _, err := os.Stat("built"); err == nil {
			t.Fatal("something was done")
		}
	}
}
