package strictyaml

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds on a file. A recipe of a thousand slices has some 100 KB and five levels.
const (
	MaxBytes = 1 << 20 // of the text
	maxDepth = 48      // of lists and maps within each other
	maxNodes = 100_000 // after aliases are expanded
	// The YAML parser takes time by the square of the number of keys; this many words and signs take a second at most.
	maxTokens = 30_000
)

// Kind is what a node is.
type Kind uint8

// The kinds of nodes.
const (
	Null Kind = iota
	Scalar
	List
	Map
)

// Node is a value of a YAML file.
type Node struct {
	Place
	Kind    Kind
	Tag     string  // as written, such as "!!str"; "" without one
	Text    string  // of a scalar
	Quoted  bool    // the scalar stands in quotes or is a block of text
	Items   []*Node // of a list
	Entries []Entry // of a map, in the order of the file

	nodes int // of the subtree, this one included
}

// Entry is one key of a map and its value.
type Entry struct {
	Place  // of the key
	Key    string
	Quoted bool // the key stands in quotes
	Value  *Node
}

// Get gives the value of a key; nil if a map lacks it or the node is no map.
func (n *Node) Get(key string) *Node {
	for _, e := range n.Entries {
		if e.Key == key {
			return e.Value
		}
	}
	return nil
}

// Source is a parsed file: its documents, and what messages about it need.
type Source struct {
	File      string // the name for messages
	Documents []*Node

	lines []string
}

// Options bend the rules for files of a format that has rules of its own. The zero value is what Parse goes by.
type Options struct {
	MaxBytes, MaxDepth, MaxTokens int // 0: the bounds of this package

	Tags      bool // every tag is left to the schema, which finds it in the nodes
	NoAliases bool // anchors, aliases and merge keys are faults of kind ErrUnsupported
}

// filled puts the bounds of this package in the place of zeros.
func (o Options) filled() Options {
	o.MaxBytes = cmp.Or(o.MaxBytes, MaxBytes)
	o.MaxDepth = cmp.Or(o.MaxDepth, maxDepth)
	o.MaxTokens = cmp.Or(o.MaxTokens, maxTokens)
	return o
}

// Parse reads a file of at most MaxBytes; file is its name for messages. Documents that hold nothing are left out.
// The error is a *Problems.
func Parse(file string, text []byte) (*Source, error) { return ParseBy(Options{}, file, text) }

// ParseBy is Parse by other rules.
func ParseBy(o Options, file string, text []byte) (*Source, error) {
	o = o.filled()
	src := &Source{File: file}
	problems := &Problems{File: file}
	switch {
	case len(text) > o.MaxBytes:
		problems.add(Problem{
			Message: fmt.Sprintf("the file has %d bytes; at most %d are read", len(text), o.MaxBytes),
			Err:     ErrLimit,
		})
		return nil, problems
	case !utf8.Valid(text):
		problems.add(Problem{Message: "the file is not UTF-8 text", Err: ErrSyntax})
		return nil, problems
	}

	plain := strings.ReplaceAll(strings.TrimPrefix(string(text), "\ufeff"), "\r\n", "\n")
	src.lines = strings.Split(plain, "\n")
	problems.lines = src.lines
	for _, part := range split(src.lines) {
		body, problem := parse(part, o)
		if problem != nil {
			problems.add(*problem)
			break
		}

		c := converter{options: o, problems: problems, anchors: map[string]*Node{}, offset: part.first}
		if n := c.node(body, 0); n != nil && n.Kind != Null {
			src.Documents = append(src.Documents, n)
		}
	}

	if len(problems.List) > 0 {
		problems.sort()
		return nil, problems
	}

	return src, nil
}

// part is the text of one document.
type part struct {
	text  string
	first int // lines before it
}

// split cuts a file into its documents, at lines that begin with "---" or "...", which end even a block of text. The
// parser could do this too, but loses what follows an empty document.
func split(lines []string) []part {
	var parts []part
	start := 0
	var body []string
	for i, line := range lines {
		if marker := strings.HasPrefix(line, "---") || strings.HasPrefix(line, "..."); marker &&
			(len(line) == 3 || line[3] == ' ' || line[3] == '\t') {
			parts = append(parts, part{text: strings.Join(body, "\n") + "\n", first: start})
			start, body = i, body[:0:0]
			line = "   " + line[3:]
		}

		body = append(body, line)
	}

	return append(parts, part{text: strings.Join(body, "\n") + "\n", first: start})
}

// parse runs the YAML parser on one document. It descends once per level and has no bound of its own, so the depth is
// counted first; a panic inside it is a fault of the file, not of this program.
func parse(p part, o Options) (body ast.Node, problem *Problem) {
	defer func() {
		if recover() != nil {
			problem = &Problem{Message: "the YAML parser cannot make sense of this file", Err: ErrSyntax}
		}
		if problem != nil && problem.Line > 0 {
			problem.Line += p.first
		}
	}()

	if tooManySigns(p.text, o.MaxTokens) {
		return nil, &Problem{Message: fmt.Sprintf("more than %d words and signs", o.MaxTokens), Err: ErrLimit}
	}

	tokens := lexer.Tokenize(p.text)
	if len(tokens) > o.MaxTokens {
		return nil, &Problem{
			Place:   place(tokens[o.MaxTokens]),
			Message: fmt.Sprintf("more than %d words and signs", o.MaxTokens), Err: ErrLimit,
		}
	}
	if at := tooDeep(tokens, o.MaxDepth); at != nil {
		return nil, &Problem{
			Place:   place(at),
			Message: fmt.Sprintf("lists and maps within each other more than %d deep", o.MaxDepth), Err: ErrLimit,
		}
	}

	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	var e yaml.Error
	switch {
	case errors.As(err, &e):
		return nil, &Problem{Place: place(e.GetToken()), Message: "not valid YAML: " + e.GetMessage(), Err: ErrSyntax}
	case err != nil:
		return nil, &Problem{Message: "not valid YAML", Err: ErrSyntax}
	case len(file.Docs) > 1:
		return nil, &Problem{
			Place:   place(file.Docs[1].GetToken()),
			Message: "a second document without a line of dashes before it", Err: ErrSyntax,
		}
	case len(file.Docs) == 0:
		return nil, nil
	}

	return file.Docs[0].Body, nil
}

// place gives a token's position.
func place(t *token.Token) Place {
	if t == nil || t.Position == nil {
		return Place{}
	}
	return Place{Line: t.Position.Line, Column: t.Position.Column}
}
