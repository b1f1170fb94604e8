package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// Kind is the type of a value of the metadata.
type Kind uint32

// The kinds, by their numbers in files.
const (
	Uint8 Kind = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
	numKinds
)

// kinds has the bytes of a value; those of strings and arrays depend on the value.
var kinds = [numKinds]struct {
	name string
	size int64
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Uint16: {"uint16", 2}, Int16: {"int16", 2}, Uint32: {"uint32", 4},
	Int32: {"int32", 4}, Float32: {"float32", 4}, Bool: {"bool", 1}, String: {"string", 0}, Array: {"array", 0},
	Uint64: {"uint64", 8}, Int64: {"int64", 8}, Float64: {"float64", 8},
}

// String names a kind.
func (k Kind) String() string {
	if k >= numKinds {
		return fmt.Sprintf("Kind(%d)", uint32(k))
	}
	return kinds[k].name
}

// Value is a value of the metadata. It cannot be changed; the zero value is the uint8 0. [Of] and [List] make others.
type Value struct {
	kind Kind
	elem Kind   // of an array
	n    int    // items of an array
	word uint64 // a number as in the file, zero-extended
	text string // a string, or the items of an array as in the file
}

// Scalar lists the types of Go that values are made of.
type Scalar interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | float32 | bool | string | uint64 | int64 | float64
}

// Of makes a value of the kind that belongs to T.
func Of[T Scalar](v T) Value {
	switch v := any(v).(type) {
	case uint8:
		return Value{kind: Uint8, word: uint64(v)}
	case int8:
		return Value{kind: Int8, word: uint64(uint8(v))}
	case uint16:
		return Value{kind: Uint16, word: uint64(v)}
	case int16:
		return Value{kind: Int16, word: uint64(uint16(v))}
	case uint32:
		return Value{kind: Uint32, word: uint64(v)}
	case int32:
		return Value{kind: Int32, word: uint64(uint32(v))}
	case float32:
		return Value{kind: Float32, word: uint64(math.Float32bits(v))}
	case bool:
		if v {
			return Value{kind: Bool, word: 1}
		}
		return Value{kind: Bool}
	case string:
		return Value{kind: String, text: v}
	case uint64:
		return Value{kind: Uint64, word: v}
	case int64:
		return Value{kind: Int64, word: uint64(v)}
	case float64:
		return Value{kind: Float64, word: math.Float64bits(v)}
	}

	panic("gguf: unreachable")
}

// List makes an array.
func List[T Scalar](items []T) Value {
	var zero T
	elem := Of(zero).kind

	raw := make([]byte, 0, len(items)*int(max(kinds[elem].size, 8)))
	for _, item := range items {
		raw = Of(item).append(raw)
	}

	return Value{kind: Array, elem: elem, n: len(items), text: string(raw)}
}

// append writes a value as in files, without its kind.
func (v Value) append(b []byte) []byte {
	switch v.kind {
	case String:
		b = binary.LittleEndian.AppendUint64(b, uint64(len(v.text)))
		return append(b, v.text...)
	case Array:
		b = binary.LittleEndian.AppendUint32(b, uint32(v.elem))
		b = binary.LittleEndian.AppendUint64(b, uint64(v.n))
		return append(b, v.text...)
	}

	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], v.word)
	return append(b, word[:kinds[v.kind].size]...)
}

// Kind is the type of the value.
func (v Value) Kind() Kind { return v.kind }

// Elem is the type of an array's items; false for other values.
func (v Value) Elem() (Kind, bool) { return v.elem, v.kind == Array }

// Len is the number of an array's items, 0 for other values.
func (v Value) Len() int { return v.n }

// Uint returns an integer of any kind that is not negative; false for other values.
func (v Value) Uint() (uint64, bool) {
	if v.kind == Uint64 {
		return v.word, true
	}
	n, ok := v.Int()
	return uint64(n), ok && n >= 0
}

