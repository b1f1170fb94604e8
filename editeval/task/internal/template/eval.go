package template

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/value"
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
		f    function
		x    expr
		args arguments
	}
	tested struct {
		x       expr
		name    string
		f       func(v any) bool
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
	if err := s.step(); err != nil {
		return nil, err
	}
	if v, ok := s.lookup(string(n)); ok {
		return v, nil
	}
	return nil, fmt.Errorf("%w %q; known: %s", ErrUndefined, string(n), strings.Join(s.names.Keys(), ", "))
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
		return value.Tuple(out), s.payFor(out...)
	}
	return out, s.payFor(out...)
}

func (d dict) eval(s *state) (any, error) {
	out := value.NewDict()
	for i := range d.keys {
		k, err := d.keys[i].eval(s)
		if err != nil {
			return nil, err
		}
		v, err := d.values[i].eval(s)
		if err != nil {
			return nil, err
		}
		key, ok := k.(string)
		if !ok {
			return nil, fmt.Errorf("%w: a dictionary whose keys are %s, not str", ErrUnknown, value.Kind(k))
		}
		out.Set(key, v)
	}
	return out, s.payFor(out)
}

func (c choice) eval(s *state) (any, error) {
	v, err := c.test.eval(s)
	if err == nil {
		err = s.step()
	}
	switch {
	case err != nil:
		return nil, err
	case value.Truth(v):
		return c.yes.eval(s)
	case c.no == nil:
		return nil, fmt.Errorf("%w: the condition of an if without else does not hold", ErrUndefined)
	}
	return c.no.eval(s)
}

func (l logic) eval(s *state) (any, error) {
	v, err := l.x.eval(s)
	if err == nil {
		err = s.step()
	}
	if err != nil || value.Truth(v) == l.or {
		return v, err
	}
	return l.y.eval(s)
}

func (n not) eval(s *state) (any, error) {
	v, err := n.x.eval(s)
	return !value.Truth(v), err
}

// eval keeps the sign of a zero.
func (n negative) eval(s *state) (any, error) {
	v, err := n.x.eval(s)
	if err != nil {
		return nil, err
	}
	if f, ok := v.(float64); ok {
		return -f, s.step()
	}
	i, ok := value.Int(v)
	if !ok {
		return nil, typeError("-", v)
	}
	return intArith("-", 0, int64(i))
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
		if err := s.payFor(x, y); err != nil {
			return nil, err
		}
		ok, err := compareValues(op, x, y)
		if err != nil || !ok {
			return false, err
		}
		x = y
	}
	return true, nil
}

func compareValues(op string, x, y any) (bool, error) {
	switch op {
	case "==":
		return value.Equal(x, y), nil
	case "!=":
		return !value.Equal(x, y), nil
	case "in", "not in":
		in, err := contains(y, x)
		return in == (op == "in"), err
	}
	c, err := value.Compare(x, y)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrType, err)
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

func contains(in, v any) (bool, error) {
	switch in := in.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			return false, typeError("in", v, in)
		}
		return strings.Contains(in, s), nil
	case value.Tuple:
		return contains([]any(in), v)
	case []any:
		return slices.ContainsFunc(in, func(x any) bool { return value.Equal(x, v) }), nil
	case *value.Dict:
		s, ok := v.(string)
		_, has := in.Get(s)
		return ok && has, nil
	}
	return false, typeError("in", v, in)
}

func (a attribute) eval(s *state) (any, error) {
	x, err := a.x.eval(s)
	if err == nil {
		err = s.step()
	}
	if err != nil {
		return nil, err
	}
	if d, ok := x.(*value.Dict); ok {
		if v, ok := d.Get(a.name); ok && !isMethod(x, a.name) {
			return v, nil
		}
	}
	if l, err := iterate(x); err == nil && isList(x) {
		if i, err := strconv.Atoi(a.name); err == nil && i < len(l) {
			return l[i], nil
		}
	}
	if isMethod(x, a.name) {
		return nil, fmt.Errorf("%w: method %s is not called", ErrType, a.name)
	}
	return nil, fmt.Errorf("%w: %s has no %q%s", ErrUndefined, value.Kind(x), a.name, has(x))
}

func isList(x any) bool {
	switch x.(type) {
	case []any, value.Tuple:
		return true
	}
	return false
}

