package syntax

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// JSON reads objects with a name in "data" and operands in "left" and "right", which may be left out or null.
func JSON(data []byte, limits Limits) (*Node, error) {
	d := &treeDecoder{dec: json.NewDecoder(bytes.NewReader(data)), limits: limits}
	n, err := d.node(0)
	if err != nil {
		return nil, err
	}

	if n == nil {
		return nil, fmt.Errorf("%w: the tree is null", ErrSyntax)
	}
	if _, err := d.dec.Token(); err != io.EOF {
		return nil, d.fail(ErrSyntax, "something follows the tree")
	}

	return n, nil
}

// treeDecoder reads token by token, so that depth and size are bounded before anything is built.
type treeDecoder struct {
	dec    *json.Decoder
	limits Limits
	nodes  int
}

func (d *treeDecoder) at() string { return fmt.Sprintf("byte %d", d.dec.InputOffset()) }

func (d *treeDecoder) fail(kind error, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", d.at(), kind, fmt.Sprintf(format, args...))
}

func (d *treeDecoder) token() (json.Token, error) {
	t, err := d.dec.Token()
	if err != nil {
		return nil, d.fail(ErrSyntax, "%v", err)
	}
	return t, nil
}

// node reads an object or null.
func (d *treeDecoder) node(depth int) (*Node, error) {
	t, err := d.token()
	if err != nil || t == nil {
		return nil, err
	}

	if t != json.Delim('{') {
		return nil, d.fail(ErrSyntax, "a node is an object with data, left and right, not %.20v", t)
	}

	d.nodes++
	if d.nodes > d.limits.Nodes || depth > d.limits.Depth {
		return nil, d.fail(ErrTooLarge, "more than %d nodes or %d levels", d.limits.Nodes, d.limits.Depth)
	}

	n, seen := &Node{}, map[string]bool{}
	for d.dec.More() {
		key, err := d.token()
		if err != nil {
			return nil, err
		}

		name, _ := key.(string)
		if seen[name] {
			return nil, d.fail(ErrSyntax, "%.20q twice", name)
		}

		seen[name] = true
		if err := d.field(n, name, depth); err != nil {
			return nil, err
		}
	}

	if _, err := d.token(); err != nil {
		return nil, err
	}
	if !seen["data"] {
		return nil, d.fail(ErrSyntax, "a node without data")
	}

	return n, nil
}

func (d *treeDecoder) field(n *Node, name string, depth int) (err error) {
	switch name {
	case "data":
		t, err := d.token()
		if err != nil {
			return err
		}

		s, ok := t.(string)
		if !ok {
			return d.fail(ErrSyntax, "data is not a string")
		}

		n.Name, n.Pos = s, d.at()
		return nil
	case "left":
		n.Left, err = d.node(depth + 1)
	case "right":
		n.Right, err = d.node(depth + 1)
	default:
		err = d.fail(ErrSyntax, "unknown key %.20q; known: data, left, right", name)
	}

	return err
}
