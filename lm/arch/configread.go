package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// configReader takes typed values out of a configuration. The first fault stays in err; later calls then give zeros.
type configReader struct {
	file   string
	raw    map[string]json.RawMessage
	arch   *Arch
	ignore []string
	used   map[string]bool
	err    error
}

func (r *configReader) fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = &ConfigError{File: r.file, Key: key, Problem: fmt.Sprintf(format, args...)}
	}
}

// get gives the value of a key; null counts as absent.
func (r *configReader) get(key string) (json.RawMessage, bool) {
	r.used[key] = true
	v, ok := r.raw[key]
	return v, ok && string(v) != "null"
}

// has reports whether the architecture's table knows the field.
func (r *configReader) has(field string) bool {
	_, ok := r.arch.Config[field]
	return ok
}

// key is how the configuration spells a field.
func (r *configReader) key(field string) string { return r.arch.Config[field].Key }

// field gives a field's value: from the file, or the default of an absent key. False: the table does not have
// the field.
func (r *configReader) field(field string) (key string, value json.RawMessage, ok bool) {
	k, ok := r.arch.Config[field]
	if !ok || r.err != nil {
		return field, nil, false
	}
	value, ok = r.keyed(k)
	return k.Key, value, ok
}

// keyed gives the value that a table's key stands for.
func (r *configReader) keyed(k Key) (json.RawMessage, bool) {
	spellings := append([]string{k.Key}, k.Also...)
	if k.Key == "" {
		spellings = nil
	}

	var value json.RawMessage
	from := ""
	for _, key := range spellings {
		switch v, ok := r.get(key); {
		case ok && value != nil && string(v) != string(value):
			r.fail(key, "%s, but %s is %s", clip(v), from, clip(value))
		case ok:
			value, from = v, key
		}
	}

	if value != nil {
		return value, true
	}

	for _, key := range spellings {
		if _, null := r.raw[key]; null && k.Null != nil {
			return k.Null, true
		}
	}

	return k.Default, k.Default != nil
}

// fallback is the default of a text field.
func (r *configReader) fallback(field string) string {
	var s string
	if json.Unmarshal(r.arch.Config[field].Default, &s) != nil {
		return ""
	}
	return s
}

// integer reads a field that is a whole number in [lo, hi]. A missing required key is a fault.
func (r *configReader) integer(field string, lo, hi int) (int, bool) {
	key, v, ok := r.field(field)
	if !ok {
		if r.has(field) && r.err == nil && len(r.arch.Config[field].Default) == 0 {
			r.fail(key, "is missing")
		}
		return 0, false
	}

	n, err := strconv.ParseInt(string(v), 10, 64)
	switch {
	case err == nil && n >= int64(lo) && n <= int64(hi):
		return int(n), true
	case err == nil:
		r.fail(key, "%d is not in %d..%d", n, lo, hi)
	case string(v) == string(r.arch.Config[field].Default) || string(v) == string(r.arch.Config[field].Null):
		return r.computed(key, v, lo, hi)
	default:
		r.fail(key, "%s is not a whole number", clip(v))
	}

	return 0, false
}

// computed evaluates a default that names other fields: "heads", "hidden/heads", "4*hidden".
func (r *configReader) computed(key string, v json.RawMessage, lo, hi int) (int, bool) {
	var expr string
	if err := json.Unmarshal(v, &expr); err != nil {
		r.fail(key, "default %s is neither a number nor an expression", clip(v))
		return 0, false
	}

	if a, b, ok := strings.Cut(expr, "/"); ok {
		n := r.quotient(a, b)
		return n, r.err == nil
	}

	factor := 1
	if a, b, ok := strings.Cut(expr, "*"); ok {
		factor, _ = strconv.Atoi(a)
		expr = b
	}

	n, ok := r.integer(expr, lo, hi)
	return n * factor, ok
}

// quotient divides one field by another.
func (r *configReader) quotient(a, b string) int {
	x, _ := r.integer(a, 1, maxDim)
	y, _ := r.integer(b, 1, maxDim)
	if r.err == nil && x%y != 0 {
		r.fail(r.key(a), "%d is not a multiple of %s %d", x, r.key(b), y)
	}
	if r.err != nil {
		return 0
	}
	return x / y
}

