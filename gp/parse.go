package gp

import (
	"encoding/json"
	"fmt"

	"github.com/modelcompress/compress/gp/internal/syntax"
)

var limits = syntax.Limits{Nodes: MaxNodes, Depth: MaxDepth}

// Parse reads the infix notation: + and - (sub), * (mul) and / (div), unary minus (neg), parentheses, and calls
// such as sqrt(X) or min(W, G); every operator may also be written as a call. Sums and products group from the
// left, unary minus binds more than a product. Errors give the column, counted in characters from 1, and wrap
// [ErrSyntax], [ErrUnknown] or [ErrTooLarge].
func Parse(text string) (*Expr, error) {
	n, err := syntax.Infix(text, syntax.Signs{Plus: "add", Minus: "sub", Times: "mul", Over: "div", Negate: "neg"},
		limits)
	if err != nil {
		return nil, err
	}
	return build(n, 0)
}

// ParseJSON reads a tree in Pruner-Zero's schema: objects with the name in "data" and the operands in "left" and, for
// binary operators, "right". A missing operand may be left out or null. Errors give the byte and wrap [ErrSyntax],
// [ErrUnknown] or [ErrTooLarge].
func ParseJSON(data []byte) (*Expr, error) {
	n, err := syntax.JSON(data, limits)
	if err != nil {
		return nil, err
	}
	return build(n, 0)
}

// build gives the names their meaning.
func build(n *syntax.Node, depth int) (*Expr, error) {
	if n == nil {
		return nil, nil
	}

	// Bounded here, where it recurses: a file of brackets must not exhaust the stack.
	if depth > MaxDepth {
		return nil, fmt.Errorf("%s: %w: more than %d levels", n.Pos, ErrTooLarge, MaxDepth)
	}

	s, err := SymbolByName(n.Name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Pos, err)
	}

	arity := s.Arity()
	if (n.Left != nil) != (arity > 0) || (n.Right != nil) != (arity > 1) {
		return nil, fmt.Errorf("%s: %w: %s takes %s", n.Pos, ErrSyntax, s,
			[...]string{"no operands", "one operand, the left", "two operands"}[arity])
	}

	l, err := build(n.Left, depth+1)
	if err != nil {
		return nil, err
	}

	r, err := build(n.Right, depth+1)
	if err != nil {
		return nil, err
	}

	return &Expr{s, l, r}, nil
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

// MarshalText writes a symbol by its name.
func (s Symbol) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText finds a symbol by its name.
func (s *Symbol) UnmarshalText(text []byte) (err error) {
	*s, err = SymbolByName(string(text))
	return err
}
