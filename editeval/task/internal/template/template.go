// Package template renders the part of the Jinja language that task files use: {{ expressions }} with attributes, indices, slices,
// string and list methods, filters, operators and tests, and the statements if, for and set. A name that is not defined is an error,
// as is everything outside of this part; errors say where and list what is known.
//
// Values have Python's meaning (see package value). White space is kept as written, the line end at the end of a template too.
package template

import (
	"errors"
	"fmt"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/value"
)

// The ways in which a template can fail.
var (
	ErrSyntax    = errors.New("template syntax")
	ErrUnknown   = errors.New("not supported in templates")
	ErrUndefined = errors.New("undefined name")
	ErrType      = errors.New("wrong type in a template")
	ErrCost      = errors.New("template is too costly")
)

// Template is a parsed template. It may be used by any number of goroutines.
type Template struct {
	source string
	nodes  []node
}

// node is a piece of a template.
type node interface {
	render(s *state, out *strings.Builder) error
}

// Parse reads a template.
func Parse(source string) (*Template, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("%w: %d bytes, more than %d", ErrCost, len(source), maxSource)
	}
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	pieces, err := cut(source)
	if err != nil {
		return nil, err
	}
	b := &builder{pieces: pieces}
	nodes, err := b.body(0)
	if err != nil {
		return nil, err
	}
	if b.at < len(pieces) {
		return nil, fmt.Errorf("%w: {%% %s %%} without a beginning", ErrSyntax, pieces[b.at].first())
	}
	return &Template{source, nodes}, nil
}

// Render gives the text of the template for the values of names.
func (t *Template) Render(names *value.Dict) (string, error) {
	s := newState(names)
	var out strings.Builder
	if err := renderAll(t.nodes, s, &out); err != nil {
		return "", err
	}
	return out.String(), nil
}

// Eval gives the value of a template that is a single expression; false if it is anything else.
func (t *Template) Eval(names *value.Dict) (v any, single bool, err error) {
	if len(t.nodes) != 1 {
		return nil, false, nil
	}
	n, ok := t.nodes[0].(output)
	if !ok {
		return nil, false, nil
	}
	v, err = n.x.eval(newState(names))
	return v, true, err
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

// state is one rendering.
type state struct {
	names  *value.Dict
	locals []map[string]any // the innermost last
	budget
}

func newState(names *value.Dict) *state {
	return &state{names: names, locals: []map[string]any{{}}}
}

// step counts work.
func (s *state) step() error { return s.pay(1) }

func (s *state) lookup(name string) (any, bool) {
	for i := len(s.locals) - 1; i >= 0; i-- {
		if v, ok := s.locals[i][name]; ok {
			return v, true
		}
	}
	return s.names.Get(name)
}

func renderAll(nodes []node, s *state, out *strings.Builder) error {
	for _, n := range nodes {
		if err := s.step(); err != nil {
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
	if out.Len()+len(text) > maxOutput {
		return fmt.Errorf("%w: more than %d bytes of text", ErrCost, maxOutput)
	}
	out.WriteString(text)
	return s.pay(len(text) / textStep)
}

// output is {{ x }}.
type output struct{ x expr }

func (o output) render(s *state, out *strings.Builder) error {
	v, err := o.x.eval(s)
	if err != nil {
		return err
	}
	text, err := s.str(v)
	if err != nil {
		return err
	}
	return s.write(out, text)
}

// set is {% set names = x %}.
type set struct {
	names []string
	x     expr
}

func (n set) render(s *state, _ *strings.Builder) error {
	v, err := n.x.eval(s)
	if err != nil {
		return err
	}
	return bind(s.locals[len(s.locals)-1], n.names, v)
}

// bind gives names a value, or several names the items of a list.
func bind(to map[string]any, names []string, v any) error {
	if len(names) == 1 {
		to[names[0]] = v
		return nil
	}
	list, ok := v.([]any)
	if t, isTuple := v.(value.Tuple); isTuple {
		list, ok = t, true
	}
	if !ok || len(list) != len(names) {
		return fmt.Errorf("%w: %s does not unpack into %d names", ErrType, value.Kind(v), len(names))
	}
	for i, name := range names {
		to[name] = list[i]
	}
	return nil
}

// cond is if, elif and else: the body of the first condition that holds; nil holds always.
type cond struct {
	tests  []expr
	bodies [][]node
}

func (n cond) render(s *state, out *strings.Builder) error {
	for i, test := range n.tests {
		if test != nil {
			v, err := test.eval(s)
			if err != nil {
				return err
			}
			if !value.Truth(v) {
				continue
			}
		}
		return renderAll(n.bodies[i], s, out)
	}
	return nil
}

// loop is {% for names in x if test %}.
type loop struct {
	names         []string
	x, test       expr // test may be nil
	body, nothing []node
}

func (n loop) render(s *state, out *strings.Builder) error {
	v, err := n.x.eval(s)
	if err != nil {
		return err
	}
	items, err := s.iterate(v)
	if err != nil {
		return err
	}
	s.locals = append(s.locals, map[string]any{})
	defer func() { s.locals = s.locals[:len(s.locals)-1] }()
	if items, err = n.filter(s, items); err != nil {
		return err
	}
	if len(items) == 0 {
		return renderAll(n.nothing, s, out)
	}
	for i, item := range items {
		if err := s.pay(loopStep); err != nil {
			return err
		}
		scope := map[string]any{"loop": position(i, len(items))}
		if err := bind(scope, n.names, item); err != nil {
			return err
		}
		s.locals[len(s.locals)-1] = scope
		if err := renderAll(n.body, s, out); err != nil {
			return err
		}
	}
	return nil
}

// filter keeps the items for which the loop's test holds.
func (n loop) filter(s *state, items []any) ([]any, error) {
	if n.test == nil {
		return items, nil
	}
	var kept []any
	for _, item := range items {
		if err := s.pay(loopStep); err != nil {
			return nil, err
		}
		scope := map[string]any{}
		if err := bind(scope, n.names, item); err != nil {
			return nil, err
		}
		s.locals[len(s.locals)-1] = scope
		v, err := n.test.eval(s)
		if err != nil {
			return nil, err
		}
		if value.Truth(v) {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

// position is the variable loop.
func position(i, n int) *value.Dict {
	d := value.NewDict()
	d.Set("index", int64(i+1))
	d.Set("index0", int64(i))
	d.Set("revindex", int64(n-i))
	d.Set("revindex0", int64(n-i-1))
	d.Set("first", i == 0)
	d.Set("last", i == n-1)
	d.Set("length", int64(n))
	return d
}

// iterate lists the items of a value.
func iterate(v any) ([]any, error) {
	switch v := v.(type) {
	case []any:
		return v, nil
	case value.Tuple:
		return v, nil
	case *value.Dict:
		list := make([]any, 0, v.Len())
		for _, k := range v.Keys() {
			list = append(list, k)
		}
		return list, nil
	case string:
		list := make([]any, 0, len(v))
		for _, r := range v {
			list = append(list, string(r))
		}
		return list, nil
	}
	return nil, fmt.Errorf("%w: %s has no items", ErrType, value.Kind(v))
}
