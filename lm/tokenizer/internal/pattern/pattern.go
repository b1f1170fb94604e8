// Package pattern matches the regular expressions of tokenizer files, which are written in Oniguruma's Ruby syntax.
//
// Matching backtracks, since the meaning of such patterns is defined by it, but remembers which long runs have failed
// and counts its steps: a text on which a pattern is too costly gives an error.
package pattern

import "errors"

var (
	// ErrUnsupported: a construct that the package does not know, or a malformed pattern.
	ErrUnsupported = errors.New("unsupported pattern")
	// ErrCost: matching took more steps than are allowed: 256 for each byte of the text, and a million more.
	ErrCost = errors.New("pattern too costly on this text")
)

// maxDepth bounds how deeply groups and brackets may nest.
const maxDepth = 64
