package config

import (
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"
)

// Node is one component of the file: its type and its fields. The getters remember the first error in Err.
type Node struct {
	Kind   string
	Fields map[string]Value
	depth  int
	Err    error
}

// NewNode reads a component; depth counts the ones around it.
func NewNode(v Value, depth int) (*Node, error) {
	if depth > MaxDepth/4 {
		return nil, fmt.Errorf("%w: components nested deeper than %d", ErrSyntax, MaxDepth/4)
	}

	n := &Node{Fields: map[string]Value{}, depth: depth}
	c := v.Cursor()
	err := c.Object(func(key string) (err error) {
		n.Fields[key], err = c.Raw()
		return err
	})
	if err != nil {
		return nil, err
	}

	n.Kind = n.Text("type", "")
	return n, n.Err
}

// Fail remembers an error of a field, if it is the first.
func (n *Node) Fail(err error, key string) {
	if n.Err == nil && err != nil {
		n.Err = fmt.Errorf("%s: field %q: %w", n.Kind, key, err)
	}
}

// Missing records that a required field is not there.
func (n *Node) Missing(key string) { n.Fail(fmt.Errorf("%w: missing", ErrSyntax), key) }

// Has reports whether the field is there and not null.
func (n *Node) Has(key string) bool { return !n.Fields[key].Absent() }

// Text reads a string field, def when it is absent.
func (n *Node) Text(key, def string) string {
	if !n.Has(key) {
		return def
	}
	c := n.Fields[key].Cursor()
	s, err := c.String()
	n.Fail(err, key)
	return strings.Clone(s)
}

// Need reads a string field that has to be there.
func (n *Node) Need(key string) string {
	if !n.Has(key) {
		n.Missing(key)
	}
	return n.Text(key, "")
}

// Char reads a field that holds one character.
func (n *Node) Char(key string, def rune) rune {
	if !n.Has(key) {
		return def
	}
	s := n.Text(key, "")
	r, size := utf8.DecodeRuneInString(s)
	if size == 0 || size != len(s) {
		n.Fail(fmt.Errorf("%w: not one character: %q", ErrSyntax, s), key)
	}
	return r
}

// Flag reads true or false, def when it is absent.
func (n *Node) Flag(key string, def bool) bool {
	switch v := n.Fields[key]; v.Text {
	case "", "null":
		return def
	case "true":
		return true
	case "false":
		return false
	default:
		n.Fail(v.Cursor().Fail("expected true or false"), key)
		return def
	}
}

// Integer reads a whole number in [low, high].
func (n *Node) Integer(key string, def, low, high int64) int64 {
	if !n.Has(key) {
		return def
	}
	v, err := n.Fields[key].Cursor().Integer()
	if err == nil && (v < low || v > high) {
		err = fmt.Errorf("%w: %d is not between %d and %d", ErrSyntax, v, low, high)
	}
	n.Fail(err, key)
	return v
}

// Object reads a field that is a component or a plain object.
func (n *Node) Object(key string) *Node {
	if !n.Has(key) {
		n.Missing(key)
		return &Node{Fields: map[string]Value{}}
	}

	c, err := NewNode(n.Fields[key], n.depth+1)
	if err != nil {
		n.Fail(err, key)
		return &Node{Fields: map[string]Value{}}
	}

	return c
}

// List reads a field that is an array of components or plain objects.
func (n *Node) List(key string) []*Node {
	if !n.Has(key) {
		n.Missing(key)
		return nil
	}

	var out []*Node
	c := n.Fields[key].Cursor()
	n.Fail(c.Array(func() error {
		v, err := c.Raw()
		if err != nil {
			return err
		}
		item, err := NewNode(v, n.depth+1)
		if err == nil {
			out = append(out, item)
		}
		return err
	}), key)

	return out
}

// Unknown is the error for a type that is not in the table of known ones.
func Unknown[T any](kind string, table map[string]T) error {
	known := make([]string, 0, len(table))
	for k := range table {
		known = append(known, k)
	}
	sort.Strings(known)
	return fmt.Errorf("%w: type %q (known: %s)", ErrUnsupported, kind, strings.Join(known, ", "))
}
