package gp

import (
	"errors"

	"github.com/modelcompress/compress/gp/internal/syntax"
)

// What can be wrong with an expression.
var (
	ErrUnknown   = errors.New("unknown name")
	ErrSyntax    = syntax.ErrSyntax
	ErrTooLarge  = syntax.ErrTooLarge
	ErrNoWeight  = errors.New("expression does not use W")
	ErrOnlyW     = errors.New("expression uses nothing besides W")
	ErrShape     = errors.New("expression does not give one score for every weight")
	ErrParts     = errors.New("expression does not give one score for every neuron, head or layer")
	ErrConstant  = errors.New("scores are constant")
	ErrNonFinite = errors.New("scores are not finite")
	ErrInverted  = errors.New("expression ranks by a negated score")
	ErrForbidden = errors.New("expression uses a symbol outside the grammar")
)

// ErrInput says that a matrix or a vector that a program reads is missing or has another shape or type.
var ErrInput = errors.New("unusable input")
