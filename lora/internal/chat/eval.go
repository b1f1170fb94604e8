package chat

import (
	"errors"
	"fmt"
	"strings"
)

// Limits of a rendering, against templates that never end.
const (
	maxWork   = 400_000  // evaluated pieces
	maxOutput = 16 << 20 // bytes
)

// undefined is the value of what is not there.
type undefined struct{}

// object is a namespace, or a message.
type object map[string]any

// function is a value that can be called.
type function func(r *render, args []any, named map[string]any) (any, error)

// render is one rendering in progress.
type render struct {
	out    strings.Builder
	scopes []map[string]any
	work   int
}

var (
	errBreak    = errors.New("break outside of a loop")
	errContinue = errors.New("continue outside of a loop")
)

func (r *render) step() error {
	if r.work++; r.work > maxWork || r.out.Len() > maxOutput {
		return errors.New("it does not come to an end")
	}
	return nil
}

func (r *render) all(list []node) error {
	for _, n := range list {
		if err := r.step(); err != nil {
			return err
		}
		if err := n.run(r); err != nil {
			return err
		}
	}
	return nil
}

func (r *render) value(e expr) (any, error) {
	if err := r.step(); err != nil {
		return nil, err
	}
	v, err := e.eval(r)
	switch v := v.(type) { // what is large takes long
	case string:
		r.work += len(v) / 64
	case []any:
		r.work += len(v) / 16
	}
	return v, err
}

func (r *render) look(name string) (any, bool) {
	for i := len(r.scopes) - 1; i >= 0; i-- {
		if v, ok := r.scopes[i][name]; ok {
			return v, true
		}
	}
	return undefined{}, false
}

type literal string

func (l literal) run(r *render) error { r.out.WriteString(string(l)); return nil }

type output struct{ e expr }

func (o output) run(r *render) error {
	v, err := r.value(o.e)
	if err != nil {
		return err
	}
	s, err := text(v)
	r.out.WriteString(s)
	return err
}

type group []node

func (g group) run(r *render) error { return r.all(g) }

type jump string

func (j jump) run(*render) error {
	if j == "break" {
		return errBreak
	}
	return errContinue
}

type ifNode struct {
	conds  []expr
	bodies [][]node
	other  []node
}

func (n ifNode) run(r *render) error {
	for i, c := range n.conds {
		v, err := r.value(c)
		if err != nil {
			return err
		}
		if truth(v) {
			return r.all(n.bodies[i])
		}
	}
	return r.all(n.other)
}

type forNode struct {
	names       []string
	over, cond  expr
	body, other []node
}

