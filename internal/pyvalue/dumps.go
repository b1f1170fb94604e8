package pyvalue

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf16"
)

// ErrLong: a text would be longer than is allowed.
var ErrLong = errors.New("text is too long")

// JSON says how json.dumps writes a value.
type JSON struct {
	Indent   string // of a level; where Lines is set
	Lines    bool   // each item on a line of its own
	Sort     bool   // keys in order
	ASCII    bool   // characters outside of ASCII as escapes
	HTML     bool   // characters that mean something in HTML as escapes too
	Item     string // between items; "": a comma, and a blank unless Lines is set
	Key      string // behind keys; "": a colon and a blank
	MaxBytes int    // of the text
}

// Dumps is json.dumps(v).
func (j JSON) Dumps(v any) (string, error) {
	if j.Item == "" {
		if j.Item = ", "; j.Lines {
			j.Item = ","
		}
	}

	if j.Key == "" {
		j.Key = ": "
	}

	b, err := j.append(nil, v, 0)
	return string(b), err
}

func (j JSON) append(b []byte, v any, depth int) ([]byte, error) {
	if len(b) > j.MaxBytes {
		return nil, fmt.Errorf("%w: more than %d bytes of JSON", ErrLong, j.MaxBytes)
	}
	if depth > 4*MaxDepth {
		return nil, ErrDepth
	}

	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return fmt.Append(b, v), nil
	case int64:
		return fmt.Append(b, v), nil
	case string:
		return j.text(b, v), nil
	case float64:
		return append(b, jsonFloat(v)...), nil
	case Tuple:
		return j.append(b, []any(v), depth)
	case []any:
		return j.items(b, "[]", len(v), depth, func(b []byte, i int) ([]byte, error) {
			return j.append(b, v[i],
				depth+1)
		})
	case *Dict:
		keys, err := j.keys(v)
		if err != nil {
			return nil, err
		}

		return j.items(b, "{}", len(keys), depth, func(b []byte, i int) ([]byte, error) {
			return j.append(append(j.text(b, v.keyText(keys[i])), j.Key...), v.items[keys[i]], depth+1)
		})
	}

	return nil, fmt.Errorf("%s has no JSON", Kind(v))
}

// keys are those of a dictionary as it keeps them, in the order in which they are written: that of the keys themselves,
// not of their texts, among which 10 comes before 9.
func (j JSON) keys(d *Dict) ([]string, error) {
	for _, k := range d.odd {
		if _, ok := k.(Tuple); ok {
			return nil, fmt.Errorf("a tuple as a key has no JSON")
		}
	}

	if !j.Sort {
		return d.keys, nil
	}

	order := make([]int, len(d.keys))
	for i := range order {
		order[i] = i
	}

	var fault error
	all := d.AllKeys()
	slices.SortStableFunc(order, func(a, b int) int {
		c, err := Compare(all[a], all[b])
		fault = cmp.Or(fault, err)
		return c
	})

	keys := make([]string, len(order))
	for i, at := range order {
		keys[i] = d.keys[at]
	}

	return keys, fault
}

// items writes what stands in brackets.
func (j JSON) items(b []byte, brackets string, n, depth int,
	each func(b []byte, i int) ([]byte, error),
) ([]byte, error) {
	b = append(b, brackets[0])
	for i := range n {
		if i > 0 {
			b = append(b, j.Item...)
		}

		b = j.line(b, depth+1)
		var err error
		if b, err = each(b, i); err != nil {
			return nil, err
		}
	}

	if n > 0 {
		b = j.line(b, depth)
	}

	return append(b, brackets[1]), nil
}

func (j JSON) line(b []byte, depth int) []byte {
	if !j.Lines {
		return b
	}
	return append(append(b, '\n'), strings.Repeat(j.Indent, depth)...)
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return reprFloat(f)
}

// jsonEscapes are those of one letter.
var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}

func (j JSON) text(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch short, ok := jsonEscapes[r]; {
		case ok:
			b = append(b, short...)
		case r < ' ', j.HTML && strings.ContainsRune("<>&'", r), j.ASCII && r > 0x7e && r < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, r)
		case j.ASCII && r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, hi, lo)
		default:
			b = append(b, string(r)...)
		}
	}

	return append(b, '"')
}
