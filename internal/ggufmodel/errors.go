package ggufmodel

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// What can be wrong with a file, beside what package gguf finds.
var (
	ErrArchitecture = errors.New("unknown architecture")
	ErrMetadata     = errors.New("metadata are not understood")
	ErrShape        = errors.New("shape disagrees with the metadata")
	ErrMissing      = errors.New("tensor is missing")
	ErrExtra        = errors.New("tensors that the model does not have")
	ErrRope         = errors.New("rotation cannot be expressed")
	ErrTokenizer    = errors.New("tokenizer is not understood")
	ErrUnwritable   = errors.New("a GGUF file cannot hold it")
	ErrValue        = errors.New("value is no number")
)

// Error is an error about a file: one line around one of the errors above, or one of package gguf or arch.
type Error struct {
	File   string // path as the caller gave it
	Key    string // of the metadata; "" if the fault is not about one
	Tensor string // "" if the fault is not about one
	Detail string // what was expected and found; may be empty
	Err    error
}

// Error gives the line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.File == "" {
		b.WriteString("gguf")
	}
	if e.Tensor != "" {
		fmt.Fprintf(&b, ": tensor %q", clip(e.Tensor))
	}
	if e.Key != "" {
		fmt.Fprintf(&b, ": key %q", clip(e.Key))
	}

	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}

	return b.String()
}

// Unwrap gives the error inside.
func (e *Error) Unwrap() error { return e.Err }

// clip shortens a text of a file for a message.
func clip(s string) string {
	const limit = 100
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// listed joins names for a message: the first few, and how many more.
func listed(names []string) string {
	const limit = 5
	var quoted []string
	for _, name := range names[:min(len(names), limit)] {
		quoted = append(quoted, strconv.Quote(clip(name)))
	}

	text := strings.Join(quoted, ", ")
	if len(names) > limit {
		text += fmt.Sprintf(" and %d more", len(names)-limit)
	}

	return text
}
