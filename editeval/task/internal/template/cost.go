package template

import (
	"fmt"
	"unicode/utf8"

	"github.com/modelcompress/compress/editeval/task/internal/value"
)

// Limits on what a template may cost.
const (
	maxSource = 1 << 20
	maxOutput = 64 << 20
	maxSteps  = 10_000_000 // of a rendering, in small pieces of work
	maxNest   = 64
	maxChain  = 512 // operators and indices of an expression that hang on each other

	textStep = 16 // bytes of text that cost a step
	loopStep = 40 // steps that a turn of a loop costs, for its variables
)

// budget is what is left of the work that a rendering may do. Whatever makes or looks through a value pays for its size, so that neither
// loops nor values which hold each other many times cost more.
type budget struct{ used int }

// pay takes steps.
func (b *budget) pay(n int) error {
	if n > maxSteps-b.used {
		b.used = maxSteps
		return fmt.Errorf("%w: more than %d steps", ErrCost, maxSteps)
	}
	b.used += n
	return nil
}

// payFor takes the size of values.
func (b *budget) payFor(values ...any) error {
	for _, v := range values {
		if err := b.payValue(v); err != nil {
			return err
		}
	}
	return nil
}

func (b *budget) payValue(v any) error {
	if err := b.pay(1); err != nil {
		return err
	}
	switch v := v.(type) {
	case string:
		return b.pay(len(v) / textStep)
	case []any:
		return b.payFor(v...)
	case value.Tuple:
		return b.payFor(v...)
	case *value.Dict:
		for _, k := range v.Keys() {
			item, _ := v.Get(k)
			if err := b.payFor(k, item); err != nil {
				return err
			}
		}
	}
	return nil
}

// payText takes the size of a text that is to be made.
func (b *budget) payText(bytes int) error {
	if bytes > maxOutput || bytes < 0 {
		return fmt.Errorf("%w: a text of more than %d bytes", ErrCost, maxOutput)
	}
	return b.pay(bytes / textStep)
}

// str is str(v), paid for.
func (b *budget) str(v any) (string, error) {
	if s, ok := v.(string); ok {
		return s, nil
	}
	if err := b.payValue(v); err != nil {
		return "", err
	}
	s := value.Str(v)
	return s, b.payText(len(s))
}

// iterate lists the items of a value; those of a text are its characters.
func (b *budget) iterate(v any) ([]any, error) {
	if s, ok := v.(string); ok {
		if err := b.pay(utf8.RuneCountInString(s)); err != nil {
			return nil, err
		}
	}
	return iterate(v)
}
