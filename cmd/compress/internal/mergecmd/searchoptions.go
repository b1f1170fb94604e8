package mergecmd

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
)

// SearchKind is the kind of offers that these searches make.
const SearchKind = "merge-search"

// SearchOptions are the flags of the verb merge search.
type SearchOptions struct {
	Data                    []string // texts, FILE or FILE=WEIGHT
	Tasks                   []string // tasks, NAME or NAME=WEIGHT
	TaskData                []string // folders of their data
	Metric                  string   // of the tasks; empty: each task's own
	Shots, TaskLimit        int
	Out, Memory, InMemory   string
	Generations, Population int
	Sigma                   float64
	SeqLen, Limit           int
	Overwrite, Resume       bool
	workers.Where
}

// CheckSearch finds what is wrong with flags by themselves.
func CheckSearch(o SearchOptions) error { return o.validate() }

// validate looks at what the flags say by themselves.
func (o *SearchOptions) validate() error {
	if err := o.Where.Validate(); err != nil {
		return err
	}

	for _, c := range []struct {
		bad  bool
		text string
	}{
		{len(o.Data)+len(o.Tasks) == 0, "give --data or --tasks: what candidates are measured by"},
		{len(o.Tasks) == 0 && (len(o.TaskData) > 0 || o.Metric != ""), "--task-data and --metric go with --tasks"},
		{o.Generations < 1, fmt.Sprintf("--generations %d: want 1 or more", o.Generations)},
		{o.SeqLen < 0 || o.SeqLen == 1, fmt.Sprintf("--seqlen %d: want 2 tokens or more", o.SeqLen)},
		{o.Limit < 0 || o.TaskLimit < 0, "--limit and --task-limit: want 1 or more, or 0 for all"},
		{o.Shots < -1, fmt.Sprintf("--num-fewshot %d: want 0 or more, -1 for what the tasks say", o.Shots)},
	} {
		if c.bad {
			return cli.Usagef("%s", c.text)
		}
	}

	return nil
}

// weighted reads NAME or NAME=WEIGHT.
func weighted(flag, arg string) (name string, weight float64, err error) {
	i := strings.LastIndexByte(arg, '=')
	if i < 0 {
		return arg, 1, nil
	}
	if i == 0 {
		return "", 0, cli.Usagef("--%s %s: there is no name before =", flag, arg)
	}

	weight, err = strconv.ParseFloat(arg[i+1:], 64)
	if err != nil || !(weight > 0) || math.IsInf(weight, 0) {
		return "", 0, cli.Usagef("--%s %s: the weight after = must be a number above 0", flag, arg)
	}
	return arg[:i], weight, nil
}

// shortName is a name for reports.
func shortName(path string) string { return filepath.Base(path) }
