package ggufmodel

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/gguf"
)

// metadata is the pairs of a file, with the name of the architecture in front of the keys where that is needed.
type metadata struct {
	file   string
	prefix string // "llama."
	values map[string]gguf.Value
	used   map[string]bool
}

func newMetadata(file string, pairs gguf.Metadata) *metadata {
	m := &metadata{file: file, values: make(map[string]gguf.Value, len(pairs)), used: map[string]bool{}}
	for _, e := range pairs {
		m.values[e.Key] = e.Value
	}
	return m
}

// fault is an error about a key, which stands without the architecture's name if it is one of its own.
func (m *metadata) fault(err error, key, format string, args ...any) error {
	return &Error{File: m.file, Key: key, Err: err, Detail: fmt.Sprintf(format, args...)}
}

// own looks up a key of the architecture.
func (m *metadata) own(key string) (gguf.Value, bool) {
	m.used[key] = true
	v, ok := m.values[m.prefix+key]
	return v, ok
}

// text gives a key that is a string; "" if it is absent.
func (m *metadata) text(key string) (string, error) {
	v, ok := m.values[key]
	if !ok {
		return "", nil
	}
	s, ok := v.Text()
	if !ok {
		return "", m.fault(ErrMetadata, key, "%v is not a string", v)
	}
	return s, nil
}

// number gives a key of the architecture that is a number; absent if it is not there.
func (m *metadata) number(key string, absent float64) (float64, error) {
	v, ok := m.own(key)
	if !ok {
		return absent, nil
	}

	text, err := m.json(key, v)
	if err != nil {
		return 0, err
	}
	x, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, m.fault(ErrMetadata, m.prefix+key, "%v is not a number", v)
	}

	return x, nil
}

// json writes a value of the metadata as JSON. An array is the value of all blocks, which must be one.
func (m *metadata) json(key string, v gguf.Value) (json.RawMessage, error) {
	switch v.Kind() {
	case gguf.Bool:
		b, _ := v.Bool()
		return json.RawMessage(strconv.FormatBool(b)), nil
	case gguf.String:
		s, _ := v.Text()
		return json.Marshal(strings.ToValidUTF8(s, "\uFFFD"))
	case gguf.Float32, gguf.Float64:
		x, _ := v.Float()
		if x-x != 0 {
			return nil, m.fault(ErrMetadata, m.prefix+key, "%v is not a number", v)
		}
		return json.RawMessage(decimal(x, v.Kind() == gguf.Float32)), nil
	case gguf.Array:
		return m.uniform(key, v)
	}

	return json.RawMessage(v.String()), nil
}

// uniform gives the value of an array whose items are equal, as they are where blocks could differ and don't.
func (m *metadata) uniform(key string, v gguf.Value) (json.RawMessage, error) {
	var items []string
	if ints, ok := v.Ints(); ok {
		for _, n := range ints {
			items = append(items, strconv.FormatInt(n, 10))
		}
	} else if floats, ok := v.Floats(); ok {
		for _, x := range floats {
			items = append(items, decimal(x, true))
		}
	} else if bools, ok := v.Bools(); ok {
		for _, b := range bools {
			items = append(items, strconv.FormatBool(b))
		}
	}

	if len(items) == 0 {
		return nil, m.fault(ErrMetadata, m.prefix+key, "%v is not a number", v)
	}
	if i := slices.IndexFunc(items, func(s string) bool { return s != items[0] }); i >= 0 {
		return nil, m.fault(ErrMetadata, m.prefix+key, "it differs between blocks (%s in block 0, %s in block %d), "+
			"which is not supported", items[0], items[i], i)
	}
	if !json.Valid([]byte(items[0])) {
		return nil, m.fault(ErrMetadata, m.prefix+key, "%s is not a number", items[0])
	}

	return json.RawMessage(items[0]), nil
}

// decimal is the shortest text of a number: of a float32 the shortest that becomes it again, which is what was
// written into a configuration before it was rounded.
func decimal(x float64, single bool) string {
	bits := 64
	if single {
		bits = 32
	}

	format := byte('f')
	if size := math.Abs(x); size != 0 && (size < 1e-4 || size >= 1e16) {
		format = 'e'
	}

	s := strconv.FormatFloat(x, format, -1, bits)
	if !strings.ContainsAny(s, ".eEnI") {
		s += ".0"
	}

	return s
}

// truth reports whether a value is there in the sense of a condition: neither 0 nor false.
func truth(v gguf.Value) bool {
	switch v.Kind() {
	case gguf.Array:
		return v.Len() > 0
	case gguf.String:
		s, _ := v.Text()
		return s != ""
	case gguf.Bool:
		b, _ := v.Bool()
		return b
	case gguf.Float32, gguf.Float64:
		x, _ := v.Float()
		return x != 0
	}

	n, ok := v.Uint()
	return !ok || n != 0
}

// unknown lists the architecture's keys that nobody asked for, sorted.
func (m *metadata) unknown() []string {
	var list []string
	for key := range m.values {
		if own, ok := strings.CutPrefix(key, m.prefix); ok && !m.used[own] {
			list = append(list, key)
		}
	}
	slices.Sort(list)
	return list
}
