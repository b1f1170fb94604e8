package taskfile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/strictyaml"
)

const (
	maxIncludes = 8
	maxFiles    = 20_000 // of a folder
	nearest     = 3      // names that a message suggests
)

// Library is a set of definitions.
type Library struct {
	Tasks  map[string]*Task
	Groups map[string]*Group
	Tags   map[string][]string // names of tasks

	// Own reports whether a text is that of a file which comes with this program, whose functions are all in
	// package builtin; nil: none.
	Own func(text []byte) bool

	inline []inline
}

// inline is a task or group that is written inside of a group.
type inline struct {
	doc   *document
	dict  *pyvalue.Dict
	group *Group
	at    int // among the members of the group
}

// NewLibrary makes an empty library.
func NewLibrary() *Library {
	return &Library{Tasks: map[string]*Task{}, Groups: map[string]*Group{}, Tags: map[string][]string{}}
}

// Reader reads a file by its path; paths of included files are made from those of the files that include them.
type Reader func(path string) ([]byte, error)

// Add reads a definition. With skip, a file that defines neither a task nor a group, but is there to be
// included, is passed over.
func (l *Library) Add(read Reader, file string, skip bool) error {
	doc, err := l.load(read, file, 0)
	if err != nil {
		return err
	}

	_, isGroup := doc.root.Get("group")
	members, _ := doc.root.Get("task")
	if _, isList := members.([]any); isList && isGroup {
		return l.addGroup(doc, doc.root)
	}
	if _, isText := members.(string); !isText && skip {
		return nil
	}
	if _, isText := members.(string); !isText && members != nil {
		return fmt.Errorf("%s: a list of tasks without a group: %w", file, ErrMissing)
	}

	return l.addTask(doc)
}

func (l *Library) addTask(doc *document) error {
	t, err := doc.task()
	if err != nil {
		return err
	}

	if other, ok := l.Tasks[t.Name]; ok {
		return fmt.Errorf("%s: task %q is defined in %s too: %w", t.Path, t.Name, other.Path, ErrDuplicate)
	}
	if other, ok := l.Groups[t.Name]; ok {
		return fmt.Errorf("%s: %q is a group in %s: %w", t.Path, t.Name, other.Path, ErrDuplicate)
	}

	l.Tasks[t.Name] = t
	for _, tag := range t.Tags {
		l.Tags[tag] = append(l.Tags[tag], t.Name)
	}

	return nil
}

func (l *Library) addGroup(doc *document, root *pyvalue.Dict) error {
	g, inside, err := doc.group(root)
	if err != nil {
		return err
	}

	if other, ok := l.Groups[g.Name]; ok {
		return fmt.Errorf("%s: group %q is defined in %s too: %w", g.Path, g.Name, other.Path, ErrDuplicate)
	}
	if other, ok := l.Tasks[g.Name]; ok {
		return fmt.Errorf("%s: %q is a task in %s: %w", g.Path, g.Name, other.Path, ErrDuplicate)
	}

	l.Groups[g.Name] = g
	for _, at := range slices.Sorted(maps.Keys(inside)) {
		l.inline = append(l.inline, inline{doc, inside[at], g, at})
	}

	return nil
}

// Resolve adds what is written inside of groups, once all files have been read: a task of another file with
// some keys changed, or a whole definition.
func (l *Library) Resolve() error {
	for len(l.inline) > 0 {
		next := l.inline[0]
		l.inline = l.inline[1:]

		if name, ok := next.dict.Get("group"); ok {
			next.rename("group", pyvalue.Str(name))
			if err := l.addGroup(next.doc, next.dict); err != nil {
				return err
			}
			continue
		}

		name, _ := next.dict.Get("task")
		doc := &document{path: next.doc.path, root: next.dict, keys: next.doc.keys, known: next.doc.known}
		if base, ok := l.Tasks[pyvalue.Str(name)]; ok {
			doc.root = merge(doc, base.Raw, next.dict)
			delete(l.Tasks, base.Name)
			for _, tag := range base.Tags {
				l.Tags[tag] = slices.DeleteFunc(l.Tags[tag], func(s string) bool { return s == base.Name })
			}
		} else {
			next.rename("task", pyvalue.Str(name))
			doc.root = next.dict
		}

		if err := l.addTask(doc); err != nil {
			return err
		}
	}

	return nil
}

// rename puts the name of the group before that of what is defined inside of it, as the harness does.
func (i *inline) rename(key, name string) {
	over := pyvalue.NewDict()
	i.group.Members[i.at] = i.group.Name + "::" + name
	over.Set(key, i.group.Members[i.at])
	i.doc.keys[over] = places{key: i.doc.keys[i.dict][key]}
	i.dict = merge(i.doc, i.dict, over)
}

// Fill adds the definitions of another library that this one lacks.
func (l *Library) Fill(other *Library) {
	for name, t := range other.Tasks {
		if _, ok := l.Tasks[name]; !ok && l.Groups[name] == nil {
			l.Tasks[name] = t
			for _, tag := range t.Tags {
				l.Tags[tag] = append(l.Tags[tag], name)
			}
		}
	}

	for name, g := range other.Groups {
		if _, ok := l.Groups[name]; !ok && l.Tasks[name] == nil {
			l.Groups[name] = g
		}
	}
}

