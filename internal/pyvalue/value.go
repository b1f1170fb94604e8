// Package pyvalue has the values that documents and templates are made of, with the meaning that Python gives
// them: what they print as, how they compare, what counts as true.
//
// A value is nil, a bool, an int64, a float64, a string, a list ([]any), a [Tuple] or a *[Dict].
package pyvalue

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// MaxDepth is how deep lists and dictionaries may be nested.
const MaxDepth = 64

// The ways in which values can be refused.
var (
	ErrDepth = errors.New("nested too deeply")
	ErrKey   = errors.New("cannot be a key of a dictionary")
	ErrInt   = errors.New("an integer of more than 64 bits")
)

// Tuple is a list that prints in parentheses and equals tuples alone.
type Tuple []any

// Dict is a dictionary that keeps the order of its keys. Most have keys that are texts; keys of other types are
// kept under a text of their own, which no text is equal to.
type Dict struct {
	keys  []string
	items map[string]any
	odd   map[string]any // keys that are no texts, by the text that they are kept under
}

// NewDict makes an empty dictionary.
func NewDict() *Dict { return &Dict{items: map[string]any{}} }

// Set gives a key a value; a key that is there keeps its place.
func (d *Dict) Set(key string, v any) {
	if plain(key) == key {
		d.set(key, v)
		return
	}
	if err := d.SetKey(key, v); err != nil {
		panic("value: a text is refused as a key")
	}
}

func (d *Dict) set(key string, v any) {
	if _, ok := d.items[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.items[key] = v
}

// Get gives the value of a key.
func (d *Dict) Get(key string) (v any, ok bool) {
	v, ok = d.items[plain(key)]
	return v, ok
}

// oddMark begins the texts that keys of other types are kept under. No text of valid UTF-8 begins so.
const oddMark = "\xff"

// plain is the text that a key is kept under.
func plain(key string) string {
	if strings.HasPrefix(key, oddMark) {
		return oddMark + "str" + key
	}
	return key
}

// keyOf is the text that any key is kept under; keys that are equal have the same.
func keyOf(key any) (text string, err error) {
	switch k := key.(type) {
	case string:
		return plain(k), nil
	case nil:
		return oddMark + "None", nil
	case bool, int64, float64:
		f, _ := Number(k)
		if n, ok := k.(int64); ok && compareNumbers(n, f) != 0 {
			return oddMark + strconv.FormatInt(n, 10), nil
		}
		return oddMark + strconv.FormatFloat(f+0, 'g', -1, 64), nil // -0.0 + 0 is 0.0, the same key
	case Tuple:
		var b strings.Builder
		b.WriteString(oddMark + "tuple")

		for _, x := range k {
			part, err := keyOf(x)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "%d:%s", len(part), part)
		}

		return b.String(), nil
	}

	return "", fmt.Errorf("%w: %s", ErrKey, Kind(key))
}

// SetKey gives a key of any type that can be one a value.
func (d *Dict) SetKey(key, v any) error {
	text, err := keyOf(key)
	if err != nil {
		return err
	}

	if _, has := d.items[text]; !has && text != key {
		if d.odd == nil {
			d.odd = map[string]any{}
		}
		d.odd[text] = key
	}

	d.set(text, v)
	return nil
}

// GetKey gives the value of a key of any type; one that cannot be a key is an error.
func (d *Dict) GetKey(key any) (v any, ok bool, err error) {
	text, err := keyOf(key)
	if err != nil {
		return nil, false, err
	}
	v, ok = d.items[text]
	return v, ok, nil
}

// Keys lists the keys in order, as texts. The slice belongs to the dictionary.
func (d *Dict) Keys() []string {
	if d.odd == nil {
		return d.keys
	}
	list := make([]string, len(d.keys))
	for i, k := range d.AllKeys() {
		list[i] = Str(k)
	}
	return list
}

