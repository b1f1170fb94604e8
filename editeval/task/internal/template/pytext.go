package template

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"

	"github.com/modelcompress/compress/editeval/task/internal/value"
)

// lower and upper are str.lower() and str.upper(): letters that change into several do, and a sigma at the end of a word is the final one.
func lower(s string) string { return cases.Lower(language.Und).String(s) }
func upper(s string) string { return cases.Upper(language.Und).String(s) }

// titleCase is the first letter of a word.
func titleCase(r rune) string { return cases.Title(language.Und, cases.NoLower).String(string(r)) }

// capitalize is str.capitalize(): the first character in title case, the others in lower case.
func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return titleCase(r) + strings.TrimPrefix(lower(s), lower(s[:n]))
}

// titleFilter is Jinja's title: every word in lower case but its first letter. Words end at white space, hyphens and opening brackets.
func titleFilter(s string) string {
	var b strings.Builder
	between := func(r rune) bool { return value.IsSpace(r) || strings.ContainsRune("-({[<", r) }
	for s != "" {
		end := strings.IndexFunc(s, between)
		if end == 0 {
			_, n := utf8.DecodeRuneInString(s)
			b.WriteString(s[:n])
			s = s[n:]
			continue
		}
		if end < 0 {
			end = len(s)
		}
		_, n := utf8.DecodeRuneInString(s)
		b.WriteString(upper(s[:n]) + lower(s[n:end]))
		s = s[end:]
	}
	return b.String()
}

// titleMethod is str.title(): a letter behind one is in lower case, any other in title case.
func titleMethod(s string) string {
	var b strings.Builder
	small := lower(s)
	if utf8.RuneCountInString(small) != utf8.RuneCountInString(s) {
		small = strings.ToLower(s)
	}
	after, rest := false, small
	for _, r := range s {
		_, n := utf8.DecodeRuneInString(rest)
		if after {
			b.WriteString(rest[:n])
		} else {
			b.WriteString(titleCase(r))
		}
		rest = rest[n:]
		after = unicode.IsLower(r) || unicode.IsUpper(r) || unicode.IsTitle(r)
	}
	return b.String()
}

// errInt: an integer that 64 bits do not hold.
var errInt = fmt.Errorf("%w: an integer of more than 64 bits", ErrType)

// parseInt is int(s, base); false where s is no such number.
func parseInt(s string, base int) (n int64, ok bool, err error) {
	digits, negative := asciiDigits(value.Strip(s)), false
	if digits != "" && (digits[0] == '-' || digits[0] == '+') {
		negative, digits = digits[0] == '-', digits[1:]
	}
	if len(digits) > 2 && digits[0] == '0' {
		if b := map[byte]int{'x': 16, 'o': 8, 'b': 2}[digits[1]|0x20]; b != 0 && (base == 0 || base == b) {
			base, digits = b, strings.TrimPrefix(digits[2:], "_")
		}
	}
	if base == 0 {
		if base = 10; len(digits) > 1 && digits[0] == '0' && strings.Trim(digits, "0_") != "" {
			return 0, false, nil
		}
	}
	plain := strings.ReplaceAll(digits, "_", "")
	if base < 2 || base > 36 || plain == "" || plain[0] == '-' || plain[0] == '+' || strings.HasPrefix(digits, "_") ||
		strings.HasSuffix(digits, "_") || strings.Contains(digits, "__") {
		return 0, false, nil
	}
	if negative {
		plain = "-" + plain
	}
	n, err = strconv.ParseInt(plain, base, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, true, errInt
	}
	return n, err == nil, nil
}

// asciiDigits replaces the digits of other scripts, which Python reads too.
func asciiDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf || !unicode.IsDigit(r) {
			return r
		}
		zero := r
		for r-zero < 9 && unicode.IsDigit(zero-1) {
			zero--
		}
		return '0' + (r - zero)
	}, s)
}

// parseFloat is float(s).
func parseFloat(s string) (float64, bool) {
	s = asciiDigits(value.Strip(s))
	if strings.ContainsAny(s, "xXpP_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// roundTo is round(f, n): to the nearest number of n decimals, halves of the exact value to the even one.
func roundTo(f float64, n int) float64 {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0) || n > 323:
		return f
	case n < -308:
		return math.Copysign(0, f)
	case n < 0:
		scale := math.Pow(10, float64(-n))
		return math.RoundToEven(f/scale) * scale
	}
	out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', n, 64), 64)
	if err != nil {
		return f
	}
	return out
}

// toJSON is Jinja's tojson: keys in order, characters outside of ASCII and those that mean something in HTML as escapes.
func toJSON(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case string:
		return jsonText(b, v), nil
	case float64:
		switch {
		case math.IsNaN(v):
			return append(b, "NaN"...), nil
		case math.IsInf(v, 0):
			return append(b, map[bool]string{true: "Infinity", false: "-Infinity"}[v > 0]...), nil
		}
		return append(b, value.Repr(v)...), nil
	case value.Tuple:
		return toJSON(b, []any(v))
	case []any:
		b = append(b, '[')
		for i, x := range v {
			if i > 0 {
				b = append(b, ", "...)
			}
			var err error
			if b, err = toJSON(b, x); err != nil {
				return b, err
			}
		}
		return append(b, ']'), nil
	case *value.Dict:
		return jsonDict(b, v)
	}
	return value.AppendJSON(b, v)
}

func jsonDict(b []byte, d *value.Dict) ([]byte, error) {
	b = append(b, '{')
	for i, k := range slices.Sorted(slices.Values(d.Keys())) {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(jsonText(b, k), ": "...)
		v, _ := d.Get(k)
		var err error
		if b, err = toJSON(b, v); err != nil || len(b) > maxOutput {
			return b, err
		}
	}
	return append(b, '}'), nil
}

// jsonEscapes are those of one letter.
var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}

func jsonText(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch short, ok := jsonEscapes[r]; {
		case ok:
			b = append(b, short...)
		case r >= ' ' && r < 0x7f && !strings.ContainsRune("<>&'", r), r == 0x7f:
			b = append(b, byte(r))
		case r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, hi, lo)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return append(b, '"')
}
