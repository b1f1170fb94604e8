package prunecmd

import (
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/prune"
)

// maxOverrides is the size of the largest file of overrides: far more than anyone writes, and little enough for
// a parser that takes long over brackets in brackets.
const maxOverrides = 16 << 10

// ErrOverrides: a file of overrides that cannot be understood.
var ErrOverrides = errors.New("bad file of overrides")

// ReadOverrides reads a YAML list of [prune.Override]: keys match, roles and blocks choose matrices, and dense,
// sparsity or pattern says what becomes of them. Unknown keys are errors; errors name line and column where
// they can, and wrap ErrOverrides.
func ReadOverrides(path string) ([]prune.Override, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, maxOverrides+1))
	if err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}

	if len(text) > maxOverrides {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", path, ErrOverrides, maxOverrides)
	}

	list, err := parse(text)
	if err != nil {
		return nil, placed(path, err)
	}

	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %w: want a list of overrides, such as \"- {blocks: [0], dense: true}\"", path,
			ErrOverrides)
	}

	return list, nil
}

// parse reads the list. The parser panics on some tags of a type that does not fit, such as !!set; that is an
// error here.
func parse(text []byte) (list []prune.Override, err error) {
	defer func() {
		if recover() != nil {
			list, err = nil, errors.New("a tag (!!) that is not for this place")
		}
	}()

	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}

	for _, doc := range file.Docs {
		if doc.Body != nil {
			ast.Walk(&quoted{&err}, doc.Body)
		}
	}

	if err != nil {
		return nil, err
	}
	if at := second(file); at > 0 {
		return nil, fmt.Errorf("line %d begins another document (---); want one list", at)
	}

	err = yaml.UnmarshalWithOptions(text, &list, yaml.Strict())
	return list, err
}

// quoted finds text in the place of numbers, which the decoder would take for them.
type quoted struct{ err *error }

// Visit looks at one node.
func (q *quoted) Visit(n ast.Node) ast.Visitor {
	pair, ok := n.(*ast.MappingValueNode)
	if !ok {
		return q
	}

	key := pair.Key.String()
	if key != "blocks" && key != "sparsity" && key != "dense" {
		return q
	}

	values := []ast.Node{pair.Value}
	if list, ok := pair.Value.(*ast.SequenceNode); ok {
		values = list.Values
	}

	for _, v := range values {
		if text, ok := v.(*ast.StringNode); ok && *q.err == nil &&
			(text.Token.Type == token.SingleQuoteType || text.Token.Type == token.DoubleQuoteType) {
			*q.err = fmt.Errorf("line %d: %s: found the text %.40q; want %s", text.GetToken().Position.Line, key,
				text.Value, wanted[key])
		}
	}

	return q
}

var wanted = map[string]string{"blocks": "whole numbers", "sparsity": "a number", "dense": "true or false"}

// second is the line where a second document begins, 0 if there is none. Comments before the first are no document.
func second(file *ast.File) int {
	found := false
	for _, doc := range file.Docs {
		if _, comment := doc.Body.(*ast.CommentGroupNode); comment || doc.Body == nil && doc.Start == nil {
			continue
		}

		if found && doc.Start != nil {
			return doc.Start.Position.Line
		} else if found {
			return doc.Body.GetToken().Position.Line
		}

		found = true
	}

	return 0
}

// placed puts file, line and column before an error of the parser, as one line.
func placed(path string, err error) error {
	var bad yaml.Error
	if !errors.As(err, &bad) || bad.GetToken() == nil {
		return fmt.Errorf("%s: %w: %w", path, ErrOverrides, err)
	}
	at := bad.GetToken().Position
	return fmt.Errorf("%s:%d:%d: %w: %s", path, at.Line, at.Column, ErrOverrides, reworded(bad.GetMessage()))
}

var (
	mistyped = regexp.MustCompile(`^cannot unmarshal (\S+) into Go (?:struct field \S+|value) of type (\S+)`)
	typeName = map[string]string{
		"float64": "a number", "int": "a whole number", "bool": "true or false",
		"string": "text",
	}
)

// reworded says in plain words that a value has the wrong type.
func reworded(message string) string {
	m := mistyped.FindStringSubmatch(message)
	if m == nil || typeName[m[2]] == "" {
		return message
	}
	return fmt.Sprintf("found %s; want %s", m[1], typeName[m[2]])
}
