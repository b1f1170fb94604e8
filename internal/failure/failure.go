// Package failure makes errors that carry their own kind and hint: whether what was asked for was wrong, rather than
// the work failed, and what a user can do about it. A program asks an error, with [IsUsage] and [Hint], and needs to
// know no package that errors come from.
package failure

import "strings"

// NoSpace is the hint about a full disk, whoever met it.
const NoSpace = "free space, or choose another disk with --out"

// Join is errors.Join for the faults of one thing: of those of the same kind that follow each other, only the first
// says what kind that is.
func Join(faults ...error) error {
	j := &joined{}
	for _, err := range faults {
		if err != nil {
			j.faults = append(j.faults, err)
		}
	}
	if len(j.faults) == 0 {
		return nil
	}
	return j
}

type joined struct{ faults []error }

// Error implements error.
func (j *joined) Error() string {
	var text strings.Builder
	said := "" // the kind of the faults before
	for i, err := range j.faults {
		kind := ""
		find(err, func(err error) bool {
			if e, ok := err.(*named); ok {
				kind = e.text + ": "
			}
			return kind != ""
		})

		words := err.Error()
		if !strings.HasPrefix(words, kind) {
			kind = "" // which stands elsewhere in it
		}
		if i > 0 {
			text.WriteByte('\n')
			if kind == said {
				words = strings.TrimPrefix(words, kind)
			}
		}
		text.WriteString(words)
		said = kind
	}
	return text.String()
}

// Unwrap gives the faults to package errors.
func (j *joined) Unwrap() []error { return j.faults }

// named is a way of failing that has a name, which errors wrap.
type named struct {
	text, hint string
	usage      bool
	others     bool
}

// New is a way in which work fails; hint, which may be empty, says what can be done about it.
func New(text, hint string) error { return &named{text: text, hint: hint} }

// Misuse is a way in which what was asked for is wrong; hint, which may be empty, says what to ask for instead.
func Misuse(text, hint string) error { return &named{text: text, hint: hint, usage: true} }

// Others marks a way of failing that [New] or [Misuse] made: what is there to go on with is that of other work.
func Others(err error) error {
	marked := *err.(*named)
	marked.others = true
	return &marked
}

// Hinted is an error with a hint of its own, instead of those of the errors that it wraps.
func Hinted(err error, hint string) error { return &hinted{err, hint} }

// hinted is an error that says what can be done about it in this case.
type hinted struct {
	error
	hint string
}

// Unwrap implements the interface of package errors.
func (e *hinted) Unwrap() error { return e.error }

// Hint says what can be done about it.
func (e *hinted) Hint() string { return e.hint }

// Error implements error. The hint is not part of it, since it is in the words of the command line.
func (e *named) Error() string { return e.text }

// Usage reports whether what was asked for is wrong.
func (e *named) Usage() bool { return e.usage }

// Hint says what can be done about it; empty where there is nothing to say.
func (e *named) Hint() string { return e.hint }

// IsUsage reports whether an error, or one that it wraps, says that what was asked for is wrong.
func IsUsage(err error) bool {
	return find(err, func(err error) bool {
		e, ok := err.(interface{ Usage() bool })
		return ok && e.Usage()
	})
}

// IsOthers reports whether an error, or one that it wraps, says that what is there to go on with is that of other work.
func IsOthers(err error) bool {
	return find(err, func(err error) bool {
		e, ok := err.(*named)
		return ok && e.others
	})
}

// Hint is the first hint of an error and those that it wraps; empty where none has one.
func Hint(err error) (hint string) {
	find(err, func(err error) bool {
		if e, ok := err.(interface{ Hint() string }); ok {
			hint = e.Hint()
		}
		return hint != ""
	})
	return hint
}

// find looks through an error and all that it wraps, depth first. Unlike [errors.As] it goes on after an error that is
// of the type but not what is looked for: of two joined errors either may be the wrong use.
func find(err error, is func(error) bool) bool {
	if err == nil || is(err) {
		return err != nil
	}

	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return find(e.Unwrap(), is)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if find(inner, is) {
				return true
			}
		}
	}

	return false
}
