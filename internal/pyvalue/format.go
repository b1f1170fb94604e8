package pyvalue

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrFormat: a format does not fit what it is given.
var ErrFormat = errors.New("format")

// maxWidth bounds widths and precisions of formats.
const maxWidth = 1 << 16

// spec is a format specification, of % or of str.format.
type spec struct {
	fill      rune
	align     byte // '<', '>', '^', '=' or 0
	sign      byte // '+', ' ' or 0
	alternate bool
	zero      bool // the fill of zeros was asked for by a 0 in front of the width
	group     byte // ',', '_' or 0
	width     int
	precision int // -1: none
	verb      byte
	unit      string // behind the digits: a percent sign
}

// Percent is format % args: args is a tuple of what is to be written, a dictionary for formats with names, or a
// single value.
func Percent(format string, args any) (string, error) {
	p := &percent{rest: format}
	switch a := args.(type) {
	case Tuple:
		p.list = a
	case *Dict:
		p.list, p.dict = []any{a}, a
	default:
		p.list = []any{a}
	}

	var b strings.Builder
	for {
		at := strings.IndexByte(p.rest, '%')
		if at < 0 {
			b.WriteString(p.rest)
			break
		}

		b.WriteString(p.rest[:at])
		p.rest = p.rest[at+1:]
		text, err := p.one()
		if err != nil {
			return "", err
		}

		b.WriteString(text)
	}

	if p.used < len(p.list) && p.dict == nil {
		return "", fmt.Errorf("%w: %d values for a format with %d places", ErrFormat, len(p.list), p.used)
	}

	return b.String(), nil
}

// percent reads a format of %.
type percent struct {
	rest string
	list []any
	dict *Dict
	used int
}

func (p *percent) next() (any, error) {
	if p.used >= len(p.list) {
		return nil, fmt.Errorf("%w: more places than values", ErrFormat)
	}
	p.used++
	return p.list[p.used-1], nil
}

// one reads and fills a place.
func (p *percent) one() (string, error) {
	var v any
	named := strings.HasPrefix(p.rest, "(")
	if named {
		end := strings.IndexByte(p.rest, ')')
		if end < 0 || p.dict == nil {
			return "", fmt.Errorf("%w: %%%.20s wants a dictionary", ErrFormat, p.rest)
		}

		var ok bool
		if v, ok = p.dict.Get(p.rest[1:end]); !ok {
			return "", fmt.Errorf("%w: no value for %q", ErrFormat, p.rest[1:end])
		}

		p.rest = p.rest[end+1:]
	}

	s := spec{fill: ' ', align: '>', precision: -1}
	p.flags(&s)
	var err error
	if s.width, err = p.size(); err != nil {
		return "", err
	}
	if s.width < 0 {
		s.align, s.width = '<', -s.width
	}

	if strings.HasPrefix(p.rest, ".") {
		p.rest = p.rest[1:]
		if s.precision, err = p.size(); err != nil {
			return "", err
		}
	}

	p.rest = strings.TrimLeft(p.rest, "hlL")
	if p.rest == "" {
		return "", fmt.Errorf("%w: nothing after %%", ErrFormat)
	}

	s.verb, p.rest = p.rest[0], p.rest[1:]
	if s.verb == '%' {
		return "%", nil
	}

	if !named {
		if v, err = p.next(); err != nil {
			return "", err
		}
	}

	return s.percent(v)
}

func (p *percent) flags(s *spec) {
	for p.rest != "" {
		switch p.rest[0] {
		case '-':
			s.fill, s.align = ' ', '<'
		case '+':
			s.sign = '+'
		case ' ':
			if s.sign == 0 {
				s.sign = ' '
			}
		case '#':
			s.alternate = true
		case '0':
			if s.align == '>' {
				s.fill, s.align = '0', '='
			}
		default:
			return
		}

		p.rest = p.rest[1:]
	}
}

// size reads a width or a precision: digits, or * for the next value.
func (p *percent) size() (int, error) {
	if strings.HasPrefix(p.rest, "*") {
		p.rest = p.rest[1:]
		v, err := p.next()
		n, ok := Int(v)
		if err == nil && (!ok || n > maxWidth || n < -maxWidth) {
			err = fmt.Errorf("%w: * wants a number of at most %d", ErrFormat, maxWidth)
		}
		return n, err
	}

	n, rest, err := digitsOf(p.rest)
	p.rest = rest
	return n, err
}

// digitsOf reads a number at the start of a text, 0 where there is none.
func digitsOf(s string) (n int, rest string, err error) {
	for s != "" && s[0] >= '0' && s[0] <= '9' {
		if n = 10*n + int(s[0]-'0'); n > maxWidth {
			return 0, s, fmt.Errorf("%w: a width or precision above %d", ErrFormat, maxWidth)
		}
		s = s[1:]
	}
	return n, s, nil
}

