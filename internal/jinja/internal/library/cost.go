package library

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Limits on what a rendering may cost.
const (
	MaxOutput = 64 << 20  // bytes of a text
	MaxNest   = 64        // statements, expressions or calls inside of each other
	TextStep  = 16        // bytes of text that cost a step
	maxSteps  = 3_000_000 // of a rendering, in small pieces of work
	maxNumber = 1 << 40   // of a range
	checkStep = 1 << 14   // steps between looks at whether the rendering is to end
)

// Env is what the functions of a rendering share: settings, tables of functions and what is left of the work
// that it may do. Whatever makes or looks through a value pays for its size, so that neither loops nor values
// which hold each other many times cost more.
type Env struct {
	Strict    bool             // what is not defined is an error where it is used, not an empty text
	PlainJSON bool             // tojson keeps the order of keys and all characters
	Now       func() time.Time // the clock

	Filters, Tests map[string]Function // those that functions look up by name

	Context context.Context
	used    int
}

// Known lists the names of a table.
func Known[T any](table map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(table)), ", ")
}

// Step counts a piece of work.
func (b *Env) Step() error { return b.Pay(1) }

// Pay takes steps.
func (b *Env) Pay(n int) error {
	if n > maxSteps-b.used {
		b.used = maxSteps
		return fmt.Errorf("%w: more than %d steps", ErrCost, maxSteps)
	}

	before := b.used
	b.used += n
	if before/checkStep != b.used/checkStep && b.Context.Err() != nil {
		return context.Cause(b.Context)
	}

	return nil
}

// PayFor takes the size of values.
func (b *Env) PayFor(values ...any) error {
	for _, v := range values {
		if err := b.payValue(v); err != nil {
			return err
		}
	}
	return nil
}

func (b *Env) payValue(v any) error {
	if err := b.Pay(1); err != nil {
		return err
	}

	switch v := v.(type) {
	case string:
		return b.Pay(len(v) / TextStep)
	case []any:
		return b.PayFor(v...)
	case pyvalue.Tuple:
		return b.PayFor(v...)
	case *pyvalue.Dict:
		for k, item := range v.All() {
			if err := b.PayFor(k, item); err != nil {
				return err
			}
		}
	}

	return nil
}

// PayText takes the size of a text that is to be made.
func (b *Env) PayText(bytes int) error {
	if bytes > MaxOutput || bytes < 0 {
		return fmt.Errorf("%w: a text of more than %d bytes", ErrCost, MaxOutput)
	}
	return b.Pay(bytes / TextStep)
}
