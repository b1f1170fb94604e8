package taskfile

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// Bounds on a task file.
const (
	maxBytes  = 4 << 20
	maxTokens = 200_000
	maxDepth  = 32
)

// Function is a !function entry: what a task file calls by name. It means what the file that it stands in means by it,
// whichever file includes that one.
type Function struct {
	Name  string // as written
	Known string // what package builtin calls it; "" for Python that is not known there
	Path  string // of the file
	Line  int
}

// document is a parsed file: its top level, and the lines of keys.
type document struct {
	path  string
	root  *pyvalue.Dict
	lines map[*pyvalue.Dict]map[string]int
	known func(name string) string // what package builtin calls a function of this file
	free  bool                     // what is read now has no influence
}

// fault is an error at a key of a file.
func (d *document) fault(at *pyvalue.Dict, key string, err error, format string, args ...any) error {
	where := d.path
	if line := d.lines[at][key]; line > 0 {
		where = fmt.Sprintf("%s:%d", d.path, line)
	}
	return fmt.Errorf("%s: %s: %w", where, fmt.Sprintf(format, args...), err)
}

// parseYAML reads a YAML file whose top level is a mapping.
func parseYAML(path string, text []byte, known func(name string) string) (doc *document, err error) {
	defer func() {
		if r := recover(); r != nil {
			doc, err = nil, fmt.Errorf("%s: the YAML parser cannot make sense of this file: %w", path, ErrSyntax)
		}
	}()

	if err := checkText(path, text); err != nil {
		return nil, err
	}

	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", path, firstLine(yaml.FormatError(err, false, false)), ErrSyntax)
	}

	doc = &document{path: path, lines: map[*pyvalue.Dict]map[string]int{}, known: known}
	for _, d := range f.Docs {
		if d.Body == nil {
			continue
		}
		if doc.root != nil {
			return nil, fmt.Errorf("%s: more than one YAML document: %w", path, ErrSyntax)
		}

		v, err := doc.convert(d.Body, 0)
		if err != nil {
			return nil, err
		}

		root, ok := v.(*pyvalue.Dict)
		if !ok {
			return nil, fmt.Errorf("%s: the file is a %s, want keys and values: %w", path, pyvalue.Kind(v), ErrSyntax)
		}

		doc.root = root
	}

	if doc.root == nil {
		return nil, fmt.Errorf("%s: the file is empty: %w", path, ErrSyntax)
	}

	return doc, nil
}

// checkText bounds what the parser gets: it descends once per level.
func checkText(path string, text []byte) error {
	switch {
	case len(text) > maxBytes:
		return fmt.Errorf("%s: %d bytes, more than %d: %w", path, len(text), maxBytes, ErrLimit)
	case !utf8.Valid(text):
		return fmt.Errorf("%s: not UTF-8 text: %w", path, ErrSyntax)
	}

	tokens := lexer.Tokenize(string(text))
	if len(tokens) > maxTokens {
		return fmt.Errorf("%s: more than %d words and signs: %w", path, maxTokens, ErrLimit)
	}
	if at := strictyaml.TooDeep(tokens, maxDepth); at != nil {
		return fmt.Errorf("%s:%d: nested more than %d deep: %w", path, at.Position.Line, maxDepth, ErrLimit)
	}

	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// convert makes a value of a node.
func (d *document) convert(n ast.Node, depth int) (any, error) {
	if depth > maxDepth {
		return nil, d.at(n, ErrLimit, "nested more than %d deep", maxDepth)
	}

	switch n := n.(type) {
	case *ast.MappingNode:
		return d.mapping(n.Values, depth)
	case *ast.MappingValueNode:
		return d.mapping([]*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		list := []any{}
		for _, x := range n.Values {
			v, err := d.convert(x, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}

		return list, nil
	case *ast.TagNode:
		return d.tagged(n)
	case *ast.NullNode:
		return nil, nil
	case *ast.StringNode:
		if t := n.Token.Type; t == token.SingleQuoteType || t == token.DoubleQuoteType {
			return n.Value, nil
		}
		return d.plain(n, n.Value)
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return d.plain(n, n.GetToken().Value)
	case nil:
		return nil, nil
	case *ast.AnchorNode, *ast.AliasNode:
		return nil, d.at(n, ErrUnsupported, "anchors and aliases (HINT: write the value out, or use include)")
	}

	return nil, d.at(n, ErrUnsupported, "YAML of kind %s", n.Type())
}

func (d *document) at(n ast.Node, err error, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s: %w", d.path, n.GetToken().Position.Line, fmt.Sprintf(format, args...), err)
}

// tagged is a value with a tag: !function is known, and the standard ones of text.
func (d *document) tagged(n *ast.TagNode) (any, error) {
	tag := n.Start.Value
	if tag == "!!str" {
		return scalarText(n.Value), nil
	}

	v, err := d.convert(n.Value, 1)
	if err != nil {
		return nil, err
	}

	switch tag {
	case "!function":
		name, ok := v.(string)
		if !ok || name == "" {
			return nil, d.at(n, ErrSyntax, "!function without a name")
		}
		return Function{Name: name, Known: d.known(name), Path: d.path, Line: n.GetToken().Position.Line}, nil
	case "!!null":
		return nil, nil
	default:
		return nil, d.at(n, ErrUnsupported, "tag %s; known: !function", tag)
	}
}

// scalarText is what a scalar says, whatever it looks like.
func scalarText(n ast.Node) string {
	switch n := n.(type) {
	case nil:
		return ""
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	}
	return n.GetToken().Value
}

func (d *document) mapping(pairs []*ast.MappingValueNode, depth int) (any, error) {
	dict, lines := pyvalue.NewDict(), map[string]int{}
	for _, p := range pairs {
		if _, ok := p.Key.(*ast.MergeKeyNode); ok {
			return nil, d.at(p, ErrUnsupported, "merge keys (HINT: use include)")
		}

		key := p.Key.GetToken().Value
		if _, ok := dict.Get(key); ok {
			return nil, d.at(p, ErrSyntax, "key %q is there twice", key)
		}
		if err := d.checkKey(p.Key); err != nil {
			return nil, err
		}

		d.free = d.free || depth == 0 && key == "metadata"
		v, err := d.convert(p.Value, depth+1)
		if err != nil {
			return nil, err
		}

		d.free = d.free && depth > 0
		dict.Set(key, v)
		lines[key] = p.Key.GetToken().Position.Line
	}

	d.lines[dict] = lines
	return dict, nil
}

// checkKey refuses keys that YAML 1.1 reads as something else than text: the harness never finds them.
func (d *document) checkKey(key ast.MapKeyNode) error {
	t := key.GetToken()
	if d.free || t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType {
		return nil
	}

	v, err := d.plain(key, t.Value)
	if err != nil {
		return err
	}

	if _, isText := v.(string); !isText {
		return d.at(key, ErrUnsupported, "the key %s is a %s without quotes (HINT: write %q)", t.Value, pyvalue.Kind(v),
			t.Value)
	}

	return nil
}
