package tokenizer

import (
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"
)

// node is one component of the file: its type and its fields. The getters remember the first error; finish returns it.
type node struct {
	kind   string
	fields map[string]value
	depth  int
	err    error
}

func newNode(v value, depth int) (*node, error) {
	if depth > maxDepth/4 {
		return nil, fmt.Errorf("%w: components nested deeper than %d", ErrSyntax, maxDepth/4)
	}
	n := &node{fields: map[string]value{}, depth: depth}
	c := v.cursor()
	err := c.object(func(key string) (err error) {
		n.fields[key], err = c.raw()
		return err
	})
	if err != nil {
		return nil, err
	}
	n.kind = n.text("type", "")
	return n, n.err
}

func (n *node) fail(err error, key string) {
	if n.err == nil && err != nil {
		n.err = fmt.Errorf("%s: field %q: %w", n.kind, key, err)
	}
}

// missing records that a required field is not there.
func (n *node) missing(key string) { n.fail(fmt.Errorf("%w: missing", ErrSyntax), key) }

// has reports whether the field is there and not null.
func (n *node) has(key string) bool { return !n.fields[key].absent() }

// text reads a string field, def when it is absent.
func (n *node) text(key, def string) string {
	if !n.has(key) {
		return def
	}
	c := n.fields[key].cursor()
	s, err := c.str()
	n.fail(err, key)
	return strings.Clone(s)
}

// need reads a string field that has to be there.
func (n *node) need(key string) string {
	if !n.has(key) {
		n.missing(key)
	}
	return n.text(key, "")
}

// char reads a field that holds one character.
func (n *node) char(key string, def rune) rune {
	if !n.has(key) {
		return def
	}
	s := n.text(key, "")
	r, size := utf8.DecodeRuneInString(s)
	if size == 0 || size != len(s) {
		n.fail(fmt.Errorf("%w: not one character: %q", ErrSyntax, s), key)
	}
	return r
}

func (n *node) flag(key string, def bool) bool {
	switch v := n.fields[key]; v.text {
	case "", "null":
		return def
	case "true":
		return true
	case "false":
		return false
	default:
		n.fail(v.cursor().fail("expected true or false"), key)
		return def
	}
}

// integer reads a whole number in [low, high].
func (n *node) integer(key string, def, low, high int64) int64 {
	if !n.has(key) {
		return def
	}
	v, err := n.fields[key].cursor().integer()
	if err == nil && (v < low || v > high) {
		err = fmt.Errorf("%w: %d is not between %d and %d", ErrSyntax, v, low, high)
	}
	n.fail(err, key)
	return v
}

// object reads a field that is a component or a plain object.
func (n *node) object(key string) *node {
	if !n.has(key) {
		n.missing(key)
		return &node{fields: map[string]value{}}
	}
	c, err := newNode(n.fields[key], n.depth+1)
	if err != nil {
		n.fail(err, key)
		return &node{fields: map[string]value{}}
	}
	return c
}

// list reads a field that is an array of components or plain objects.
func (n *node) list(key string) []*node {
	if !n.has(key) {
		n.missing(key)
		return nil
	}
	var out []*node
	c := n.fields[key].cursor()
	n.fail(c.array(func() error {
		v, err := c.raw()
		if err != nil {
			return err
		}
		item, err := newNode(v, n.depth+1)
		out = append(out, item)
		return err
	}), key)
	return out
}

// unknown is the error for a type that is not in the table of known ones.
func unknown[T any](kind string, table map[string]T) error {
	known := make([]string, 0, len(table))
	for k := range table {
		known = append(known, k)
	}
	sort.Strings(known)
	return fmt.Errorf("%w: type %q (known: %s)", ErrUnsupported, kind, strings.Join(known, ", "))
}
