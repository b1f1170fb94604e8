// Package library holds what templates do with values: operators, filters, methods, tests and functions, each
// paid for out of what a rendering may cost.
package library

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// The ways in which a rendering can fail.
var (
	ErrUnknown   = errors.New("not supported in templates")
	ErrUndefined = errors.New("undefined name")
	ErrType      = errors.New("wrong type in a template")
	ErrCost      = errors.New("template is too costly")
	ErrRaised    = errors.New("the template refuses its input")
)

// errInt: an integer that 64 bits do not hold.
var errInt = fmt.Errorf("%w: %w", ErrType, pyvalue.ErrInt)