// AllKeys lists the keys in order.
func (d *Dict) AllKeys() []any {
	list := make([]any, len(d.keys))
	for i, text := range d.keys {
		list[i] = text
		if k, ok := d.odd[text]; ok {
			list[i] = k
		}
	}
	return list
}

// All gives keys and values in order.
func (d *Dict) All() iter.Seq2[any, any] {
	return func(yield func(k, v any) bool) {
		for _, text := range d.keys {
			var key any = text
			if k, ok := d.odd[text]; ok {
				key = k
			}
			if !yield(key, d.items[text]) {
				return
			}
		}
	}
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// MarshalJSON writes the dictionary in the order of its keys.
func (d *Dict) MarshalJSON() ([]byte, error) { return AppendJSON(nil, d) }

// Kind names the type of a value as Python does.
func Kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []any:
		return "list"
	case Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case interface{ Kind() string }:
		return v.Kind()
	}

	return fmt.Sprintf("%T", v)
}

// Truth is bool(v).
func Truth(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case Tuple:
		return len(v) > 0
	case *Dict:
		return v.Len() > 0
	}

	return true
}

// Str is str(v).
func Str(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return Repr(v)
}

// Repr is repr(v).
func Repr(v any) string {
	var b strings.Builder
	repr(&b, v)
	return b.String()
}

func repr(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(reprFloat(v))
	case string:
		reprString(b, v)
	case []any:
		reprItems(b, v, "[", "]")
	case Tuple:
		end := ")"
		if len(v) == 1 {
			end = ",)"
		}
		reprItems(b, v, "(", end)
	case *Dict:
		b.WriteByte('{')
		between := ""
		for k, x := range v.All() {
			b.WriteString(between)
			repr(b, k)
			b.WriteString(": ")
			repr(b, x)
			between = ", "
		}

		b.WriteByte('}')
	default:
		b.WriteString(Kind(v))
	}
}

func reprItems(b *strings.Builder, list []any, open, end string) {
	b.WriteString(open)
	for i, x := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		repr(b, x)
	}
	b.WriteString(end)
}

// reprFloat is repr of a float: the shortest digits that give the same number, with an exponent below 1e-4 and
// from 1e16 on.
func reprFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}

	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}

	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}

	return s
}

func reprString(b *strings.Builder, s string) {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}

	b.WriteByte(quote)

	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}

	b.WriteByte(quote)
}

// Equal is a == b.
func Equal(a, b any) bool {
	if x, ok := Number(a); ok {
		y, ok := Number(b)
		return ok && x == y && compareNumbers(a, b) == 0
	}

	switch a := a.(type) {
	case nil:
		return b == nil
	case string:
		s, ok := b.(string)
		return ok && s == a
	case []any:
		l, ok := b.([]any)
		if !ok || len(l) != len(a) {
			return false
		}

		for i := range a {
			if !Equal(a[i], l[i]) {
				return false
			}
		}

		return true
	case Tuple:
		t, ok := b.(Tuple)
		return ok && Equal([]any(a), []any(t))
	case *Dict:
		d, ok := b.(*Dict)
		if !ok || d.Len() != a.Len() {
			return false
		}

		for k, v := range a.items {
			if w, ok := d.items[k]; !ok || !Equal(v, w) {
				return false
			}
		}

		return true
	}

	return false
}

// Number gives a bool, int or float as a float.
func Number(v any) (float64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}

	return 0, false
}

// Int gives a bool or int as an int.
func Int(v any) (int, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return int(v), true
	}

	return 0, false
}

// compareNumbers orders bools, ints and floats by their exact values: a float has no room for every int of 64 bits.
func compareNumbers(a, b any) int {
	i, isInt := Int(a)
	j, isAlsoInt := Int(b)
	if isInt && isAlsoInt {
		return cmp.Compare(i, j)
	}

	x, _ := Number(a)
	y, _ := Number(b)
	switch {
	case isInt && !math.IsNaN(y):
		return compareExact(int64(i), y)
	case isAlsoInt && !math.IsNaN(x):
		return -compareExact(int64(j), x)
	}

	return cmp.Compare(x, y)
}

