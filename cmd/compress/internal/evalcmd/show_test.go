package evalcmd

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/editeval/task"
)

// clean is a table without the widths of its columns.
func clean(table string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(table, "─", "")), " ")
}

// TestResultsInWords: figures with their standard errors and counts, tasks before groups and each by name, and what a
// reader must know of the documents.
func TestResultsInWords(t *testing.T) {
	five := 5
	r := &task.Results{
		Results: map[string]map[string]any{
			"sums": {"acc,none": .5, "acc_stderr,none": .125, "sample_len": 40.0, "alias": "sums"},
			"facts": {
				"exact_match,strict":        .25,
				"exact_match_stderr,strict": .0625,
				"exact_match,loose":         nil,
				"sample_len":                8.0,
			},
		},
		Groups:   map[string]map[string]any{"both": {"acc,none": .375, "acc_stderr,none": .1, "sample_len": 48.0}},
		Versions: map[string]any{"sums": 2, "facts": "1.0", "both": 1}, NShot: map[string]int{"sums": 5},
		Audits: map[string]*task.Audit{
			"sums":  {Documents: 40, Right: map[string]int{"acc,none": 20}, Truncated: 3},
			"facts": {Documents: 8, NonFinite: 1, OutOfRange: 2, Ignored: []string{"fewshot_indices"}},
		},
		Damaged: 4,
	}
	r.Config.Shots = &five

	out, said := clitest.Show(t, func(j *cli.Job) { show(j, r) })
	want := `task version filter n-shot metric value ± n right
facts 1.0 loose 0 exact_match not finite N/A 8
facts 1.0 strict 0 exact_match 0.2500 0.0625 8
sums 2 none 5 acc 0.5000 0.1250 40 20 of 40
both 1 none 0 acc 0.3750 0.1000 48`
	if clean(out) != clean(want) {
		t.Errorf("have\n%s\nwant\n%s", out, want)
	}

	remarks := []string{
		"4 lines of kept answers were damaged or without a checksum: they were dropped, and their requests asked again",
		"facts: no examples, as its definition wants: --num-fewshot 5 changes nothing here, as in " +
			"lm-evaluation-harness 0.4.13",
		"facts: 2 of 8 documents have a right choice that is none of the choices, and count as wrong",
		"facts: 1 of 8 documents have answers that are not finite numbers, and count as wrong",
		"facts: fewshot_indices changes nothing, as in lm-evaluation-harness 0.4.13 (HINT: examples from a split or " +
			"from samples)",
		"facts: signs of a collapsed model: answers that are not finite numbers",
		"sums: 3 of 40 documents are longer than the context and were cut from the left", "",
	}
	if diff := cmp.Diff(remarks, strings.Split(said, "\n")); diff != "" {
		t.Error(diff)
	}
}

// TestDefinitionsInWords: the list has a row for each definition, and one alone all that it says, its lines kept apart.
func TestDefinitionsInWords(t *testing.T) {
	shots := 3
	list := []task.Definition{
		{
			Name:     "sums",
			Kind:     "task",
			Version:  "1",
			Output:   "generate_until",
			Shots:    &shots,
			Metrics:  []string{"acc", "f1"},
			Path:     "sums.yaml",
			Template: "Q: {{q}}\nA:",
			Until:    []string{"\n"},
			Tokens:   8,
			Filters:  []string{"a: x", "b: y"},
		},
		{Name: "both", Kind: "group", Members: []string{"sums", "facts"}},
	}

	out, _ := clitest.Show(t, func(j *cli.Job) { showList(j, list) })
	want := `name kind version output n-shot metrics data of
sums task 1 generate_until 3 acc, f1
both group 2 members`
	if clean(out) != clean(want) {
		t.Errorf("have\n%s\nwant\n%s", out, want)
	}

	out, _ = clitest.Show(t, func(j *cli.Job) { showEach(j, list) })
	each := `sums (task) sums.yaml
  version  1
  output   generate_until
  metrics  acc, f1
  examples 3
  prompt   Q: {{q}}
           A:
  until    ["\n"] or 8 tokens
  filters  a: x
           b: y
both (group) 
  members  sums, facts
`
	if out != each {
		t.Errorf("have\n%s\nwant\n%s", out, each)
	}
}

