package jinja

import (
	"errors"
	"fmt"
	"strings"

	"github.com/modelcompress/compress/internal/jinja/internal/library"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// set is {% set names = x %}, or {% set name %}body{% endset %} with filters.
type set struct {
	line      int
	names     []string
	attribute string // of the namespace names[0]
	x         expr   // nil: body
	body      []node
	wrap      func(expr) (expr, error) // the filters of a body
}

func (n set) render(s *state, _ *strings.Builder) error {
	v, err := n.value(s)
	if err != nil {
		return at(n.line, err)
	}

	if n.attribute == "" {
		return at(n.line, s.bind(s.locals[len(s.locals)-1], n.names, v))
	}

	space, ok := s.lookup(n.names[0]).(*library.Namespace)
	if !ok {
		return at(n.line, fmt.Errorf("%w: %s is no namespace", ErrType, n.names[0]))
	}

	space.Items[n.attribute] = v
	return nil
}

func (n set) value(s *state) (any, error) {
	if n.x != nil {
		return n.x.eval(s)
	}
	return captured(s, n.body, n.wrap)
}

// captured renders a body of its own and applies filters to it.
func captured(s *state, body []node, wrap func(expr) (expr, error)) (any, error) {
	var out strings.Builder
	if err := s.inner(map[string]any{}, func() error { return renderAll(body, s, &out) }); err != nil {
		return nil, err
	}
	x, err := wrap(constant{out.String()})
	if err != nil {
		return nil, err
	}
	return x.eval(s)
}

// filterBlock is {% filter f %}body{% endfilter %}.
type filterBlock struct {
	line int
	body []node
	wrap func(expr) (expr, error)
}

func (n filterBlock) render(s *state, out *strings.Builder) error {
	v, err := captured(s, n.body, n.wrap)
	if err != nil {
		return at(n.line, err)
	}
	text, err := s.Str(v)
	if err != nil {
		return at(n.line, err)
	}
	return at(n.line, s.write(out, text))
}

// group is a body that changes nothing: {% generation %}.
type group []node

func (g group) render(s *state, out *strings.Builder) error { return renderAll(g, s, out) }

// with is {% with a = x %}body{% endwith %}.
type with struct {
	line   int
	names  []string
	values []expr
	body   []node
}

func (n with) render(s *state, out *strings.Builder) error {
	vars := map[string]any{}
	for i, x := range n.values {
		v, err := x.eval(s)
		if err != nil {
			return at(n.line, err)
		}
		vars[n.names[i]] = v
	}
	return s.inner(vars, func() error { return renderAll(n.body, s, out) })
}

// bind gives names a value, or several names the items of a list.
func (s *state) bind(to map[string]any, names []string, v any) error {
	if len(names) == 1 {
		to[names[0]] = v
		return nil
	}

	list, err := s.Iterate(v)
	if err != nil {
		return err
	}

	if len(list) != len(names) {
		return fmt.Errorf("%w: %s of %d items does not unpack into %d names", ErrType, pyvalue.Kind(v), len(list),
			len(names))
	}

	for i, name := range names {
		to[name] = list[i]
	}

	return nil
}

// cond is if, elif and else: the body of the first condition that holds; nil holds always.
type cond struct {
	lines  []int
	tests  []expr
	bodies [][]node
}

func (n cond) render(s *state, out *strings.Builder) error {
	for i, test := range n.tests {
		if test != nil {
			holds, err := s.holds(test)
			if err != nil {
				return at(n.lines[i], err)
			}

			if !holds {
				continue
			}
		}

		return renderAll(n.bodies[i], s, out)
	}

	return nil
}

// holds is whether an expression counts as true.
func (s *state) holds(x expr) (bool, error) {
	v, err := x.eval(s)
	if err != nil {
		return false, err
	}
	return s.Truth(v)
}

// jump is break or continue.
type jump string

func (j jump) Error() string                         { return string(j) + " outside of a loop" }
func (j jump) render(*state, *strings.Builder) error { return j }

// loop is {% for names in x if test %}.
type loop struct {
	line          int
	names         []string
	x, test       expr // test may be nil
	body, nothing []node
}

func (n loop) render(s *state, out *strings.Builder) error {
	items, err := n.items(s)
	if err != nil {
		return at(n.line, err)
	}

	if len(items) == 0 {
		return s.inner(map[string]any{}, func() error { return renderAll(n.nothing, s, out) })
	}

	turns := &turns{items: items}
	for turns.at = range items {
		scope := map[string]any{"loop": turns}
		if err := s.Pay(loopStep); err != nil {
			return at(n.line, err)
		}
		if err := s.bind(scope, n.names, items[turns.at]); err != nil {
			return at(n.line, err)
		}

		err := s.inner(scope, func() error { return renderAll(n.body, s, out) })
		if errors.Is(err, jump("break")) {
			return nil
		}

		if err != nil && !errors.Is(err, jump("continue")) {
			return err
		}
	}

	return nil
}

// items are those that the loop goes over.
func (n loop) items(s *state) ([]any, error) {
	v, err := n.x.eval(s)
	if err != nil {
		return nil, err
	}

	items, err := s.Iterate(v)
	if err != nil || n.test == nil {
		return items, err
	}

	var kept []any
	for _, item := range items {
		if err := s.Pay(loopStep); err != nil {
			return nil, err
		}

		scope := map[string]any{}
		if err := s.bind(scope, n.names, item); err != nil {
			return nil, err
		}

		err := s.inner(scope, func() error {
			holds, err := s.holds(n.test)
			if holds {
				kept = append(kept, item)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}

	return kept, nil
}

// turns is the variable loop.
type turns struct {
	items []any
	at    int
	seen  []any // what changed got last
}

// Kind names the type for messages.
func (t *turns) Kind() string { return "loop" }

// Get gives an attribute.
func (t *turns) Get(name string) (any, bool) {
	n := len(t.items)
	switch name {
	case "index":
		return int64(t.at + 1), true
	case "index0":
		return int64(t.at), true
	case "revindex":
		return int64(n - t.at), true
	case "revindex0":
		return int64(n - t.at - 1), true
	case "first":
		return t.at == 0, true
	case "last":
		return t.at == n-1, true
	case "length":
		return int64(n), true
	case "depth": // of a loop that calls itself, which none does here
		return int64(1), true
	case "depth0":
		return int64(0), true
	case "previtem":
		if t.at > 0 {
			return t.items[t.at-1], true
		}
		return &library.Undefined{What: "there is no previous item"}, true
	case "nextitem":
		if t.at+1 < n {
			return t.items[t.at+1], true
		}
		return &library.Undefined{What: "there is no next item"}, true
	case "cycle":
		return &library.Native{Name: name, Function: library.Function{Args: "*", Do: t.cycle}}, true
	case "changed":
		return &library.Native{Name: name, Function: library.Function{Args: "*", Do: t.changed}}, true
	}

	return nil, false
}

func (t *turns) cycle(_ any, g library.Given) (any, error) {
	if len(g.List) == 0 {
		return nil, fmt.Errorf("%w: nothing to cycle", ErrType)
	}
	return g.List[t.at%len(g.List)], nil
}

func (t *turns) changed(_ any, g library.Given) (any, error) {
	before := t.seen
	t.seen = g.List
	if before == nil || len(before) != len(g.List) {
		return true, nil
	}

	for i, v := range g.List {
		if same, err := g.Equal(v, before[i]); err != nil || !same {
			return true, err
		}
	}

	return false, nil
}

// macro is {% macro name(a, b=x) %}body{% endmacro %}, and the body of {% call %}.
type macro struct {
	name      string
	params    []string
	defaults  []expr // nil where there is none
	body      []node
	rest      bool // the body reads varargs
	restNamed bool // the body reads kwargs
}

func (m *macro) render(s *state, _ *strings.Builder) error {
	s.locals[len(s.locals)-1][m.name] = &closure{m, s.locals[:len(s.locals):len(s.locals)], s}
	return nil
}

// closure is a macro with the variables where it was defined.
type closure struct {
	*macro
	scopes []map[string]any
	s      *state
}

// Kind names the type for messages.
func (c *closure) Kind() string { return "macro" }

// Call renders the body for arguments.
func (c *closure) Call(g library.Given) (any, error) {
	s := c.s
	s.calls++
	if s.calls > maxNest {
		return nil, fmt.Errorf("%w: macros call each other more than %d deep", ErrCost, maxNest)
	}

	outer := s.locals
	s.locals = c.scopes
	defer func() { s.calls, s.locals = s.calls-1, outer }()

	vars := map[string]any{}
	var out strings.Builder
	err := s.inner(vars, func() error {
		if err := c.bind(s, vars, g); err != nil {
			return fmt.Errorf("macro %s: %w", c.name, err)
		}
		return renderAll(c.body, s, &out)
	})

	return out.String(), err
}

// bind gives the parameters their values.
func (c *closure) bind(s *state, vars map[string]any, g library.Given) error {
	named := map[string]any{}
	for k, v := range g.Named {
		named[k] = v
	}

	vars["caller"] = &library.Undefined{What: "caller: the macro was not called by a call statement"}

	if f, ok := named["caller"]; ok {
		vars["caller"] = f
		delete(named, "caller")
	}

	for i, p := range c.params {
		v, ok := named[p]
		if i >= len(g.List) { // one that is given by its place as well stays, and is one too many
			delete(named, p)
		}

		switch {
		case i < len(g.List):
			v = g.List[i]
		case ok:
		case c.defaults[i] != nil:
			var err error
			if v, err = c.defaults[i].eval(s); err != nil {
				return err
			}
		default:
			v = &library.Undefined{What: fmt.Sprintf("%q: the parameter was not given", p)}
		}

		vars[p] = v
	}

	if extra := len(g.List) - len(c.params); extra > 0 && !c.rest {
		return fmt.Errorf("%w: %d arguments, want at most %d", ErrType, len(g.List), len(c.params))
	}

	vars["varargs"] = pyvalue.Tuple(g.List[min(len(c.params), len(g.List)):])
	all := pyvalue.NewDict()
	for _, k := range g.Names { // in the order of the call
		v, ok := named[k]
		if !ok {
			continue
		}
		if !c.restNamed {
			return fmt.Errorf("%w: it has no parameter %q, or it is given twice", ErrType, k)
		}
		all.Set(k, v)
	}

	vars["kwargs"] = all
	return nil
}

// callBlock is {% call(params) x(args) %}body{% endcall %}.
type callBlock struct {
	line int
	x    call
	body *macro
}

func (n callBlock) render(s *state, out *strings.Builder) error {
	x := n.x
	inner := &closure{n.body, s.locals[:len(s.locals):len(s.locals)], s}
	x.args = append(x.args[:len(x.args):len(x.args)], argument{"caller", constant{inner}})
	v, err := x.eval(s)
	if err != nil {
		return at(n.line, err)
	}

	text, err := s.Str(v)
	if err != nil {
		return at(n.line, err)
	}

	return at(n.line, s.write(out, text))
}