// compareExact orders an int and a float that is a number.
func compareExact(n int64, f float64) int {
	switch {
	case f >= 1<<63:
		return -1
	case f < -1<<63:
		return 1
	}

	whole := math.Trunc(f)
	if c := cmp.Compare(n, int64(whole)); c != 0 {
		return c
	}

	return cmp.Compare(whole, f)
}

// Compare orders two values of the same kind: numbers, strings or lists.
func Compare(a, b any) (int, error) {
	_, okX := Number(a)
	_, okY := Number(b)
	if okX && okY {
		return compareNumbers(a, b), nil
	}

	if s, ok := a.(string); ok {
		if u, ok := b.(string); ok {
			return strings.Compare(s, u), nil
		}
	}

	if s, ok := a.(Tuple); ok {
		if u, ok := b.(Tuple); ok {
			return Compare([]any(s), []any(u))
		}
	}

	l, okX := a.([]any)
	k, okY := b.([]any)
	if okX && okY {
		for i := range min(len(l), len(k)) {
			if !Equal(l[i], k[i]) { // the first items that differ decide; equal ones need no order
				return Compare(l[i], k[i])
			}
		}
		return cmp.Compare(len(l), len(k)), nil
	}

	return 0, fmt.Errorf("%s and %s have no order", Kind(a), Kind(b))
}

// IsSpace is str.isspace for one character.
func IsSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// Strip is str.strip().
func Strip(s string) string { return strings.TrimFunc(s, IsSpace) }

// otherDigits are the characters whose Numeric_Type is Digit in Unicode's DerivedNumericType.txt: digits that are no
// part of a decimal number, as superscripts and circled ones.
var otherDigits = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x00b2, 0x00b3, 1},
		{0x00b9, 0x00b9, 1},
		{0x1369, 0x1371, 1},
		{0x19da, 0x19da, 1},
		{0x2070, 0x2070, 1},
		{0x2074, 0x2079, 1},
		{0x2080, 0x2089, 1},
		{0x2460, 0x2468, 1},
		{0x2474, 0x247c, 1},
		{0x2488, 0x2490, 1},
		{0x24ea, 0x24ea, 1},
		{0x24f5, 0x24fd, 1},
		{0x24ff, 0x24ff, 1},
		{0x2776, 0x277e, 1},
		{0x2780, 0x2788, 1},
		{0x278a, 0x2792, 1},
	},
	R32: []unicode.Range32{
		{0x10a40, 0x10a43, 1}, {0x10e60, 0x10e68, 1}, {0x11052, 0x1105a, 1}, {0x1f100, 0x1f10a, 1},
	},
	LatinOffset: 2,
}

// IsDigit is str.isdigit(): some characters, all of them digits.
func IsDigit(s string) bool {
	for _, r := range s {
		if !unicode.In(r, unicode.Nd, otherDigits) {
			return false
		}
	}
	return s != ""
}

// IsAlnum is str.isalnum for one character.
func IsAlnum(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }

// IsAlpha is str.isalpha for one character.
func IsAlpha(r rune) bool { return unicode.IsLetter(r) }

// IsDecimal is str.isdecimal for one character.
func IsDecimal(r rune) bool { return unicode.IsDigit(r) }

// ideographs are those that Unicode gives a numeric value (kPrimaryNumeric, kAccountingNumeric, kOtherNumeric),
// although their category is that of letters.
const ideographs = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零" +
	"\uf96b\uf973\uf978\uf9b2\uf9d1\uf9d3\uf9fd\U00020001\U00020064\U000200e2\U00020121\U0002092a" +
	"\U00020983\U0002098c\U0002099c\U00020aea\U00020afd\U00020b19\U00022390\U00022998\U00023b1b\U0002626d" +
	"\U0002f890"

// IsNumeric is str.isnumeric for one character.
func IsNumeric(r rune) bool { return unicode.IsNumber(r) || strings.ContainsRune(ideographs, r) }
