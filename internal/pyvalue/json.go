package pyvalue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// ParseJSON reads one JSON value; keys keep their order, of equal keys the last counts. Numbers without a point
// are ints, or floats where they are too large.
func ParseJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := readJSON(d, 0)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("unclosed object, list or text: %w", io.ErrUnexpectedEOF)
	}

	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows the JSON value at byte %d", d.InputOffset())
	}

	return v, nil
}

// ReadJSON reads the next value of a stream.
func ReadJSON(d *json.Decoder) (any, error) { return readJSON(d, 0) }

func readJSON(d *json.Decoder, depth int) (any, error) {
	t, err := d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		}
		return nil, err
	}

	switch t := t.(type) {
	case json.Delim:
		if depth >= MaxDepth {
			return nil, ErrDepth
		}
		if t == '[' {
			return readList(d, depth)
		}

		return readDict(d, depth)
	case json.Number:
		if n, err := strconv.ParseInt(t.String(), 10, 64); err == nil {
			return n, nil
		}
		return t.Float64()
	}

	return t, nil
}

func readList(d *json.Decoder, depth int) (any, error) {
	list := []any{}
	for d.More() {
		v, err := readJSON(d, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}

	_, err := d.Token()
	return list, err
}

func readDict(d *json.Decoder, depth int) (any, error) {
	dict := NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}

		v, err := readJSON(d, depth+1)
		if err != nil {
			return nil, err
		}

		dict.Set(key.(string), v)
	}

	_, err := d.Token()
	return dict, err
}

// AppendJSON writes a value as JSON; numbers that are not finite become null.
func AppendJSON(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case Tuple:
		return AppendJSON(b, []any(v))
	case []any:
		return appendItems(b, '[', ']', len(v), func(b []byte, i int) ([]byte, error) { return AppendJSON(b, v[i]) })
	case *Dict:
		return appendItems(b, '{', '}', len(v.keys), func(b []byte, i int) ([]byte, error) {
			b, err := appendText(b, v.keyText(v.keys[i]))
			if err != nil {
				return b, err
			}
			return AppendJSON(append(b, ": "...), v.items[v.keys[i]])
		})
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return append(b, "null"...), nil
		}
		return append(b, reprFloat(v)...), nil
	}

	return appendText(b, v)
}

// keyText is a key as JSON writes it, which has texts only.
func (d *Dict) keyText(key string) string {
	k, odd := d.odd[key]
	if !odd {
		return key
	}

	switch k := k.(type) {
	case string:
		return k
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(k)
	case float64:
		return jsonFloat(k)
	}

	return Str(k)
}

func appendItems(b []byte, open, end byte, n int, each func(b []byte, i int) ([]byte, error)) ([]byte, error) {
	b = append(b, open)
	for i := range n {
		if i > 0 {
			b = append(b, ", "...)
		}

		var err error
		if b, err = each(b, i); err != nil {
			return b, err
		}
	}

	return append(b, end), nil
}

// appendText writes what needs no order, without the escapes that HTML wants.
func appendText(b []byte, v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return b, err
	}
	return append(b, bytes.TrimRight(buf.Bytes(), "\n")...), nil
}