func (n forNode) run(r *render) error {
	v, err := r.value(n.over)
	if err != nil {
		return err
	}
	items, err := elements(v)
	if err != nil {
		return err
	}
	r.scopes = append(r.scopes, nil)
	defer func() { r.scopes = r.scopes[:len(r.scopes)-1] }()
	if n.cond != nil {
		if items, err = n.choose(r, items); err != nil {
			return err
		}
	}
	if len(items) == 0 {
		return r.all(n.other)
	}
	for i := range items {
		scope, err := n.bind(items[i])
		if err = errors.Join(err, r.step()); err != nil {
			return err
		}
		l := object{
			"index": i + 1, "index0": i, "first": i == 0, "last": i == len(items)-1, "length": len(items), "revindex": len(items) - i, "revindex0": len(items) - i - 1,
			"previtem": any(undefined{}), "nextitem": any(undefined{}),
		}
		if i > 0 {
			l["previtem"] = items[i-1]
		}
		if i+1 < len(items) {
			l["nextitem"] = items[i+1]
		}
		scope["loop"] = l
		r.scopes[len(r.scopes)-1] = scope
		if err := r.all(n.body); errors.Is(err, errBreak) {
			break
		} else if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	return nil
}

// choose keeps the items for which the loop's condition holds.
func (n forNode) choose(r *render, items []any) ([]any, error) {
	var kept []any
	for _, x := range items {
		scope, err := n.bind(x)
		if err = errors.Join(err, r.step()); err != nil {
			return nil, err
		}
		r.scopes[len(r.scopes)-1] = scope
		v, err := r.value(n.cond)
		if err != nil {
			return nil, err
		}
		if truth(v) {
			kept = append(kept, x)
		}
	}
	return kept, nil
}

func (n forNode) bind(x any) (map[string]any, error) {
	if len(n.names) == 1 {
		return map[string]any{n.names[0]: x}, nil
	}
	parts, err := elements(x)
	if err != nil || len(parts) != len(n.names) {
		return nil, fmt.Errorf("an element does not have %d parts", len(n.names))
	}
	scope := map[string]any{}
	for i, name := range n.names {
		scope[name] = parts[i]
	}
	return scope, nil
}

type setNode struct {
	name, attr string
	value      expr
	body       []node
}

func (n setNode) run(r *render) error {
	var v any
	var err error
	if n.value != nil {
		v, err = r.value(n.value)
	} else {
		inner := &render{scopes: r.scopes, work: r.work}
		err = inner.all(n.body)
		r.work, v = inner.work, inner.out.String()
	}
	if err != nil {
		return err
	}
	if n.attr == "" {
		r.scopes[len(r.scopes)-1][n.name] = v
		return nil
	}
	o, _ := r.look(n.name)
	space, ok := o.(object)
	if !ok {
		return fmt.Errorf("%s is no namespace", n.name)
	}
	space[n.attr] = v
	return nil
}

type constant struct{ v any }

func (c constant) eval(*render) (any, error) { return c.v, nil }

type variable string

func (v variable) eval(r *render) (any, error) {
	x, ok := r.look(string(v))
	if f := functions[string(v)]; !ok && f != nil {
		return f, nil
	}
	return x, nil
}

type list []expr

func (l list) eval(r *render) (any, error) {
	items := make([]any, len(l))
	for i, e := range l {
		var err error
		if items[i], err = r.value(e); err != nil {
			return nil, err
		}
	}
	return items, nil
}

type choice struct{ cond, yes, no expr }

func (c choice) eval(r *render) (any, error) {
	v, err := r.value(c.cond)
	switch {
	case err != nil:
		return nil, err
	case truth(v):
		return r.value(c.yes)
	case c.no == nil:
		return undefined{}, nil
	}
	return r.value(c.no)
}

type logic struct {
	or   bool
	a, b expr
}

func (l logic) eval(r *render) (any, error) {
	v, err := r.value(l.a)
	if err != nil || truth(v) == l.or {
		return v, err
	}
	return r.value(l.b)
}

type negation struct{ e expr }

func (n negation) eval(r *render) (any, error) {
	v, err := r.value(n.e)
	return !truth(v), err
}

type test struct {
	name string
	e    expr
}

func (t test) eval(r *render) (any, error) {
	v, err := r.value(t.e)
	return err == nil && tests[t.name](v), err
}

type binary struct {
	op   string
	a, b expr
}

func (b binary) eval(r *render) (any, error) {
	x, err := r.value(b.a)
	if err != nil {
		return nil, err
	}
	y, err := r.value(b.b)
	if err != nil {
		return nil, err
	}
	return combine(b.op, x, y)
}

type member struct{ e, key expr }

func (m member) eval(r *render) (any, error) {
	v, err := r.value(m.e)
	if err != nil {
		return nil, err
	}
	k, err := r.value(m.key)
	if err != nil {
		return nil, err
	}
	return get(v, k)
}

type slice struct {
	e  expr
	at [3]expr
}

func (s slice) eval(r *render) (any, error) {
	v, err := r.value(s.e)
	if err != nil {
		return nil, err
	}
	var at [3]*int
	for i, e := range s.at {
		if e == nil {
			continue
		}
		x, err := r.value(e)
		if err != nil {
			return nil, err
		}
		n, ok := x.(int)
		if !ok {
			return nil, errors.New("a bound of a slice is no whole number")
		}
		at[i] = &n
	}
	return cutOut(v, at)
}

type filter struct {
	name string
	e    expr
	c    call
}

func (f filter) eval(r *render) (any, error) {
	v, err := r.value(f.e)
	if err != nil {
		return nil, err
	}
	args, named, err := f.c.values(r)
	if err != nil {
		return nil, err
	}
	return filters[f.name](r, append([]any{v}, args...), named)
}

type call struct {
	f     expr
	args  []expr
	named map[string]expr
}

func (c call) values(r *render) (args []any, named map[string]any, err error) {
	for _, e := range c.args {
		v, err := r.value(e)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, v)
	}
	named = map[string]any{}
	for k, e := range c.named {
		if named[k], err = r.value(e); err != nil {
			return nil, nil, err
		}
	}
	return args, named, nil
}

func (c call) eval(r *render) (any, error) {
	f, err := r.value(c.f)
	if err != nil {
		return nil, err
	}
	args, named, err := c.values(r)
	if err != nil {
		return nil, err
	}
	do, ok := f.(function)
	if !ok {
		return nil, errors.New("something is called that is no function")
	}
	return do(r, args, named)
}
