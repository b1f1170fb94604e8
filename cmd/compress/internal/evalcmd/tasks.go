package evalcmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/task"
)

// Definitions lists or shows tasks.
func Definitions(j *cli.Job, entries []string) (any, error) {
	list, err := task.Definitions(entries)
	if err != nil {
		return nil, err
	}

	if len(entries) == 0 {
		showList(j, list)
	} else {
		showEach(j, list)
	}

	return list, nil
}

// TaskNames lists the tasks, groups and tags that come with the program; nothing if they cannot be read.
func TaskNames() (names []string) {
	list, err := task.Definitions(nil)
	if err != nil {
		return nil
	}
	for _, d := range list {
		names = append(names, d.Name)
	}
	return names
}

// ErrCheck: a task that was checked has faults.
var ErrCheck = errors.New("tasks with faults")

// Check tries tasks without a model.
func Check(j *cli.Job, entries, data []string, o Options) (any, error) {
	suite, err := task.Load(entries, data...)
	if err != nil {
		return nil, eachFault(entries, data, err)
	}

	list, err := suite.Check(o.Task)
	if err != nil {
		return nil, err
	}

	var bad []string
	for _, c := range list {
		if c.Err != "" {
			bad = append(bad, withHint(c.Err, c.Hint))
		}
	}

	showChecked(j, list)
	if len(bad) > 0 {
		return nil, fmt.Errorf("%w: %d of %d: %s", ErrCheck, len(bad), len(list), strings.Join(bad, "; "))
	}

	return list, nil
}

// eachFault looks for what else is wrong where tasks cannot be loaded: the files of the entries are loaded one
// by one, and the error names all that cannot. first is what a file has, or all of them together.
func eachFault(entries, data []string, first error) error {
	var bad []string
	for _, entry := range entries {
		files := []string{entry}
		if st, err := os.Stat(entry); err == nil && st.IsDir() {
			if files, err = filepath.Glob(filepath.Join(entry, "*.yaml")); err != nil {
				return errors.Join(first, err)
			}
		}

		for _, file := range files {
			if _, err := task.Load([]string{file}, data...); err != nil {
				bad = append(bad, err.Error())
			}
		}
	}

	if len(bad) < 2 {
		return first
	}

	return fmt.Errorf("%w: %d: %s", ErrCheck, len(bad), strings.Join(bad, "; "))
}

// Compare tests the differences between two runs.
func Compare(j *cli.Job, a, b string, draws int) (any, error) {
	if draws < 1 {
		return nil, cli.Usagef("--bootstrap-iters %d: want 1 or more", draws)
	}

	c, err := task.Compare(a, b, task.CompareOptions{Draws: draws, Seed: j.Seed})
	if errors.Is(err, task.ErrOptions) {
		return nil, cli.Usagef("--bootstrap-iters: %w", err)
	}

	if err != nil {
		return nil, err
	}

	showComparison(j, c)

	for _, only := range []struct {
		dir   string
		tasks []string
	}{{a, c.OnlyA}, {b, c.OnlyB}} {
		if len(only.tasks) > 0 {
			j.Note("only in %s: %s", only.dir, strings.Join(slices.Sorted(slices.Values(only.tasks)), ", "))
		}
	}

	return c, nil
}
