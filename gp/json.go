package gp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// ParseJSON reads a tree in Pruner-Zero's schema: objects with the name in "data" and the operands in "left" and, for
// binary operators, "right". A missing operand may be left out or null. Errors wrap [ErrSyntax], [ErrUnknown] or
// [ErrTooLarge].
func ParseJSON(data []byte) (*Expr, error) {
	d := &treeDecoder{dec: json.NewDecoder(bytes.NewReader(data))}
	e, err := d.node(0)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, fmt.Errorf("%w: the tree is null", ErrSyntax)
	}
	if _, err := d.dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: something follows the tree at byte %d", ErrSyntax, d.dec.InputOffset())
	}
	return e, nil
}

// MarshalJSON writes the tree in Pruner-Zero's schema.
func (e *Expr) MarshalJSON() ([]byte, error) {
	type node struct {
		Data  string `json:"data"`
		Left  *Expr  `json:"left,omitempty"`
		Right *Expr  `json:"right,omitempty"`
	}
	return json.Marshal(node{e.Sym.String(), e.Left, e.Right})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (e *Expr) UnmarshalJSON(data []byte) error {
	p, err := ParseJSON(data)
	if err == nil {
		*e = *p
	}
	return err
}

// treeDecoder reads trees token by token, so that depth and size are bounded before anything is built.
type treeDecoder struct {
	dec   *json.Decoder
	nodes int
}

func (d *treeDecoder) fail(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: %s, at byte %d", kind, fmt.Sprintf(format, args...), d.dec.InputOffset())
}

func (d *treeDecoder) token() (json.Token, error) {
	t, err := d.dec.Token()
	if err != nil {
		return nil, d.fail(ErrSyntax, "%v", err)
	}
	return t, nil
}

// node reads an object or null.
func (d *treeDecoder) node(depth int) (*Expr, error) {
	t, err := d.token()
	if err != nil || t == nil {
		return nil, err
	}
	if t != json.Delim('{') {
		return nil, d.fail(ErrSyntax, "a node is an object with data, left and right, not %.20v", t)
	}
	if d.nodes++; d.nodes > MaxNodes || depth > MaxDepth {
		return nil, d.fail(ErrTooLarge, "more than %d nodes or %d levels", MaxNodes, MaxDepth)
	}
	e, seen := new(Expr), map[string]bool{}
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
		if err := d.field(e, name, depth); err != nil {
			return nil, err
		}
	}
	if _, err := d.token(); err != nil {
		return nil, err
	}
	return e, d.complete(e)
}

func (d *treeDecoder) field(e *Expr, name string, depth int) (err error) {
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
		if e.Sym, err = SymbolByName(s); err != nil {
			return fmt.Errorf("%w; at byte %d", err, d.dec.InputOffset())
		}
		return nil
	case "left":
		e.Left, err = d.node(depth + 1)
	case "right":
		e.Right, err = d.node(depth + 1)
	default:
		err = d.fail(ErrSyntax, "unknown key %.20q; known: data, left, right", name)
	}
	return err
}

// complete checks that a node has the operands that it needs.
func (d *treeDecoder) complete(e *Expr) error {
	if e.Sym == 0 {
		return d.fail(ErrSyntax, "a node without data")
	}
	arity := e.Sym.Arity()
	if (e.Left != nil) != (arity > 0) || (e.Right != nil) != (arity > 1) {
		return d.fail(ErrSyntax, "%s takes %s", e.Sym, [...]string{"no operands", "one operand, left", "two operands, left and right"}[arity])
	}
	return nil
}
