package taskfile

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// rules are what a task file may have: few-shot examples make some of them long, and what other YAML names by an
// anchor, task files include.
var rules = strictyaml.Options{
	MaxBytes: 4 << 20, MaxTokens: 200_000, MaxDepth: maxDepth, Tags: true, NoAliases: true,
}

const maxDepth = 32

// Function is a !function entry: what a task file calls by name. It means what the file that it stands in means by it,
// whichever file includes that one.
type Function struct {
	Name  string // as written
	Known string // what package builtin calls it; "" for Python that is not known there
	Path  string // of the file
	Line  int
}

// places are where keys stand.
type places map[string]strictyaml.Place

// document is a parsed file: its top level, and where its keys stand.
type document struct {
	path  string
	root  *pyvalue.Dict
	keys  map[*pyvalue.Dict]places
	known func(name string) string // what package builtin calls a function of this file
	free  bool                     // what is read now has no influence
}

// fault is an error at a key of a file.
func (d *document) fault(at *pyvalue.Dict, key string, err error, format string, args ...any) error {
	return d.at(d.keys[at][key], err, format, args...)
}

// at is an error at a place of a file.
func (d *document) at(p strictyaml.Place, err error, format string, args ...any) error {
	where := d.path
	if p.Line > 0 {
		where = fmt.Sprintf("%s:%d:%d", d.path, p.Line, p.Column)
	}
	return fmt.Errorf("%s: %s: %w", where, fmt.Sprintf(format, args...), err)
}

// parseYAML reads a YAML file whose top level is a mapping.
func parseYAML(path string, text []byte, known func(name string) string) (*document, error) {
	doc := &document{path: path, keys: map[*pyvalue.Dict]places{}, known: known}
	src, err := strictyaml.ParseBy(rules, path, text)
	if err != nil {
		return nil, doc.unreadable(err)
	}

	r := src.NewReader()
	top := r.Only(src, "a task file")
	if err := r.Err(); err != nil {
		return nil, doc.unreadable(err)
	}
	if top == nil {
		return nil, fmt.Errorf("%s: the file is empty: %w", path, ErrSyntax)
	}

	v, err := doc.convert(top, 0)
	if err != nil {
		return nil, err
	}

	root, ok := v.(*pyvalue.Dict)
	if !ok {
		return nil, fmt.Errorf("%s: the file is a %s, want keys and values: %w", path, pyvalue.Kind(v), ErrSyntax)
	}

	doc.root = root
	return doc, nil
}

// unreadable gives the faults that the YAML itself has the kinds of this package.
func (d *document) unreadable(err error) error {
	var p *strictyaml.Problems
	if !errors.As(err, &p) {
		return fmt.Errorf("%s: %w: %w", d.path, err, ErrSyntax)
	}

	var faults []error
	for _, x := range p.List {
		kind := ErrSyntax
		switch {
		case errors.Is(x.Err, strictyaml.ErrLimit):
			kind = ErrLimit
		case errors.Is(x.Err, strictyaml.ErrUnsupported):
			kind = ErrUnsupported
		}
		faults = append(faults, d.at(x.Place, kind, "%s", x.Message))
	}

	return errors.Join(faults...)
}

// convert makes a value of a node.
func (d *document) convert(n *strictyaml.Node, depth int) (any, error) {
	switch n.Tag {
	case "":
		return d.value(n, depth)
	case "!!str":
		return n.Text, nil
	case "!!null":
		return nil, nil
	case "!function":
		if n.Kind != strictyaml.Scalar || n.Text == "" {
			return nil, d.at(n.Place, ErrSyntax, "!function without a name")
		}
		return Function{Name: n.Text, Known: d.known(n.Text), Path: d.path, Line: n.Line}, nil
	}
	return nil, d.at(n.Place, ErrUnsupported, "tag %s; known: !function", n.Tag)
}

// value makes a value of a node without a tag.
func (d *document) value(n *strictyaml.Node, depth int) (any, error) {
	switch n.Kind {
	case strictyaml.Map:
		return d.mapping(n, depth)
	case strictyaml.List:
		list := []any{}
		for _, x := range n.Items {
			v, err := d.convert(x, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case strictyaml.Scalar:
		if n.Quoted {
			return n.Text, nil
		}
		return d.plain(n.Place, n.Text)
	}
	return nil, nil
}

func (d *document) mapping(n *strictyaml.Node, depth int) (any, error) {
	dict := pyvalue.NewDict()
	at := places{}
	for _, e := range n.Entries {
		if err := d.checkKey(e); err != nil {
			return nil, err
		}

		d.free = d.free || depth == 0 && e.Key == "metadata"
		v, err := d.convert(e.Value, depth+1)
		if err != nil {
			return nil, err
		}

		d.free = d.free && depth > 0
		dict.Set(e.Key, v)
		at[e.Key] = e.Place
	}

	d.keys[dict] = at
	return dict, nil
}

// checkKey refuses keys that YAML 1.1 reads as something else than text: the harness never finds them.
func (d *document) checkKey(e strictyaml.Entry) error {
	if d.free || e.Quoted {
		return nil
	}

	v, err := d.plain(e.Place, e.Key)
	if err != nil {
		return err
	}

	if _, isText := v.(string); !isText {
		return d.at(e.Place, ErrUnsupported, "the key %s is a %s without quotes (HINT: write %q)", e.Key,
			pyvalue.Kind(v), e.Key)
	}

	return nil
}
