// Package syntax reads trees of names from the infix notation and from nested JSON objects, within bounds,
// without knowing what the names mean.
package syntax

import "errors"

// What can be wrong with a text.
var (
	ErrSyntax   = errors.New("malformed expression")
	ErrTooLarge = errors.New("expression is too large")
)

// Limits bound what a text may hold.
type Limits struct {
	Nodes int
	Depth int // edges from the root to the deepest node
}

// Node is a name with its operands.
type Node struct {
	Name        string
	Pos         string // where it stands, for errors
	Left, Right *Node
}

// Signs gives the names of the infix operators.
type Signs struct{ Plus, Minus, Times, Over, Negate string }