// Int returns an integer of any kind that is less than 2^63; false for other values.
func (v Value) Int() (int64, bool) {
	switch v.kind {
	case Uint8, Uint16, Uint32:
		return int64(v.word), true
	case Uint64:
		return int64(v.word), v.word <= math.MaxInt64
	case Int8:
		return int64(int8(v.word)), true
	case Int16:
		return int64(int16(v.word)), true
	case Int32:
		return int64(int32(v.word)), true
	case Int64:
		return int64(v.word), true
	}
	return 0, false
}

// Float returns a floating-point number of either kind; false for other values.
func (v Value) Float() (float64, bool) {
	switch v.kind {
	case Float32:
		return float64(math.Float32frombits(uint32(v.word))), true
	case Float64:
		return math.Float64frombits(v.word), true
	}
	return 0, false
}

// Bool returns a boolean; ok is false for other values.
func (v Value) Bool() (b, ok bool) { return v.word != 0, v.kind == Bool }

// Text returns a string, which need not be UTF-8; false for other values.
func (v Value) Text() (string, bool) {
	if v.kind != String {
		return "", false
	}
	return v.text, true
}

// items returns the items of an array, each by get; false if one is not of get's kinds.
func items[T any](v Value, get func(Value) (T, bool)) ([]T, bool) {
	if v.kind != Array {
		return nil, false
	}

	list := make([]T, 0, v.n)
	for item := range v.all {
		x, ok := get(item)
		if !ok {
			return nil, false
		}
		list = append(list, x)
	}

	return list, true
}

// all ranges over the items of an array, whose text was checked when the value was made.
func (v Value) all(yield func(Value) bool) {
	rest := v.text
	for range v.n {
		item := Value{kind: v.elem}
		if v.elem == String {
			n := word(rest[:8])
			item.text = rest[8 : 8+n]
			rest = rest[8+n:]
		} else {
			size := kinds[v.elem].size
			item.word = word(rest[:size])
			rest = rest[size:]
		}

		if !yield(item) {
			return
		}
	}
}

// word reads up to 8 bytes as a little-endian number.
func word(s string) (n uint64) {
	for i := range len(s) {
		n |= uint64(s[i]) << (8 * i)
	}
	return n
}

// Uints returns an array of integers that are not negative; false for other values.
func (v Value) Uints() ([]uint64, bool) { return items(v, Value.Uint) }

// Ints returns an array of integers less than 2^63; false for other values.
func (v Value) Ints() ([]int64, bool) { return items(v, Value.Int) }

// Floats returns an array of floating-point numbers; false for other values.
func (v Value) Floats() ([]float64, bool) { return items(v, Value.Float) }

// Bools returns an array of booleans; ok is false for other values.
func (v Value) Bools() (list []bool, ok bool) { return items(v, Value.Bool) }

// Strings returns an array of strings, which share the memory of the value; false for other values.
func (v Value) Strings() ([]string, bool) { return items(v, Value.Text) }

// String is the value for people, in one line: of an array the first items and how many there are.
func (v Value) String() string {
	const shown = 3
	switch v.kind {
	case String:
		return strconv.Quote(clip(v.text))
	case Bool:
		return strconv.FormatBool(v.word != 0)
	case Array:
		list := ""
		count := 0
		for item := range v.all {
			if count == shown {
				break
			}
			if count > 0 {
				list += " "
			}
			list += item.String()
			count++
		}
		if v.n > shown {
			list += fmt.Sprintf(" … %d in all", v.n)
		}
		return "[" + list + "]"
	}

	if f, ok := v.Float(); ok {
		return strconv.FormatFloat(f, 'g', -1, int(kinds[v.kind].size)*8)
	}
	if v.kind == Uint64 {
		return strconv.FormatUint(v.word, 10)
	}
	n, _ := v.Int()
	return strconv.FormatInt(n, 10)
}

// Entry is one pair of the metadata.
type Entry struct {
	Key   string
	Value Value
}

// Metadata is the key-value pairs of a file, in their order. Keys are unique in what was read from a file.
type Metadata []Entry

// Get finds the value of a key; false if there is none.
func (m Metadata) Get(key string) (Value, bool) {
	for i := range m {
		if m[i].Key == key {
			return m[i].Value, true
		}
	}
	return Value{}, false
}