// has lists the keys of a dictionary.
func has(x any) string {
	if d, ok := x.(*value.Dict); ok {
		return "; known: " + strings.Join(d.Keys(), ", ")
	}
	return ""
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
	if d, ok := x.(*value.Dict); ok {
		key, ok := at.(string)
		if v, has := d.Get(key); ok && has {
			return v, nil
		}
		return nil, fmt.Errorf("%w: dict has no %s%s", ErrUndefined, value.Repr(at), has(x))
	}
	n, ok := value.Int(at)
	if !ok {
		return nil, typeError("index", x, at)
	}
	items, err := s.iterate(x)
	if err != nil {
		return nil, err
	}
	if n < 0 {
		n += len(items)
	}
	if n < 0 || n >= len(items) {
		return nil, fmt.Errorf("%w: %s has %d items, not item %s", ErrUndefined, value.Kind(x), len(items), value.Repr(at))
	}
	return items[n], nil
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
		n, ok := value.Int(v)
		if !ok && v != nil {
			return nil, typeError("slice", v)
		}
		if ok {
			parts[i] = &n
		}
	}
	items, err := s.iterate(x)
	if err != nil {
		return nil, err
	}
	if err := s.pay(len(items)); err != nil {
		return nil, err
	}
	out, err := cutSlice(items, parts)
	if _, ok := x.(value.Tuple); ok {
		return value.Tuple(out), err
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

// cutSlice is items[lo:hi:step].
func cutSlice(items []any, parts [3]*int) ([]any, error) {
	step, n := 1, len(items)
	if parts[2] != nil {
		step = *parts[2]
	}
	if step == 0 {
		return nil, fmt.Errorf("%w: slice with step 0", ErrType)
	}
	lo, hi := 0, n
	if step < 0 {
		lo, hi = n-1, -1
	}
	bound := func(p *int, to *int) {
		if p == nil {
			return
		}
		v := *p
		if v < 0 {
			v = max(v+n, min(0, step))
		}
		*to = min(v, n+min(0, step))
		if step > 0 {
			*to = max(*to, 0)
		}
	}
	bound(parts[0], &lo)
	bound(parts[1], &hi)
	out := []any{}
	for i := lo; step > 0 && i < hi || step < 0 && i > hi; i += step {
		out = append(out, items[i])
	}
	return out, nil
}

func (c call) eval(s *state) (any, error) {
	args, err := c.args.eval(s)
	if err != nil {
		return nil, err
	}
	switch f := c.x.(type) {
	case attribute:
		x, err := f.x.eval(s)
		if err != nil {
			return nil, err
		}
		if err := s.payFor(x); err != nil {
			return nil, err
		}
		return callMethod(x, f.name, args)
	case name:
		if g, ok := globals[string(f)]; ok {
			return g(nil, args)
		}
		return nil, fmt.Errorf("%w: function %q; known: %s", ErrUnknown, string(f), known(globals))
	}
	return nil, fmt.Errorf("%w: calling a value", ErrUnknown)
}

func (a arguments) eval(s *state) (given, error) {
	g := given{budget: &s.budget}
	for _, arg := range a {
		v, err := arg.x.eval(s)
		if err != nil {
			return g, err
		}
		if arg.name == "" {
			g.list = append(g.list, v)
			continue
		}
		if g.named == nil {
			g.named = map[string]any{}
		}
		g.named[arg.name] = v
	}
	return g, s.payFor(g.list...)
}

func (f filtered) eval(s *state) (any, error) {
	x, err := f.x.eval(s)
	if f.name == "default" || f.name == "d" {
		if isUndefined(err) {
			return f.orDefault(s)
		}
	}
	if err != nil {
		return nil, err
	}
	args, err := f.args.eval(s)
	if err != nil {
		return nil, err
	}
	if err := s.payFor(x); err != nil {
		return nil, err
	}
	v, err := f.f(x, args)
	if err != nil {
		return nil, fmt.Errorf("filter %s: %w", f.name, err)
	}
	return v, nil
}

// orDefault is the filter default for a value that is not defined.
func (f filtered) orDefault(s *state) (any, error) {
	args, err := f.args.eval(s)
	return args.or(0, "default_value", ""), err
}

func (t tested) eval(s *state) (any, error) {
	x, err := t.x.eval(s)
	if t.name == "defined" || t.name == "undefined" {
		if err != nil && !isUndefined(err) {
			return nil, err
		}
		return (err == nil) == (t.name == "defined") != t.negated, nil
	}
	if err == nil {
		err = s.payFor(x)
	}
	if err != nil {
		return nil, err
	}
	return t.f(x) != t.negated, nil
}

// known lists the names of a table.
func known[T any](table map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(table)), ", ")
}
