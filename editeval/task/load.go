package task

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/modelcompress/compress/editeval/task/internal/data"
	"github.com/modelcompress/compress/editeval/task/internal/filter"
	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/jinja"
	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/safefile"
)

// The ways in which tasks, data and requests can be wrong; errors of this package wrap one of them, one of
// package lm or tokenizer, or one of the operating system.
var (
	ErrSyntax      = taskfile.ErrSyntax      // the file is no YAML of keys and values
	ErrUnknownKey  = taskfile.ErrUnknownKey  // in a task file
	ErrValue       = taskfile.ErrValue       // of a key
	ErrMissing     = taskfile.ErrMissing     // a key that is needed
	ErrDuplicate   = taskfile.ErrDuplicate   // two definitions of one name
	ErrUnknownTask = taskfile.ErrUnknownTask // no definition of a name
	ErrCycle       = taskfile.ErrCycle       // groups or files that contain themselves
	ErrUnsupported = taskfile.ErrUnsupported // outside of what is read of task files
	ErrTemplate    = jinja.ErrSyntax         // a template that cannot be read
	ErrUndefined   = jinja.ErrUndefined      // a name in a template that the document lacks
	ErrOutside     = jinja.ErrUnknown        // a filter, method or statement of Jinja that is not known here
	ErrFilter      = filter.ErrUnknown       // no filter of that name
	ErrMetric      = metric.ErrUnknown       // no metric of that name
	ErrClasses     = metric.ErrClasses       // classes that a metric is not defined for
	ErrNoData      = data.ErrNotFound        // a data file is not where it should be
	ErrRecord      = data.ErrRecord          // a data file has a bad record; the error names the line
	ErrDocument    = prompt.ErrDocument      // a document does not fit its task
	ErrExamples    = prompt.ErrExamples      // fewer documents than a prompt needs examples
)

//go:embed all:shipped
var shippedFiles embed.FS

// shipped reads the definitions of this package, once.
var shipped = sync.OnceValues(func() (*taskfile.Library, error) {
	sub, err := fs.Sub(shippedFiles, "shipped")
	if err != nil {
		return nil, err
	}

	l := taskfile.NewLibrary()
	l.Own = func([]byte) bool { return true }

	files, err := taskfile.Folder(sub)
	for _, f := range files {
		read := func(p string) ([]byte, error) { return fs.ReadFile(sub, strings.TrimPrefix(p, shippedPrefix)) }
		err = errors.Join(err, l.Add(read, shippedPrefix+f, true))
	}

	return l, errors.Join(err, l.Resolve())
})

// shippedTexts are the hashes of the files of this package, so that a copy of one of them is known as such.
var shippedTexts = sync.OnceValues(func() (map[[sha256.Size]byte]bool, error) {
	texts := map[[sha256.Size]byte]bool{}
	err := fs.WalkDir(shippedFiles, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(shippedFiles, p)
		texts[sha256.Sum256(text)] = true
		return err
	})

	return texts, err
})

// shippedPrefix marks the paths of definitions that are part of this package.
const shippedPrefix = "shipped:"

// Suite is tasks and groups that were chosen, and where their data are.
type Suite struct {
	lib    *taskfile.Library
	chosen []string
	tasks  []string // all tasks under what was chosen, each once, in order
	groups []string
	bases  []string
	files  map[string][]string // that were read, with the names that they define
}

