package pyvalue

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrLiteral: a text is no literal that can be read.
var ErrLiteral = errors.New("not a literal")

// ParseLiteral reads what Repr writes, and what else Python's ast.literal_eval takes of lists, tuples (which
// become lists), dictionaries with keys that are strings, strings, numbers, True, False and None.
func ParseLiteral(text string) (any, error) {
	p := &literal{text: text}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}

	p.space()
	if p.at < len(text) {
		return nil, p.fault()
	}

	return v, nil
}

type literal struct {
	text string
	at   int
}

func (p *literal) fault() error { return fmt.Errorf("%w: %.60q at byte %d", ErrLiteral, p.text, p.at) }

func (p *literal) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\n\r\f", p.text[p.at]) >= 0 {
		p.at++
	}
}

// take skips a character if it comes next.
func (p *literal) take(c byte) bool {
	p.space()
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *literal) value(depth int) (any, error) {
	if depth > MaxDepth {
		return nil, ErrDepth
	}

	p.space()
	if p.at >= len(p.text) {
		return nil, p.fault()
	}

	switch c := p.text[p.at]; {
	case c == '[' || c == '(':
		return p.list(depth)
	case c == '{':
		return p.dict(depth)
	case c == '\'' || c == '"':
		return p.strings()
	}

	return p.word()
}

func (p *literal) list(depth int) (any, error) {
	end := byte(']')
	list := []any{}
	comma := false
	if p.text[p.at] == '(' {
		end = ')'
	}

	p.at++
	for !p.take(end) {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}

		list = append(list, v)

		if p.take(',') {
			comma = true
			continue
		}

		if !p.take(end) {
			return nil, p.fault()
		}

		break
	}

	if end == ')' && len(list) == 1 && !comma {
		return list[0], nil
	}

	return list, nil
}

func (p *literal) dict(depth int) (any, error) {
	p.at++
	dict := NewDict()
	for !p.take('}') {
		key, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}

		name, ok := key.(string)
		if !ok || !p.take(':') {
			return nil, p.fault()
		}

		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}

		dict.Set(name, v)

		if !p.take(',') {
			if !p.take('}') {
				return nil, p.fault()
			}
			break
		}
	}

	return dict, nil
}

// strings reads a string, or several that follow each other.
func (p *literal) strings() (any, error) {
	var b strings.Builder
	for {
		p.space()
		if p.at >= len(p.text) || p.text[p.at] != '\'' && p.text[p.at] != '"' {
			return b.String(), nil
		}

		n, s, err := Unquote(p.text[p.at:])
		if err != nil {
			return nil, p.fault()
		}

		b.WriteString(s)
		p.at += n
	}
}

func (p *literal) word() (any, error) {
	start := p.at
	for p.at < len(p.text) && strings.IndexByte(",]}) \t\n\r:", p.text[p.at]) < 0 {
		p.at++
	}

	switch word := p.text[start:p.at]; word {
	case "True":
		return true, nil
	case "False":
		return false, nil
	case "None":
		return nil, nil
	default:
		digits := strings.TrimLeft(word, "+-")
		if n, err := strconv.ParseInt(word, 10, 64); err == nil && (digits[0] != '0' || n == 0) {
			return n, nil
		} else if err == nil {
			break // 010 was eight once, and is nothing now
		}
		if f, err := strconv.ParseFloat(word, 64); err == nil && strings.ContainsAny(word, "0123456789") &&
			!strings.ContainsAny(word, "xX_pP") {
			return f, nil
		}
	}

	p.at = start
	return nil, p.fault()
}

// escapes are the characters behind a backslash in a string.
var escapes = map[byte]string{
	'n': "\n", 't': "\t", 'r': "\r", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v",
	'\n': "",
}

// Unquote reads a quoted string at the start of a text and says how many bytes of the text it takes.
func Unquote(text string) (n int, s string, err error) {
	if text == "" {
		return 0, "", ErrLiteral
	}

	quote := text[0]
	var b strings.Builder
	for i := 1; i < len(text); {
		switch c := text[i]; {
		case c == quote:
			return i + 1, b.String(), nil
		case c != '\\':
			b.WriteByte(c)
			i++
		default:
			n, s, err := unescape(text[i:])
			if err != nil {
				return 0, "", err
			}
			b.WriteString(s)
			i += n
		}
	}

	return 0, "", fmt.Errorf("%w: the string has no end", ErrLiteral)
}

// unescape reads an escape, which starts with a backslash. One that is unknown stays as it is.
func unescape(text string) (n int, s string, err error) {
	if len(text) < 2 {
		return 0, "", ErrLiteral
	}
	if s, ok := escapes[text[1]]; ok {
		return 2, s, nil
	}

	if octal := text[1:min(4, len(text))]; octal[0] >= '0' && octal[0] <= '7' {
		octal = octal[:len(octal)-len(strings.TrimLeft(octal, "01234567"))]
		r, err := strconv.ParseUint(octal, 8, 32)
		return 1 + len(octal), string(rune(r)), err
	}

	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[text[1]]
	if digits == 0 {
		_, size := utf8.DecodeRuneInString(text[1:])
		return 1 + size, text[:1+size], nil
	}

	if len(text) < 2+digits {
		return 0, "", ErrLiteral
	}

	r, err := strconv.ParseUint(text[2:2+digits], 16, 32)
	if err != nil || r > utf8.MaxRune {
		return 0, "", ErrLiteral
	}

	return 2 + digits, string(rune(r)), nil
}
