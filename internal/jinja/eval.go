package jinja

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/jinja/internal/library"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// expr is an expression.
type expr interface{ eval(s *state) (any, error) }

type (
	constant struct{ v any }
	name     string
	list     struct {
		items []expr
		tuple bool
	}
	dict   struct{ keys, values []expr }
	choice struct{ test, yes, no expr }
	logic  struct {
		or   bool
		x, y expr
	}
	not      struct{ x expr }
	negative struct{ x expr }
	compare  struct {
		first expr
		ops   []string
		rest  []expr
	}
	arith struct {
		op   string
		x, y expr
	}
	attribute struct {
		x    expr
		name string
	}
	item  struct{ x, at expr }
	slice struct {
		x     expr
		parts [3]expr
	}
	call struct {
		x    expr
		args arguments
	}
	filtered struct {
		name string
		f    library.Function
		x    expr
		args arguments
	}
	tested struct {
		x       expr
		name    string
		f       library.Function
		args    arguments
		negated bool
	}
	argument struct {
		name string
		x    expr
	}
	arguments []argument
)

func (c constant) eval(*state) (any, error) { return c.v, nil }

func (n name) eval(s *state) (any, error) {
	if err := s.Step(); err != nil {
		return nil, err
	}
	return s.lookup(string(n)), nil
}

func (l list) eval(s *state) (any, error) {
	out := make([]any, 0, len(l.items))
	for _, x := range l.items {
		v, err := x.eval(s)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}

	if l.tuple {
		return pyvalue.Tuple(out), s.PayFor(out...)
	}

	return out, s.PayFor(out...)
}

func (d dict) eval(s *state) (any, error) {
	out := pyvalue.NewDict()
	for i := range d.keys {
		k, err := d.keys[i].eval(s)
		if err != nil {
			return nil, err
		}

		v, err := d.values[i].eval(s)
		if err != nil {
			return nil, err
		}

		if err := out.SetKey(k, v); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrType, err)
		}
	}

	return out, s.PayFor(out)
}

func (c choice) eval(s *state) (any, error) {
	holds, err := s.holds(c.test)
	if err == nil {
		err = s.Step()
	}

	switch {
	case err != nil:
		return nil, err
	case holds:
		return c.yes.eval(s)
	case c.no == nil:
		return &library.Undefined{What: "value: the condition of an if without else does not hold", Soft: true}, nil
	}

	return c.no.eval(s)
}

func (l logic) eval(s *state) (any, error) {
	v, err := l.x.eval(s)
	if err == nil {
		err = s.Step()
	}
	if err != nil {
		return nil, err
	}
	if truth, err := s.Truth(v); err != nil || truth == l.or {
		return v, err
	}

	return l.y.eval(s)
}

func (n not) eval(s *state) (any, error) {
	holds, err := s.holds(n.x)
	return !holds, err
}

func (n negative) eval(s *state) (any, error) {
	v, err := n.x.eval(s)
	if err != nil {
		return nil, err
	}
	return s.Negate(v)
}

func (a arith) eval(s *state) (any, error) {
	x, err := a.x.eval(s)
	if err != nil {
		return nil, err
	}
	y, err := a.y.eval(s)
	if err != nil {
		return nil, err
	}
	return s.Operate(a.op, x, y)
}

func (c compare) eval(s *state) (any, error) {
	x, err := c.first.eval(s)
	if err != nil {
		return nil, err
	}

	for i, op := range c.ops {
		y, err := c.rest[i].eval(s)
		if err != nil {
			return nil, err
		}

		if err := s.PayFor(x, y); err != nil {
			return nil, err
		}

		ok, err := s.Compare(op, x, y)
		if err != nil || !ok {
			return false, err
		}

		x = y
	}

	return true, nil
}

func (a attribute) eval(s *state) (any, error) {
	x, err := a.x.eval(s)
	if err == nil {
		err = s.Step()
	}
	if err != nil {
		return nil, err
	}
	if n, err := strconv.Atoi(a.name); err == nil { // x.0 is x[0]
		return s.Item(x, int64(n))
	}

	return s.Attribute(x, a.name)
}