// Load finds tasks: each entry is the name of a task, group or tag, a pattern of such names, a task file, a
// folder of task files, or a pattern of files. Names refer to definitions in the given files first, and to
// those of this package. Data files are looked for in the working directory, beside the task file, and in the
// folders of data.
func Load(entries []string, dataFolders ...string) (*Suite, error) {
	builtIn, err := shipped()
	if err != nil {
		return nil, err
	}

	own, err := shippedTexts()
	if err != nil {
		return nil, err
	}

	s := &Suite{files: map[string][]string{}, lib: taskfile.NewLibrary(), bases: append([]string{"."}, dataFolders...)}
	s.lib.Own = func(text []byte) bool { return own[sha256.Sum256(text)] }

	var names []string
	for _, e := range entries {
		some, err := s.read(e)
		if err != nil {
			return nil, err
		}
		names = append(names, some...)
	}

	// Own definitions first, so that a task of the same name replaces the one that is built in.
	if err := s.lib.Resolve(); err != nil {
		return nil, err
	}

	// The built-in ones only fill what is still missing.
	s.lib.Fill(builtIn)

	for _, n := range names {
		found, err := s.lib.Find(n)
		if err != nil {
			return nil, err
		}
		s.chosen = append(s.chosen, found...)
	}

	return s, s.expand()
}

// read adds the files of an entry and gives the names that it stands for.
func (s *Suite) read(entry string) ([]string, error) {
	info, err := os.Stat(entry)
	switch {
	case err == nil && info.IsDir():
		return s.folder(entry)
	case err == nil:
		return s.file(filepath.ToSlash(entry), false)
	case strings.ContainsAny(entry, "*?["):
		files, err := filepath.Glob(entry)
		if err != nil || len(files) == 0 {
			return []string{entry}, nil // of names
		}

		var names []string
		for _, f := range files {
			some, err := s.file(filepath.ToSlash(f), true)
			if err != nil {
				return nil, err
			}
			names = append(names, some...)
		}

		return names, nil
	case strings.HasSuffix(entry, ".yaml") || strings.HasSuffix(entry, ".yml"):
		return nil, err
	}

	return []string{entry}, nil
}

// file adds a file; its name stands for what it defines. A file that was named before is not read again.
func (s *Suite) file(name string, skip bool) ([]string, error) {
	whole, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}

	if names, ok := s.files[whole]; ok {
		return names, nil
	}

	before := s.lib.Names()
	if err := s.lib.Add(readFile, name, skip); err != nil {
		return nil, err
	}

	// A tag would name its tasks a second time.
	var names []string
	for _, n := range s.lib.Names() {
		_, isTag := s.lib.Tags[n]
		if !slices.Contains(before, n) && !isTag {
			names = append(names, n)
		}
	}

	s.files[whole] = names
	return names, nil
}

// maxTask bounds a task file.
const maxTask = 16 << 20

func readFile(name string) ([]byte, error) { return safefile.ReadFile(name, maxTask) }

func (s *Suite) folder(dir string) ([]string, error) {
	files, err := taskfile.Folder(os.DirFS(dir))
	if err != nil {
		return nil, err
	}

	var names []string
	for _, f := range files {
		some, err := s.file(path.Join(filepath.ToSlash(dir), f), true)
		if err != nil {
			return nil, err
		}
		names = append(names, some...)
	}

	if len(names) == 0 {
		return nil, fmt.Errorf("%s: %w: no task files in the folder", dir, ErrUnknownTask)
	}

	return names, nil
}

// expand lists the tasks under what was chosen.
func (s *Suite) expand() error {
	for _, name := range s.chosen {
		tasks, groups, err := s.lib.Members(name)
		if err != nil {
			return err
		}

		// Groups overlap; a task is run once.
		for _, t := range tasks {
			if !slices.Contains(s.tasks, t) {
				s.tasks = append(s.tasks, t)
			}
		}

		for _, g := range groups {
			if !slices.Contains(s.groups, g) {
				s.groups = append(s.groups, g)
			}
		}
	}

	if len(s.tasks) == 0 {
		return fmt.Errorf("%w: none was chosen", ErrUnknownTask)
	}

	return nil
}

// Tasks lists the names of the tasks, each once, in the order in which they run.
func (s *Suite) Tasks() []string { return slices.Clone(s.tasks) }

// Groups lists the names of the groups.
func (s *Suite) Groups() []string { return slices.Clone(s.groups) }