// integerOr is integer with a value for fields that the architecture does not have.
func (r *configReader) integerOr(field string, lo, hi, absent int) int {
	if !r.has(field) {
		return absent
	}
	n, _ := r.integer(field, lo, hi)
	return n
}

// float reads a field that is a finite number.
func (r *configReader) float(field string) (float64, bool) {
	key, v, ok := r.field(field)
	if !ok {
		return 0, false
	}
	return r.number(key, v)
}

func (r *configReader) number(key string, v json.RawMessage) (float64, bool) {
	var x float64
	if err := json.Unmarshal(v, &x); err != nil || math.IsInf(x, 0) {
		r.fail(key, "%s is not a number", clip(v))
		return 0, false
	}
	return x, true
}

// cap reads a limit: 0 is off, negative numbers are faults.
func (r *configReader) cap(field string) float32 {
	x, _ := r.float(field)
	if x < 0 || x > math.MaxFloat32 {
		r.fail(r.key(field), "%g is not a limit", x)
	}
	return float32(x)
}

// flag reads a field that is true or false; false where the architecture has none.
func (r *configReader) flag(field string) bool {
	key, v, ok := r.field(field)
	if !ok {
		return false
	}
	return r.boolean(key, v)
}

func (r *configReader) boolean(key string, v json.RawMessage) bool {
	var b bool
	if err := json.Unmarshal(v, &b); err != nil {
		r.fail(key, "%s is neither true nor false", clip(v))
	}
	return b
}

// text reads a key that is a string.
func (r *configReader) text(key, absent string) string {
	v, ok := r.get(key)
	if !ok {
		return absent
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		r.fail(key, "%s is not a string", clip(v))
	}
	return s
}

// strings reads a key that is a list of strings; nil if absent.
func (r *configReader) strings(key string) []string {
	v, ok := r.get(key)
	if !ok {
		return nil
	}
	var s []string
	if err := json.Unmarshal(v, &s); err != nil {
		r.fail(key, "%s is not a list of strings", clip(v))
	}
	return s
}

// list reads a field that is a list of whole numbers; nil where there is none.
func (r *configReader) list(field string) []int {
	k, known := r.arch.Config[field]
	if !known {
		return nil
	}

	v, ok := r.get(k.Key)
	if !ok {
		return nil
	}

	var list []int
	if err := json.Unmarshal(v, &list); err != nil {
		r.fail(k.Key, "%s is not a list of whole numbers", clip(v))
	}

	return list
}

// integers reads a field that is a list of block numbers below n.
func (r *configReader) integers(field string, n int) []int {
	list := r.list(field)
	for _, i := range list {
		if i < 0 || i >= n {
			r.fail(r.key(field), "%d is not one of %d blocks", i, n)
		}
	}
	return list
}

// ids reads a key that is a token id, a list of them, or null.
func (r *configReader) ids(key string) []int32 {
	v, _ := r.get(key)
	ids, err := tokenIDs(v)
	if err != nil {
		r.fail(key, "%s", err)
	}
	return ids
}

// tokenIDs reads a JSON value that is a token id, a list of them, null or absent.
func tokenIDs(v json.RawMessage) ([]int32, error) {
	var one *int32
	var list []int32
	switch {
	case len(v) == 0:
		return nil, nil
	case json.Unmarshal(v, &one) == nil && one != nil:
		return []int32{*one}, nil
	case json.Unmarshal(v, &list) == nil:
		return list, nil
	}

	return nil, fmt.Errorf("%s is neither a token id nor a list of them", clip(v))
}

// clip shortens a value for a message, which is one line.
func clip(v json.RawMessage) string {
	s := strings.Join(strings.Fields(string(v[:min(len(v), 200)])), " ")
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

// Stops reads the tokens that end generation from the text of a generation_config.json; none where it does not
// say. Every error is a [ConfigError].
func Stops(file string, text []byte) ([]int32, error) {
	var g struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err := json.Unmarshal(text, &g); err != nil {
		return nil, &ConfigError{File: file, Problem: err.Error(), Err: err}
	}

	ids, err := tokenIDs(g.EOS)
	if err != nil {
		return nil, &ConfigError{File: file, Key: "eos_token_id", Problem: err.Error()}
	}

	return ids, nil
}
