// Package jinja renders the part of the Jinja language that task files and chat templates use: {{ expressions
// }} with attributes, indices, slices, methods, filters, operators, tests and calls, and the statements if,
// for, set, macro, call, filter, with, raw, break and continue. What is outside of this part is an error when
// the template is read, which says where and lists what is known.
//
// Values have Python's meaning (see package value). They never change, but for the attributes of a namespace.
// Where Jinja gives a generator there is a list; texts that are safe in HTML are plain texts.
//
// A rendering ends after a bounded amount of work and text, whatever the template does.
package jinja

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcompress/compress/internal/jinja/internal/library"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// Limits on templates, beside those of a rendering.
const (
	maxSource = 1 << 20
	maxNest   = library.MaxNest
	maxChain  = 512 // operators and indices of an expression that hang on each other
	loopStep  = 40  // steps that a turn of a loop costs, for its variables
)

// The ways in which a template can fail.
var (
	ErrSyntax    = errors.New("template syntax")
	ErrUnknown   = library.ErrUnknown
	ErrUndefined = library.ErrUndefined
	ErrType      = library.ErrType
	ErrCost      = library.ErrCost
	ErrRaised    = library.ErrRaised // raise_exception
)

// Options are the settings of Jinja's environment. The zero value is Jinja's own.
type Options struct {
	Strict       bool // what is not defined is an error where it is used, not an empty text
	TrimBlocks   bool // no line end behind a statement
	LstripBlocks bool // no blanks before a statement on its line
	KeepNewline  bool // the line end at the end of the template stays
	PlainJSON    bool // tojson keeps the order of keys and all characters

	// Now gives the time to strftime_now, which is not defined without it.
	Now func() time.Time
}

// Tasks are the settings of lm-evaluation-harness.
func Tasks() Options { return Options{Strict: true, KeepNewline: true} }

// Chats are the settings of the transformers library for chat templates, with the clock now, which may be nil.
func Chats(now func() time.Time) Options {
	return Options{TrimBlocks: true, LstripBlocks: true, PlainJSON: true, Now: now}
}

// Template is a parsed template. It may be used by any number of goroutines.
type Template struct {
	nodes []node
	o     Options
}

// node is a piece of a template.
type node interface {
	render(s *state, out *strings.Builder) error
}

// Parse reads a template.
func Parse(source string, o Options) (*Template, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("%w: %d bytes, more than %d", ErrCost, len(source), maxSource)
	}

	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	if !o.KeepNewline {
		source = strings.TrimSuffix(source, "\n")
	}

	pieces, err := cut(source, o)
	if err != nil {
		return nil, err
	}

	b := &builder{pieces: pieces}
	nodes, err := b.body(0)
	if err != nil {
		return nil, err
	}

	if b.at < len(pieces) {
		return nil,
			at(pieces[b.at].line, fmt.Errorf("%w: {%% %s %%} without a beginning", ErrSyntax, pieces[b.at].first()))
	}

	return &Template{nodes, o}, nil
}

// Render gives the text of the template for the values of names. It ends early when ctx does.
func (t *Template) Render(ctx context.Context, names *pyvalue.Dict) (string, error) {
	s := newState(ctx, t, names)
	var out strings.Builder
	if err := renderAll(t.nodes, s, &out); err != nil {
		return "", err
	}
	return out.String(), nil
}

// Eval gives the value of a template that is a single expression; false if it is anything else.
func (t *Template) Eval(ctx context.Context, names *pyvalue.Dict) (v any, single bool, err error) {
	if len(t.nodes) != 1 {
		return nil, false, nil
	}

	n, ok := t.nodes[0].(output)
	if !ok {
		return nil, false, nil
	}

	s := newState(ctx, t, names)
	v, err = n.x.eval(s)
	if _, missing := v.(*library.Undefined); err == nil && missing {
		v, err = s.Str(v)
	}

	return v, true, at(n.line, err)
}

// Constant reports whether the template has no expressions and statements.
func (t *Template) Constant() bool {
	for _, n := range t.nodes {
		if _, ok := n.(text); !ok {
			return false
		}
	}
	return true
}

// located is an error in a line of a template.
type located struct {
	line int
	err  error
}

func (l *located) Error() string { return fmt.Sprintf("line %d: %v", l.line, l.err) }
func (l *located) Unwrap() error { return l.err }

// at says in which line an error is, unless that is known or no error.
func at(line int, err error) error {
	var known *located
	var j jump
	if err == nil || errors.As(err, &known) || errors.As(err, &j) {
		return err
	}
	return &located{line, err}
}

// state is one rendering.
type state struct {
	*library.Env
	names  *pyvalue.Dict
	locals []map[string]any // the innermost last
	calls  int              // of macros, in each other
}

func newState(ctx context.Context, t *Template, names *pyvalue.Dict) *state {
	return &state{names: names, locals: []map[string]any{{}}, Env: &library.Env{
		Strict: t.o.Strict, PlainJSON: t.o.PlainJSON, Now: t.o.Now, Filters: library.Filters, Tests: library.Tests,
		Context: ctx,
	}}
}

func (s *state) lookup(name string) any {
	for i := len(s.locals) - 1; i >= 0; i-- {
		if v, ok := s.locals[i][name]; ok {
			return v
		}
	}

	if v, ok := s.names.Get(name); ok {
		return v
	}
	if f, ok := library.Globals[name]; ok && (name != "strftime_now" || s.Now != nil) {
		return &library.Native{Name: name, Function: f}
	}

	return &library.Undefined{What: fmt.Sprintf("%q; known: %s", name, strings.Join(s.names.Keys(), ", "))}
}

// inner runs something with variables of its own.
func (s *state) inner(vars map[string]any, run func() error) error {
	s.locals = append(s.locals, vars)
	defer func() { s.locals = s.locals[:len(s.locals)-1] }()
	return run()
}

func renderAll(nodes []node, s *state, out *strings.Builder) error {
	for _, n := range nodes {
		if err := s.Step(); err != nil {
			return err
		}
		if err := n.render(s, out); err != nil {
			return err
		}
	}
	return nil
}

// text is what stands between tags.
type text string

func (t text) render(s *state, out *strings.Builder) error { return s.write(out, string(t)) }

// write adds to the text of the template.
func (s *state) write(out *strings.Builder, text string) error {
	if out.Len()+len(text) > library.MaxOutput {
		return fmt.Errorf("%w: more than %d bytes of text", ErrCost, library.MaxOutput)
	}
	out.WriteString(text)
	return s.Pay(len(text) / library.TextStep)
}

// output is {{ x }}.
type output struct {
	x    expr
	line int
}

func (o output) render(s *state, out *strings.Builder) error {
	v, err := o.x.eval(s)
	if err != nil {
		return at(o.line, err)
	}
	text, err := s.Str(v)
	if err != nil {
		return at(o.line, err)
	}
	return at(o.line, s.write(out, text))
}