// prompter prepares a task.
func (s *Suite) prompter(ctx context.Context, name string, o *Options) (*prompt.Prompter, error) {
	t := s.lib.Tasks[name]
	conversation, err := o.Chat.prompts(ctx)
	if err != nil {
		return nil, err
	}
	return prompt.New(ctx, t,
		prompt.Options{Bases: s.basesOf(t.Path), Shots: o.Shots, Seed: o.seed(), System: o.System, Chat: conversation})
}

// Definition describes a task, group or tag for people.
type Definition struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"` // task, group or tag
	Path     string   `json:"path,omitempty"`
	Version  string   `json:"version,omitempty"`
	Output   string   `json:"output_type,omitempty"`
	Shots    *int     `json:"num_fewshot,omitempty"`
	Metrics  []string `json:"metrics,omitempty"`
	Members  []string `json:"members,omitempty"`
	Data     []string `json:"data,omitempty"`
	Origins  []Origin `json:"origins,omitempty"` // of the data, of a shipped task
	Template string   `json:"doc_to_text,omitempty"`
	Target   string   `json:"doc_to_target,omitempty"`
	Choices  string   `json:"doc_to_choice,omitempty"`
	Filters  []string `json:"filters,omitempty"` // NAME: FUNCTION, FUNCTION …
	Until    []string `json:"until,omitempty"`   // what ends a generated text
	Tokens   int      `json:"max_gen_toks,omitempty"`
}

// Definitions lists what can be chosen: the given entries, or all definitions of this package for none.
func Definitions(entries []string) ([]Definition, error) {
	lib, err := shipped()
	if err != nil {
		return nil, err
	}

	names := lib.Names()
	if len(entries) > 0 {
		s, err := Load(entries)
		if err != nil {
			return nil, err
		}
		lib, names = s.lib, slices.Concat(s.groups, s.tasks)
	}

	out := make([]Definition, 0, len(names))
	for _, n := range names {
		out = append(out, describe(lib, n))
	}

	return out, nil
}

// written is a field of a definition as people read it.
func written(field any) string {
	switch field := field.(type) {
	case nil:
		return ""
	case taskfile.Function:
		return "!function " + field.Name
	case *taskfile.Function:
		return "!function " + field.Name
	}
	return pyvalue.Str(field)
}

func describe(lib *taskfile.Library, name string) Definition {
	if g := lib.Groups[name]; g != nil {
		return Definition{Name: name, Kind: "group", Path: g.Path, Version: g.Version, Members: g.Members}
	}

	t := lib.Tasks[name]
	if t == nil {
		return Definition{Name: name, Kind: "tag", Members: slices.Sorted(slices.Values(lib.Tags[name]))}
	}

	d := Definition{
		Name: name, Kind: "task", Path: t.Path, Version: t.Version, Output: t.OutputType,
		Shots: t.NumFewshot,
	}
	d.Template = written(t.DocToText)
	d.Target = written(t.DocToTarget)
	d.Choices = written(t.DocToChoice)

	if t.OutputType == taskfile.GenerateUntil {
		if d.Until, d.Tokens = t.Generation.Until, t.Generation.MaxTokens; d.Tokens == 0 {
			d.Tokens = taskfile.DefaultTokens
		}
	}

	for _, f := range t.Filters {
		var steps []string
		for _, step := range f.Steps {
			steps = append(steps, step.Function)
		}
		d.Filters = append(d.Filters, f.Name+": "+strings.Join(steps, ", "))
	}

	for _, m := range t.Metrics {
		d.Metrics = append(d.Metrics, m.Name)
	}

	for _, split := range []string{t.TestSplit, t.ValidationSplit, t.TrainingSplit, t.Fewshot.Split} {
		for _, f := range t.Data[split] {
			if !slices.Contains(d.Data, f) {
				d.Data = append(d.Data, f)
			}
		}
	}

	if strings.HasPrefix(t.Path, shippedPrefix) {
		for _, f := range d.Data {
			if o, ok := OriginOf(f); ok {
				d.Origins = append(d.Origins, o)
			}
		}
	}
	return d
}