// percent writes a value as % does.
func (s spec) percent(v any) (string, error) {
	switch s.verb {
	case 's', 'r':
		text := Str(v)
		if s.verb != 's' {
			text = Repr(v)
		}
		return s.blank().pad("", cutRunes(text, s.precision)), nil
	case 'c':
		if n, ok := Int(v); ok && n >= 0 && n <= utf8.MaxRune {
			return s.blank().pad("", string(rune(n))), nil
		}
		if t, ok := v.(string); ok && utf8.RuneCountInString(t) == 1 {
			return s.blank().pad("", t), nil
		}
	case 'd', 'i', 'u':
		if f, ok := v.(float64); ok && math.Abs(f) < 1<<63 {
			v = int64(f)
		}

		s.verb = 'd'
		if _, ok := Int(v); ok {
			return s.number(v)
		}
	case 'x', 'X', 'o':
		if _, ok := Int(v); ok {
			return s.number(v)
		}
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if f, ok := Number(v); ok {
			return s.number(f)
		}
	default:
		return "", fmt.Errorf("%w: %%%c; known: s, r, c, d, i, u, x, X, o, e, E, f, F, g, G", ErrFormat, s.verb)
	}

	return "", fmt.Errorf("%w: %%%c of a %s", ErrFormat, s.verb, Kind(v))
}

// blank takes back the zeros that % asks for, which are for numbers alone.
func (s spec) blank() spec {
	if s.align == '=' {
		s.align, s.fill = '>', ' '
	}
	return s
}

func cutRunes(text string, n int) string {
	if n < 0 || utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n])
}

// pad brings a text to its width; a sign stays before the fill of '='.
func (s spec) pad(sign, text string) string {
	short := s.width - utf8.RuneCountInString(sign) - utf8.RuneCountInString(text)
	if short <= 0 {
		return sign + text
	}

	fill := func(n int) string { return strings.Repeat(string(s.fill), n) }
	switch s.align {
	case '<':
		return sign + text + fill(short)
	case '^':
		return fill(short/2) + sign + text + fill(short-short/2)
	case '=':
		return sign + fill(short) + text
	}

	return fill(short) + sign + text
}

// number writes an int or a float.
func (s spec) number(v any) (string, error) {
	f, _ := Number(v)
	_, isFloat := v.(float64)
	sign := ""
	switch {
	case isFloat && math.Signbit(f) && !math.IsNaN(f), !isFloat && f < 0:
		sign = "-"
	case s.sign != 0:
		sign = string(s.sign)
	}

	if isFloat {
		return s.pad(sign, s.grouped(sign, s.float(math.Abs(f))+s.unit)), nil
	}

	n, _ := Int(v)
	size := uint64(n)
	if n < 0 {
		size = -size
	}

	text, prefix := strconv.FormatUint(size, map[byte]int{'d': 10, 'x': 16, 'X': 16, 'o': 8, 'b': 2}[s.verb]), ""
	if s.precision > len(text) {
		text = strings.Repeat("0", s.precision-len(text)) + text
	}
	if s.alternate && s.verb != 'd' {
		prefix = "0" + string(s.verb)
	}
	if s.verb == 'X' {
		text = strings.ToUpper(text)
	}

	return s.pad(sign+prefix, s.grouped(sign+prefix, text)), nil
}

// float writes a number that is not negative.
func (s spec) float(f float64) string {
	lower := s.verb | 0x20
	precision := s.precision
	if precision < 0 {
		precision = 6
	}

	var text string
	switch {
	case math.IsNaN(f):
		text = "nan"
	case math.IsInf(f, 0):
		text = "inf"
	case lower == 'g':
		text = strconv.FormatFloat(f, 'g', max(precision, 1), 64)
		if s.alternate {
			text = fmt.Sprintf("%#.*g", max(precision, 1), f)
		}
	default:
		text = strconv.FormatFloat(f, lower, precision, 64)
		if s.alternate && precision == 0 {
			end := len(text) - len(strings.TrimLeft(text, "0123456789"))
			text = text[:end] + "." + text[end:]
		}
	}

	if s.verb != lower {
		text = strings.ToUpper(text)
	}

	return text
}

// grouped puts separators between thousands, or between four digits of a number that is not decimal. Zeros that fill
// the width in front of the digits, behind the sign, are grouped with them.
func (s spec) grouped(sign, text string) string {
	if s.group == 0 {
		return text
	}

	size, digits := 3, "0123456789"
	if strings.IndexByte("bBoxX", s.verb) >= 0 {
		size, digits = 4, "0123456789abcdefABCDEF"
	}

	end := len(text) - len(strings.TrimLeft(text, digits))
	rest := text[end:]
	if s.align == '=' && s.fill == '0' && end > 0 {
		room := s.width - len(sign) - len(rest)
		for end+(end-1)/size < room {
			text, end = "0"+text, end+1
		}
	}

	var b strings.Builder
	for i, c := range text[:end] {
		if i > 0 && (end-i)%size == 0 {
			b.WriteByte(s.group)
		}
		b.WriteRune(c)
	}

	return b.String() + rest
}
