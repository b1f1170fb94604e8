// Package orderedjson reads and edits JSON objects whose keys have an order that should stay, such as
// config.json and tokenizer.json: values are kept as they were written, and only those that are set change. A
// key that is given twice is an error: other readers would take the first, or the last.
package orderedjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
)

// ErrObject: the text is not one JSON object with distinct keys.
var ErrObject = errors.New("not a JSON object")

// Object is a JSON object: keys in order and their values as JSON text. The zero value is empty, and so is nil for
// what only reads.
type Object struct {
	keys   []string
	values map[string]json.RawMessage
}

// Parse reads an object. The error wraps [ErrObject].
func Parse(text []byte) (*Object, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	switch t, err := d.Token(); {
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("%w: the text is empty", ErrObject)
	case bytes.HasPrefix(text, []byte("\xef\xbb\xbf")):
		return nil, fmt.Errorf("%w: it begins with a byte order mark (HINT: save it as UTF-8 without one)", ErrObject)
	case err != nil:
		return nil, broken("", err)
	case t != json.Delim('{'):
		return nil, fmt.Errorf("%w: it begins with %.40v", ErrObject, t)
	}

	o := &Object{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, broken("", err)
		}

		key, _ := t.(string)
		if o.Has(key) {
			return nil, fmt.Errorf("%w: key %.100q is given twice", ErrObject, key)
		}

		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, broken(key, err)
		}

		o.Set(key, value)
	}

	if _, err := d.Token(); err != nil {
		return nil, broken("", err)
	}
	if rest := bytes.TrimSpace(text[d.InputOffset():]); len(rest) > 0 {
		return nil, fmt.Errorf("%w: something follows it", ErrObject)
	}

	return o, nil
}

// Twice gives the first key that an object of a valid JSON text has twice, at whatever level, as the path to it; ""
// where there is none. Readers that fill a map take the last of two and say nothing.
func Twice(text []byte) (path string) {
	d := json.NewDecoder(bytes.NewReader(text))
	var open []level
	for {
		t, err := d.Token()
		if err != nil {
			return "" // the end
		}

		top := len(open) - 1
		switch t {
		case json.Delim('{'):
			open = append(open, level{keys: map[string]bool{}, wantsKey: true})
			continue
		case json.Delim('['):
			open = append(open, level{})
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:top]
			top--
		default:
			if top >= 0 && open[top].wantsKey {
				key, _ := t.(string)
				open[top].at = key
				open[top].wantsKey = false
				if open[top].keys[key] {
					return trail(open)
				}
				open[top].keys[key] = true
				continue
			}
		}

		if top >= 0 && open[top].keys != nil { // a value is complete
			open[top].wantsKey = true
		}
	}
}

// level is an object or a list that is open while a text is read.
type level struct {
	keys     map[string]bool // nil for a list
	at       string          // the last key
	wantsKey bool            // what comes next is a key, or the end
}

// trail names the keys on the way to where the reading is.
func trail(open []level) string {
	var keys []string
	for _, l := range open {
		if l.keys != nil {
			keys = append(keys, l.at)
		}
	}
	return strings.Join(keys, ".")
}

// broken words an error inside an object, at the value of a key if there is one.
func broken(key string, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if key == "" {
		return fmt.Errorf("%w: %w", ErrObject, err)
	}
	return fmt.Errorf("%w: key %.100q: %w", ErrObject, key, err)
}

// Is reports whether a valid JSON text is an object, rather than a value of another kind.
func Is(text json.RawMessage) bool { return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) }

// All goes through the keys in order, with their values as JSON text.
func (o *Object) All() iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		if o == nil {
			return
		}
		for _, key := range o.keys {
			if !yield(key, o.values[key]) {
				return
			}
		}
	}
}

// Clone returns a copy that changes on its own.
func (o *Object) Clone() *Object {
	if o == nil {
		return &Object{}
	}
	return &Object{slices.Clone(o.keys), maps.Clone(o.values)}
}

// Keys returns the keys in order.
func (o *Object) Keys() []string {
	if o == nil {
		return nil
	}
	return slices.Clone(o.keys)
}

// Has reports whether a key is there.
func (o *Object) Has(key string) bool {
	if o == nil {
		return false
	}
	_, ok := o.values[key]
	return ok
}

// Get returns the JSON text of a key's value, nil if it is absent.
func (o *Object) Get(key string) json.RawMessage {
	if o == nil {
		return nil
	}
	return o.values[key]
}

// Decode reads the value of a key into v and reports whether it was there and had the type of v; null counts as absent.
func (o *Object) Decode(key string, v any) bool {
	text := o.Get(key)
	return text != nil && string(text) != "null" && json.Unmarshal(text, v) == nil
}

// Set gives a key a value as JSON text, at its place or at the end.
func (o *Object) Set(key string, value json.RawMessage) {
	if o.values == nil {
		o.values = map[string]json.RawMessage{}
	}
	if !o.Has(key) {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

// Put is Set for a Go value that JSON can express; text is written without escapes for HTML.
func (o *Object) Put(key string, value any) error {
	text, err := Text(value)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	o.Set(key, text)
	return nil
}

// Delete removes a key.
func (o *Object) Delete(key string) {
	delete(o.values, key)
	o.keys = slices.DeleteFunc(o.keys, func(k string) bool { return k == key })
}

// Text writes a Go value as JSON without escapes for HTML.
func Text(value any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Compact writes the object on one line.
func (o *Object) Compact() (json.RawMessage, error) {
	var b bytes.Buffer
	b.WriteByte('{')

	for i, key := range o.keys {
		if i > 0 {
			b.WriteByte(',')
		}

		text, err := Text(key)
		if err != nil {
			return nil, err
		}

		b.Write(text)
		b.WriteByte(':')
		b.Write(o.values[key])
	}

	b.WriteByte('}')
	return b.Bytes(), nil
}

// Indent writes the object over several lines, two spaces to a level, with a line end at its end.
func (o *Object) Indent() ([]byte, error) {
	text, err := o.Compact()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, err
	}
	return append(bytes.TrimRight(b.Bytes(), "\n"), '\n'), nil
}

// Find returns the object at a dotted path of keys, and o itself for "".
func (o *Object) Find(path string) (*Object, bool) {
	at := o
	if path == "" {
		return at, true
	}

	for part := range strings.SplitSeq(path, ".") {
		if !at.Has(part) {
			return nil, false
		}

		next, err := Parse(at.Get(part))
		if err != nil {
			return nil, false
		}
		at = next
	}

	return at, true
}
