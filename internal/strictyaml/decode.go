package strictyaml

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
)

// Decoder is a type that takes itself apart from a node, and notes the faults.
type Decoder interface {
	DecodeYAML(r *Reader, n *Node)
}

// Only gives the document of a file that has one, nil if it has none; what names it in messages ("a plan"). Further
// documents are a fault at the first of them.
func (r *Reader) Only(s *Source, what string) *Node {
	if len(s.Documents) == 0 {
		return nil
	}
	if len(s.Documents) > 1 {
		r.Add(s.Documents[1].Place, ErrSyntax, "%s is one document; another one begins here", what)
	}
	return s.Documents[0]
}

// Decode fills the value that a pointer leads to; what names it in messages ("an override").
//
// Fields of a struct take the keys that their yaml tags name; keys that are absent or null leave theirs as they are,
// and a list replaces the one that was there. Numbers and truth values are taken as they are written: text in quotes is
// neither, and true is no number.
func (r *Reader) Decode(n *Node, what string, to any) {
	r.decode(n, what, reflect.ValueOf(to).Elem())
}

// exact bounds whole numbers: a float64 holds all of them up to here.
const exact = 1 << 53

func (r *Reader) decode(n *Node, what string, v reflect.Value) {
	if v.CanAddr() {
		switch own := v.Addr().Interface().(type) {
		case Decoder:
			own.DecodeYAML(r, n)
			return
		case encoding.TextUnmarshaler:
			r.unmarshal(n, what, own)
			return
		}
	}

	switch v.Kind() {
	case reflect.Pointer:
		one := reflect.New(v.Type().Elem())
		r.decode(n, what, one.Elem())
		v.Set(one)
	case reflect.Struct:
		r.fields(n, what, v)
	case reflect.Slice:
		items := r.List(n, what)
		list := reflect.MakeSlice(v.Type(), len(items), len(items))
		for i, item := range items {
			r.decode(item, fmt.Sprintf("an entry of %s", what), list.Index(i))
		}
		v.Set(list)
	case reflect.String:
		v.SetString(r.Text(n, what))
	case reflect.Int:
		if r.written(n, what, "a whole number") {
			v.SetInt(int64(r.Int(n, what, -exact, exact)))
		}
	case reflect.Float64:
		if r.written(n, what, "a number") {
			v.SetFloat(r.Number(n, what))
		}
	case reflect.Bool:
		v.SetBool(r.truth(n, what))
	case reflect.Interface:
		v.Set(reflect.ValueOf(r.any(n, what)))
	default:
		panic("strictyaml: a schema of kind " + v.Kind().String())
	}
}

// fields reads a map into a struct.
func (r *Reader) fields(n *Node, what string, v reflect.Value) {
	o := r.Object(n, what)
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if key == "" || key == "-" {
			continue
		}
		if value := o.Get(key); value != nil {
			r.decode(value, key, v.Field(i))
		}
	}

	o.Close()
}

// unmarshal reads what has a written form of its own.
func (r *Reader) unmarshal(n *Node, what string, to encoding.TextUnmarshaler) {
	text := r.Text(n, what)
	if n.Kind != Scalar {
		return
	}
	if err := to.UnmarshalText([]byte(text)); err != nil {
		r.Add(n.Place, ErrValue, "%s: %v", what, err)
	}
}

// written reports whether a scalar may be read as a number, and notes the fault if not: Number, which follows the
// programs that recipes come from, takes text in quotes and truth values too.
func (r *Reader) written(n *Node, what, want string) bool {
	if n.Kind == Scalar && (n.Quoted || n.truthWord()) {
		r.Add(n.Place, ErrType, "%s must be %s, not %s", what, want, n.describe())
		return false
	}
	return true
}

// truthWord reports whether a scalar is a truth value for Bool that is no digit: yes, on, f.
func (n *Node) truthWord() bool {
	_, ok := n.Bool()
	return ok && !strings.ContainsAny(n.Text, "01")
}

// truth reads true or false.
func (r *Reader) truth(n *Node, what string) bool {
	value, ok := n.truth()
	if !ok {
		r.Add(n.Place, ErrType, "%s must be true or false, not %s", what, n.describe())
	}
	return value
}

// truth gives the truth value that stands there without quotes.
func (n *Node) truth() (value, ok bool) {
	if n.Kind != Scalar || n.Quoted {
		return false, false
	}
	return strings.EqualFold(n.Text, "true"), strings.EqualFold(n.Text, "true") || strings.EqualFold(n.Text, "false")
}

// any reads what may be a truth value, a number or text.
func (r *Reader) any(n *Node, what string) any {
	if b, ok := n.truth(); ok {
		return b
	}
	if x, ok := n.Number(); ok && !n.Quoted && !n.truthWord() { // yes is text, not 1
		return x
	}
	return r.Text(n, what)
}