// Find gives the tasks of a name (of a task, a group or a tag, or a pattern of such names) in a fixed order.
func (l *Library) Find(name string) ([]string, error) {
	if strings.ContainsAny(name, "*?[") {
		var out []string
		for _, n := range l.Names() {
			if ok, err := path.Match(name, n); err != nil {
				return nil, fmt.Errorf("pattern %q: %w", name, err)
			} else if ok {
				out = append(out, n)
			}
		}

		if len(out) == 0 {
			return nil, fmt.Errorf("%w: nothing matches %q", ErrUnknownTask, name)
		}

		return out, nil
	}

	if l.Tasks[name] != nil || l.Groups[name] != nil || len(l.Tags[name]) > 0 {
		return []string{name}, nil
	}

	return nil, l.unknown(name)
}

const hintTasks = "compress eval tasks list shows all"

// unknown says that a name has no definition, and which names look most like it.
func (l *Library) unknown(name string) error {
	near := l.Names()
	slices.SortStableFunc(near, func(a, b string) int {
		return strictyaml.Distance(name, a) - strictyaml.Distance(name, b)
	})
	near = near[:min(len(near), nearest)]
	near = slices.DeleteFunc(near, func(s string) bool { return strictyaml.Distance(name, s) > max(len(name)/2, 3) })
	if len(near) == 0 {
		return failure.Hinted(fmt.Errorf("%w: %q", ErrUnknownTask, name), hintTasks)
	}
	return failure.Hinted(fmt.Errorf("%w: %q; did you mean %s?", ErrUnknownTask, name, strings.Join(near, ", ")),
		hintTasks)
}

// Names lists tasks, groups and tags.
func (l *Library) Names() []string {
	names := slices.Concat(slices.Collect(maps.Keys(l.Tasks)), slices.Collect(maps.Keys(l.Groups)),
		slices.Collect(maps.Keys(l.Tags)))
	slices.Sort(names)
	return slices.Compact(names)
}

// Members lists the tasks under a name, in order, and the groups among them, the outer ones first.
func (l *Library) Members(name string) (tasks, groups []string, err error) {
	return l.members(name, nil)
}

func (l *Library) members(name string, above []string) (tasks, groups []string, err error) {
	if slices.Contains(above, name) || len(above) > maxDepth {
		return nil, nil, fmt.Errorf("group %q: %w", name, ErrCycle)
	}
	if l.Tasks[name] != nil {
		return []string{name}, nil, nil
	}

	inside := slices.Sorted(slices.Values(l.Tags[name]))
	if g := l.Groups[name]; g != nil {
		groups, inside = append(groups, name), g.Members
	} else if len(inside) == 0 {
		return nil, nil, l.unknown(name)
	}

	for _, m := range inside {
		t, g, err := l.members(m, append(above, name))
		if err != nil {
			return nil, nil, fmt.Errorf("member of group or tag %s: %w", name, err)
		}
		tasks, groups = append(tasks, t...), append(groups, g...)
	}

	return tasks, groups, nil
}

// load reads a file and what it includes.
func (l *Library) load(read Reader, file string, depth int) (*document, error) {
	if depth > maxIncludes {
		return nil, fmt.Errorf("%s: more than %d files include each other: %w", file, maxIncludes, ErrCycle)
	}

	text, err := read(file)
	if err != nil {
		return nil, err
	}

	doc, err := parseYAML(file, text, l.functions(read, file, text))
	if err != nil {
		return nil, err
	}

	name, ok := doc.root.Get("include")
	if !ok {
		return doc, nil
	}

	s, ok := name.(string)
	if !ok || s == "" || path.IsAbs(s) {
		return nil, doc.fault(doc.root, "include", ErrValue, "include %s, want the path of a file beside this one",
			pyvalue.Repr(name))
	}

	base, err := l.load(read, path.Join(path.Dir(file), s), depth+1)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, doc.fault(doc.root, "include", err, "include %s", s)
		}
		return nil, err
	}

	maps.Copy(doc.keys, base.keys)
	doc.root = merge(doc, base.root, doc.root)
	return doc, nil
}

// functions says what the functions of a file are called in package builtin. In a file that comes with this
// program they are that package's own; in any other they are Python of the module beside it, which is not run,
// but may be a file that is known there.
func (l *Library) functions(read Reader, file string, text []byte) func(name string) string {
	if l.Own != nil && l.Own(text) {
		return func(name string) string { return name }
	}

	return func(name string) string {
		dot := strings.LastIndexByte(name, '.')
		if dot < 0 {
			return ""
		}

		module := strings.ReplaceAll(name[:dot], ".", "/") + ".py"
		python, err := read(path.Join(path.Dir(file), module))
		if err != nil {
			return ""
		}

		known, _ := builtin.Python(python, name[dot+1:])
		return known
	}
}

// merge makes a dictionary of another one with the keys of a third changed.
func merge(doc *document, base, over *pyvalue.Dict) *pyvalue.Dict {
	out := pyvalue.NewDict()
	at := places{}
	for _, from := range []*pyvalue.Dict{base, over} {
		for _, k := range from.Keys() {
			v, _ := from.Get(k)
			out.Set(k, v)
		}
	}

	maps.Copy(at, doc.keys[over])
	doc.keys[out] = at
	return out
}

// Folder lists the definition files under a folder; files that define nothing by themselves are among them.
func Folder(fsys fs.FS) ([]string, error) {
	var files []string
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if d.Type().IsRegular() && (strings.HasSuffix(p, ".yaml") || strings.HasSuffix(p, ".yml")) {
			files = append(files, p)
		}
		if len(files) > maxFiles {
			return fmt.Errorf("more than %d task files: %w", maxFiles, ErrLimit)
		}

		return nil
	})

	return files, err
}