// TestChecksInWords: the state of each task, with the first prompt where there is one task alone.
func TestChecksInWords(t *testing.T) {
	list := []task.Checked{
		{Task: "a", Documents: 3, Requests: 12, Prompt: "Q\n", Answers: []string{" x", " y"}},
		{Task: "b", NoData: "b: no such data file"},
		{Task: "c", Err: "c.yaml:1:1: no"},
		{Task: "d", Ignored: []string{"k", "l"}},
	}

	out, said := clitest.Show(t, func(j *cli.Job) { showChecked(j, list) })
	want := "task documents requests n-shot state a 3 12 0 fine b 0 0 0 no data here c 0 0 0 FAULT d 0 0 0 fine"
	if clean(out) != want {
		t.Errorf("%s", out)
	}
	if said != "b: no such data file\nd: keys that change nothing here: k, l\n" {
		t.Errorf("%s", said)
	}
	if out, _ := clitest.Show(t, func(j *cli.Job) { showChecked(j, list[:1]) }); !strings.HasSuffix(out,
		"first prompt: \"Q\\n\"\nanswers: [\" x\" \" y\"]\n") {
		t.Errorf("%s", out)
	}
}

// TestComparisonsInWords: both runs beside each other, what was left out, and documents that only one of them has.
func TestComparisonsInWords(t *testing.T) {
	row := task.Pair{Task: "sums", Filter: "none", Metric: "acc", Unpaired: 2}
	row.N = 10
	row.OnlyA = 1
	row.OnlyB = 4
	row.A = .5
	row.B = .75
	row.Difference = .25
	row.Low, row.High = -.125, .5
	row.P, row.Test = .375, "mcnemar"
	c := &task.Comparison{A: "x", B: "y", Remarks: []string{"other prompts"}, Rows: []task.Pair{row}}

	out, said := clitest.Show(t, func(j *cli.Job) { showComparison(j, c) })
	want := "sums none acc 10 0.5000 0.7500 +0.2500 -0.1250 +0.5000 1 4 0.375 mcnemar A: x, B: y; low and high:"
	if !strings.Contains(clean(out), want) {
		t.Errorf("%s", out)
	}
	if said != "other prompts\nsums: 2 documents are in one run only and left out\n" {
		t.Errorf("%s", said)
	}

	for _, draws := range []int{0, -1, math.MinInt} {
		clitest.Refused(t, clitest.Run(t, func(j *cli.Job) (any, error) { return Compare(j, "a", "b", draws) }),
			"want 1 or more")
	}
}

// TestEveryFault: all files of a folder that cannot be loaded are named, not the first alone.
func TestEveryFault(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"one.yaml": "task: one\nno_such_key: 1\n", "two.yaml": "task: [", "fine.txt": "not a task",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	check := func(entries ...string) clitest.Said {
		return clitest.Run(t, func(j *cli.Job) (any, error) { return Check(j, entries, nil, Options{}) })
	}
	said := check(dir)
	if said.Code == 0 || !errors.Is(said.Err, ErrCheck) || !strings.Contains(said.Stderr, "tasks with faults: 2: ") ||
		!strings.Contains(said.Stderr, "one.yaml") || !strings.Contains(said.Stderr, "two.yaml") {
		t.Errorf("%+v", said)
	}
	if said := check(filepath.Join(dir, "two.yaml")); said.Code == 0 || errors.Is(said.Err, ErrCheck) {
		t.Errorf("one fault is told as it is: %+v", said)
	}

	names := TaskNames()
	if len(names) == 0 {
		t.Error("the program has no tasks")
	}
}
