// Package config reads the JSON of a tokenizer file: a cursor for the long lists, and nodes for its components.
package config

import "errors"

// The ways in which a file can be wrong.
var (
	// ErrSyntax: not the JSON that a tokenizer file has to be, or a field of the wrong type.
	ErrSyntax = errors.New("malformed tokenizer file")
	// ErrUnsupported: a component, an option or a pattern that is not known.
	ErrUnsupported = errors.New("unsupported tokenizer component")
)

// MaxDepth bounds how deeply JSON values may nest; components may nest a quarter as deep.
const MaxDepth = 64
