package library

import (
	"fmt"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Undefined is the value of what is not there.
type Undefined struct {
	What string // for messages
	Soft bool   // an empty text even where what is not defined is an error: the else that an expression lacks
}

// Kind names the type as Jinja prints it.
func (u *Undefined) Kind() string { return "Undefined" }

// Err is the error of using it.
func (u *Undefined) Err() error { return fmt.Errorf("%w %s", ErrUndefined, u.What) }

// orEmpty is what undefined things are as a text, where that is allowed.
func (s *Env) orEmpty(u *Undefined) (any, error) {
	if s.Strict && !u.Soft {
		return nil, u.Err()
	}
	return "", nil
}

// Namespace is what namespace() makes: its attributes may be set.
type Namespace struct{ Items map[string]any }

// Kind names the type for messages.
func (n *Namespace) Kind() string { return "namespace" }

// Object is a value beyond those of package value. It has no text and equals only itself.
type Object interface {
	// Kind names the type for messages.
	Kind() string
}

// Holder is an object with attributes.
type Holder interface {
	Object
	// Get gives an attribute; false where there is no such.
	Get(name string) (v any, ok bool)
}

// Callable is an object that can be called.
type Callable interface {
	Object
	// Call gives the result for arguments.
	Call(g Given) (any, error)
}

// Get gives an attribute.
func (n *Namespace) Get(name string) (v any, ok bool) {
	v, ok = n.Items[name]
	return v, ok
}

// Native is a function or method of the language.
type Native struct {
	Name string
	Self any // whose method it is
	Function
}

// Kind names the type for messages.
func (n *Native) Kind() string { return "function" }

// Call checks the arguments and gives the result for them.
func (n *Native) Call(g Given) (any, error) {
	if err := n.Check(g); err != nil {
		return nil, fmt.Errorf("%s: %w", n.Name, err)
	}
	v, err := n.Do(n.Self, g)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Name, err)
	}
	return v, nil
}

// Truth is bool(v).
func (s *Env) Truth(v any) (bool, error) {
	if u, ok := v.(*Undefined); ok {
		if s.Strict && !u.Soft {
			return false, u.Err()
		}
		return false, nil
	}
	return pyvalue.Truth(v), nil
}

// Equal is a == b.
func (s *Env) Equal(a, b any) (bool, error) {
	u, okA := a.(*Undefined)
	w, okB := b.(*Undefined)
	if okB && !okA {
		u = w
	}
	if (okA || okB) && s.Strict && !u.Soft {
		return false, u.Err()
	}
	if okA || okB {
		return okA && okB, nil
	}
	if _, ok := a.(Object); ok {
		return a == b, nil
	}
	if err := s.PayFor(a, b); err != nil {
		return false, err
	}

	return pyvalue.Equal(a, b), nil
}

// Str is str(v), paid for.
func (s *Env) Str(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case *Undefined:
		if s.Strict && !v.Soft {
			return "", v.Err()
		}
		return "", nil
	case Object:
		return "", fmt.Errorf("%w: a %s is written as text", ErrType, pyvalue.Kind(v))
	}

	if err := s.payValue(v); err != nil {
		return "", err
	}

	text := pyvalue.Str(v)
	return text, s.PayText(len(text))
}

// Iterate lists the items of a value; those of a text are its characters.
func (s *Env) Iterate(v any) ([]any, error) {
	switch v := v.(type) {
	case *Undefined:
		if s.Strict && !v.Soft {
			return nil, v.Err()
		}
		return nil, nil
	case []any:
		return v, nil
	case pyvalue.Tuple:
		return v, nil
	case *pyvalue.Dict:
		return v.AllKeys(), s.Pay(v.Len())
	case string:
		list := make([]any, 0, len(v))
		for _, r := range v {
			list = append(list, string(r))
		}
		return list, s.Pay(len(list))
	}

	return nil, fmt.Errorf("%w: %s has no items", ErrType, pyvalue.Kind(v))
}

// Attribute is v.name: a method, then what it holds.
func (s *Env) Attribute(v any, name string) (any, error) {
	switch x := v.(type) {
	case *Undefined:
		return nil, x.Err()
	case Holder:
		if item, ok := x.Get(name); ok {
			return item, nil
		}
	case pyvalue.Tuple: // of groupby
		if len(x) == 2 && (name == "grouper" || name == "list") {
			return x[map[string]int{"grouper": 0, "list": 1}[name]], nil
		}
	}

	if f, ok := Methods[pyvalue.Kind(v)][name]; ok {
		return &Native{name, v, f}, nil
	}

	if d, ok := v.(*pyvalue.Dict); ok {
		if item, ok := d.Get(name); ok {
			return item, nil
		}
	}

	return &Undefined{What: fmt.Sprintf("%q of a %s%s", name, pyvalue.Kind(v), has(v))}, nil
}

// Item is v[key]: an item, then an attribute.
func (s *Env) Item(v, key any) (any, error) {
	if u, ok := v.(*Undefined); ok {
		return nil, u.Err()
	}

	if d, ok := v.(*pyvalue.Dict); ok {
		// What cannot be a key is not there, as in Jinja: no error before it is used.
		if item, has, err := d.GetKey(key); err == nil && has {
			return item, nil
		}
	}

	if name, ok := key.(string); ok {
		return s.Attribute(v, name)
	}

	n, ok := pyvalue.Int(key)
	if _, isDict := v.(*pyvalue.Dict); !ok || isDict {
		return &Undefined{What: fmt.Sprintf("item %s of a %s%s", pyvalue.Repr(key), pyvalue.Kind(v), has(v))}, nil
	}

	items, err := s.Iterate(v)
	if err != nil {
		return nil, err
	}

	if n < 0 {
		n += len(items)
	}

	if n < 0 || n >= len(items) {
		return &Undefined{
			What: fmt.Sprintf("item %s of a %s of %d items", pyvalue.Repr(key), pyvalue.Kind(v), len(items)),
		}, nil
	}

	return items[n], nil
}