func (i item) eval(s *state) (any, error) {
	x, err := i.x.eval(s)
	if err != nil {
		return nil, err
	}

	at, err := i.at.eval(s)
	if err != nil {
		return nil, err
	}

	if err := s.PayFor(at); err != nil {
		return nil, err
	}

	return s.Item(x, at)
}

func (l slice) eval(s *state) (any, error) {
	x, err := l.x.eval(s)
	if err != nil {
		return nil, err
	}

	var parts [3]*int
	for i, p := range l.parts {
		if p == nil {
			continue
		}

		v, err := p.eval(s)
		if err != nil {
			return nil, err
		}

		n, ok := pyvalue.Int(v)
		if !ok && v != nil {
			return nil, fmt.Errorf("%w: slice at a %s", ErrType, pyvalue.Kind(v))
		}

		if ok {
			parts[i] = &n
		}
	}

	if u, ok := x.(*library.Undefined); ok {
		return nil, u.Err()
	}

	items, err := s.Iterate(x)
	if err != nil {
		return nil, err
	}

	if err := s.Pay(len(items)); err != nil {
		return nil, err
	}

	out, err := library.Cut(items, parts)
	if _, ok := x.(pyvalue.Tuple); ok {
		return pyvalue.Tuple(out), err
	}
	if _, ok := x.(string); !ok || err != nil {
		return out, err
	}

	var b strings.Builder
	for _, r := range out {
		b.WriteString(r.(string))
	}

	return b.String(), nil
}

func (c call) eval(s *state) (any, error) {
	x, err := c.x.eval(s)
	if err != nil {
		return nil, err
	}

	args, err := c.args.eval(s)
	if err != nil {
		return nil, err
	}

	switch f := x.(type) {
	case *library.Undefined:
		return nil, c.missing(s, f)
	case *library.Native:
		if err := s.PayFor(f.Self); err != nil {
			return nil, err
		}
		return f.Call(args)
	case library.Callable:
		return f.Call(args)
	}

	return nil, fmt.Errorf("%w: a %s is called", ErrType, pyvalue.Kind(x))
}

// missing says what was to be called.
func (c call) missing(s *state, u *library.Undefined) error {
	switch f := c.x.(type) {
	case name:
		return fmt.Errorf("%w: function %q; known: %s", ErrUnknown, string(f), library.Known(library.Globals))
	case attribute:
		if x, err := f.x.eval(s); err == nil {
			if table := library.Methods[pyvalue.Kind(x)]; table != nil {
				return fmt.Errorf("%w: method %q of a %s; known: %s", ErrUnknown, f.name, pyvalue.Kind(x),
					library.Known(table))
			}
		}
	}

	return u.Err()
}

func (a arguments) eval(s *state) (library.Given, error) {
	g := library.Given{Env: s.Env}
	for _, arg := range a {
		v, err := arg.x.eval(s)
		if err != nil {
			return g, err
		}

		if arg.name == "" {
			g.List = append(g.List, v)
			continue
		}

		if g.Named == nil {
			g.Named = map[string]any{}
		}
		if _, twice := g.Named[arg.name]; twice {
			return g, fmt.Errorf("%w: argument %q is given twice", ErrType, arg.name)
		}

		g.Named[arg.name] = v
		g.Names = append(g.Names, arg.name)
		if err := s.PayFor(v); err != nil {
			return g, err
		}
	}

	return g, s.PayFor(g.List...)
}

func (f filtered) eval(s *state) (any, error) {
	x, err := f.x.eval(s)
	if err != nil {
		return nil, err
	}

	args, err := f.args.eval(s)
	if err != nil {
		return nil, err
	}

	v, err := s.Filter(f.name, f.f, x, args)
	if err != nil {
		return nil, fmt.Errorf("filter %s: %w", f.name, err)
	}

	return v, nil
}

func (t tested) eval(s *state) (any, error) {
	x, err := t.x.eval(s)
	if err == nil {
		err = s.PayFor(x)
	}
	if err != nil {
		return nil, err
	}

	args, err := t.args.eval(s)
	if err != nil {
		return nil, err
	}

	v, err := t.f.Do(x, args)
	if err != nil {
		return nil, fmt.Errorf("test %s: %w", t.name, err)
	}

	return v.(bool) != t.negated, nil
}
