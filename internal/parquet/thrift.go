package parquet

import (
	"encoding/binary"
	"fmt"
	"math"
)

// fields is a structure of Thrift's compact protocol: values by field number. Integers are int64, strings
// []byte, lists []any.
type fields map[int]any

func (f fields) int(id int) int64 {
	n, _ := f[id].(int64)
	return n
}

func (f fields) list(id int) []any {
	l, _ := f[id].([]any)
	return l
}

func (f fields) sub(id int) fields {
	s, _ := f[id].(fields)
	return s
}

func (f fields) text(id int) string {
	b, _ := f[id].([]byte)
	return string(b)
}

const maxThriftDepth = 16

// thrift reads a structure.
type thrift struct {
	b  []byte
	at int
}

// parseThrift reads the structure that a text begins with, and says how long it is.
func parseThrift(b []byte) (f fields, n int, err error) {
	t := &thrift{b: b}
	f, err = t.structure(0)
	return f, t.at, err
}

var errShort = fmt.Errorf("%w: description cut short", ErrFormat)

func (t *thrift) byte() (byte, error) {
	if t.at >= len(t.b) {
		return 0, errShort
	}
	t.at++
	return t.b[t.at-1], nil
}

func (t *thrift) varint() (uint64, error) {
	v, n := binary.Uvarint(t.b[t.at:])
	if n <= 0 {
		return 0, errShort
	}
	t.at += n
	return v, nil
}

func (t *thrift) zigzag() (int64, error) {
	v, err := t.varint()
	return int64(v>>1) ^ -int64(v&1), err
}

func (t *thrift) structure(depth int) (fields, error) {
	if depth > maxThriftDepth {
		return nil, fmt.Errorf("%w: nested too deeply", ErrFormat)
	}

	f, id := fields{}, int64(0)
	for {
		head, err := t.byte()
		if err != nil || head == 0 {
			return f, err
		}

		if d := int64(head >> 4); d > 0 {
			id += d
		} else if id, err = t.zigzag(); err != nil {
			return nil, err
		}

		v, err := t.value(head&15, depth)
		if err != nil {
			return nil, err
		}

		f[int(id)] = v
	}
}

// value reads a value of one of the protocol's types.
func (t *thrift) value(kind byte, depth int) (any, error) {
	switch kind {
	case 1, 2:
		return kind == 1, nil
	case 3:
		b, err := t.byte()
		return int64(int8(b)), err
	case 4, 5, 6:
		return t.zigzag()
	case 7:
		b, err := t.bytes(8)
		if err != nil {
			return nil, err
		}
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), nil
	case 8:
		n, err := t.varint()
		if err != nil {
			return nil, err
		}
		return t.bytes(n)
	case 9, 10:
		return t.list(depth)
	case 11:
		return t.mapping(depth)
	case 12:
		return t.structure(depth + 1)
	}

	return nil, fmt.Errorf("%w: type %d in the description", ErrFormat, kind)
}

func (t *thrift) bytes(n uint64) ([]byte, error) {
	if n > uint64(len(t.b)-t.at) {
		return nil, errShort
	}
	t.at += int(n)
	return t.b[t.at-int(n) : t.at], nil
}

func (t *thrift) list(depth int) (any, error) {
	head, err := t.byte()
	if err != nil {
		return nil, err
	}

	n := uint64(head >> 4)
	if n == 15 {
		if n, err = t.varint(); err != nil {
			return nil, err
		}
	}

	if n > uint64(len(t.b)-t.at) || depth > maxThriftDepth {
		return nil, errShort
	}

	list := make([]any, 0, n)
	for range n {
		v, err := t.item(head&15, depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}

	return list, nil
}

// item is value inside of a list or map, where booleans are bytes.
func (t *thrift) item(kind byte, depth int) (any, error) {
	if kind == 1 || kind == 2 {
		b, err := t.byte()
		return b == 1, err
	}
	return t.value(kind, depth+1)
}

// mapping skips a map: no map that is needed stands in a description.
func (t *thrift) mapping(depth int) (any, error) {
	n, err := t.varint()
	if err != nil || n == 0 {
		return nil, err
	}

	kinds, err := t.byte()
	if err != nil {
		return nil, err
	}

	if n > uint64(len(t.b)) || depth > maxThriftDepth {
		return nil, errShort
	}

	for range n {
		if _, err := t.item(kinds>>4, depth); err != nil {
			return nil, err
		}
		if _, err := t.item(kinds&15, depth); err != nil {
			return nil, err
		}
	}

	return nil, nil
}
