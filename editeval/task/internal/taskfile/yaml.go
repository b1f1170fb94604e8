package taskfile

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/modelcompress/compress/internal/value"
)

// Bounds on a task file.
const (
	maxBytes  = 4 << 20
	maxTokens = 200_000
	maxDepth  = 32
)

// Function is a !function entry: what a task file calls by name.
type Function struct{ Name string }

// document is a parsed file: its top level, and the lines of keys.
type document struct {
	path  string
	root  *value.Dict
	lines map[*value.Dict]map[string]int
}

// fault is an error at a key of a file.
func (d *document) fault(at *value.Dict, key string, err error, format string, args ...any) error {
	where := d.path
	if line := d.lines[at][key]; line > 0 {
		where = fmt.Sprintf("%s:%d", d.path, line)
	}
	return fmt.Errorf("%s: %s: %w", where, fmt.Sprintf(format, args...), err)
}

// parseYAML reads a YAML file whose top level is a mapping.
func parseYAML(path string, text []byte) (doc *document, err error) {
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
	doc = &document{path: path, lines: map[*value.Dict]map[string]int{}}
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
		root, ok := v.(*value.Dict)
		if !ok {
			return nil, fmt.Errorf("%s: the file is a %s, want keys and values: %w", path, value.Kind(v), ErrSyntax)
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
	flow, columns := 0, []int{}
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.MappingValueType, token.SequenceEntryType:
			for len(columns) > 0 && columns[len(columns)-1] >= t.Position.Column {
				columns = columns[:len(columns)-1]
			}
			columns = append(columns, t.Position.Column)
		}
		if flow > maxDepth || len(columns) > 2*maxDepth {
			return fmt.Errorf("%s:%d: nested more than %d deep: %w", path, t.Position.Line, maxDepth, ErrLimit)
		}
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
	case *ast.BoolNode:
		return n.Value, nil
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode:
		return d.integer(n)
	case *ast.FloatNode:
		return n.Value, nil
	case *ast.InfinityNode:
		return n.Value, nil
	case *ast.NanNode:
		return math.NaN(), nil
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

func (d *document) integer(n *ast.IntegerNode) (any, error) {
	switch v := n.Value.(type) {
	case int64:
		return v, nil
	case uint64:
		if v <= math.MaxInt64 {
			return int64(v), nil
		}
	}
	if f, err := strconv.ParseFloat(n.GetToken().Value, 64); err == nil {
		return f, nil
	}
	return nil, d.at(n, ErrSyntax, "number %s", n.GetToken().Value)
}

// tagged is a value with a tag: !function is known, and the standard ones of text.
func (d *document) tagged(n *ast.TagNode) (any, error) {
	v, err := d.convert(n.Value, 1)
	if err != nil {
		return nil, err
	}
	switch tag := n.Start.Value; tag {
	case "!function":
		name, ok := v.(string)
		if !ok || name == "" {
			return nil, d.at(n, ErrSyntax, "!function without a name")
		}
		return Function{name}, nil
	case "!!str":
		return value.Str(v), nil
	default:
		return nil, d.at(n, ErrUnsupported, "tag %s; known: !function", tag)
	}
}

func (d *document) mapping(pairs []*ast.MappingValueNode, depth int) (any, error) {
	dict, lines := value.NewDict(), map[string]int{}
	for _, p := range pairs {
		if _, ok := p.Key.(*ast.MergeKeyNode); ok {
			return nil, d.at(p, ErrUnsupported, "merge keys (HINT: use include)")
		}
		key := p.Key.GetToken().Value
		if _, ok := dict.Get(key); ok {
			return nil, d.at(p, ErrSyntax, "key %q is there twice", key)
		}
		v, err := d.convert(p.Value, depth+1)
		if err != nil {
			return nil, err
		}
		dict.Set(key, v)
		lines[key] = p.Key.GetToken().Position.Line
	}
	d.lines[dict] = lines
	return dict, nil
}
