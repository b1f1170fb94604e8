package runcmd

import (
	"encoding/csv"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/editevalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/evalcmd"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/hub"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge"
)

// unmade stands for the folder of the run in what is checked before it is there.
const unmade = "DIR"

// made reports whether a text names what a job of the run makes.
func made(text string) bool {
	return strings.ContainsRune(text, folderMark) || text == unmade || strings.HasPrefix(text, unmade+"/")
}

// present checks that what a job names is there, or made by another job: flags and arguments, what its
// documents name, and the data of its tasks.
func (b *builder) present(c *cobra.Command, j *job) {
	for _, text := range append(inputTexts(c, j), j.configured...) {
		if made(text) || !missing(text) {
			continue
		}
		if i := strings.LastIndexByte(text, '='); i < 0 || missing(text[:i]) { // =WEIGHT
			b.Add(j.Place, strictyaml.ErrValue, "job %s: there is no %s", j.name, text)
		}
	}

	tasks, data := values(c, j, "tasks"), values(c, j, "task-data")
	name, text := j.reads(c)
	if text != nil {
		paths, more, folders := documentInputs(j.verb, name, text)
		for _, path := range paths {
			if !made(path) && missing(path) && missing(filepath.Join(filepath.Dir(name), path)) {
				b.Add(j.Place, strictyaml.ErrValue, "job %s: %s: there is no %s", j.name, name, path)
			}
		}

		tasks, data = append(tasks, more...), append(data, folders...)
		for _, err := range recipeMissing(j.verb, name, text) {
			b.Add(j.Place, strictyaml.ErrValue, "job %s: %s: %v", j.name, name, err)
		}
	}

	if len(tasks) == 0 || slices.ContainsFunc(append(slices.Clone(tasks), data...), made) {
		return
	}

	for i, t := range tasks {
		if at := strings.LastIndexByte(t, '='); at > 0 && missing(t) {
			tasks[i] = t[:at] // =WEIGHT
		}
	}

	if suite, err := task.Load(tasks, data...); err == nil { // the verb's own check has told about others
		for _, err := range parts(suite.CheckData()) {
			b.Add(j.Place, strictyaml.ErrValue, "job %s: %v", j.name, err)
		}
	}
}

// parts takes errors that were joined apart.
func parts(err error) []error {
	var several interface{ Unwrap() []error }
	if err == nil {
		return nil
	}
	if errors.As(err, &several) {
		return several.Unwrap()
	}
	return []error{err}
}

// reads gives the document that a job's verb reads: the recipe in the plan, or the file that is its first
// argument. Without one, the text is nil.
func (j *job) reads(c *cobra.Command) (name string, text []byte) {
	if j.recipe != nil {
		return recipeName(j.name), j.document(unmade)
	}

	use := strings.Fields(c.Use)
	if len(use) < 2 || !strings.HasSuffix(use[1], ".yaml") {
		return "", nil
	}

	for _, a := range j.call[len(strings.Fields(j.verb)):] {
		if strings.HasPrefix(a, "--") {
			continue
		}
		if made(a) {
			return "", nil
		}

		text, err := safefile.ReadFile(a, strictyaml.MaxBytes)
		if err != nil {
			return "", nil // which is told anyway
		}

		return a, text
	}

	return "", nil
}

// documentInputs are what a document names: files and folders, and tasks with the folders of their data.
func documentInputs(verb, name string, text []byte) (paths, tasks, data []string) {
	switch verb {
	case "eval batch":
		return evalcmd.Inputs(name, text)
	case "editeval":
		return editevalcmd.Inputs(name, text)
	}
	return nil, nil, nil
}

// recipeMissing tells which models of a recipe are not there.
func recipeMissing(verb, name string, text []byte) []error {
	if verb != "merge" && verb != "conflict" {
		return nil
	}

	r, err := merge.Parse(name, text)
	if err != nil {
		return nil // which is told anyway
	}
	return parts(r.Missing(made))
}

// values are what a job gives a flag, item by item.
func values(c *cobra.Command, j *job, flag string) (list []string) {
	f := c.Flags().Lookup(flag)
	if f == nil {
		return nil
	}

	for _, a := range j.call {
		text, ok := strings.CutPrefix(a, "--"+f.Name+"=")
		if !ok {
			continue
		}

		if _, several := f.Value.(pflag.SliceValue); !several || !strings.HasSuffix(f.Value.Type(), "Slice") {
			list = append(list, text)
			continue
		}

		items, err := csv.NewReader(strings.NewReader(text)).Read()
		if err != nil {
			items = []string{text}
		}

		list = append(list, items...)
	}

	return list
}

// inputTexts are values of a job that must be names of files or folders.
func inputTexts(c *cobra.Command, j *job) (list []string) {
	list = append(list, j.inputs...)
	words := strings.Fields(j.verb)
	if use := strings.Fields(c.Use); len(use) > 1 && isPathWord(use[1]) && words[0] != "bench" &&
		j.verb != "eval tasks check" && j.verb != "eval tasks show" {
		for _, a := range j.call[len(words):] {
			if !strings.HasPrefix(a, "--") {
				list = append(list, a)
			}
		}
	}

	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !cli.IsInput(f) || f.Name == "tasks" { // which are names as well
			return
		}
		for _, text := range values(c, j, f.Name) {
			if text != "-" && text != "" {
				list = append(list, text)
			}
		}
	})

	return list
}

// configure notes the inputs that a file of settings gave to a verb which was rehearsed.
func (j *job) configure(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed || !cli.IsInput(f) || j.flags[f.Name] || f.Name == "tasks" {
			return
		}
		if list, several := f.Value.(pflag.SliceValue); several {
			j.configured = append(j.configured, list.GetSlice()...)
		} else if text := f.Value.String(); text != "" && text != "-" {
			j.configured = append(j.configured, text)
		}
	})
}

func missing(path string) bool {
	if _, err := os.Stat(path); err == nil {
		return false
	}
	_, named := hub.Find(path)
	return !named
}
