package pyvalue

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Fields is format.format(*list, **named): places {}, {0} and {name}, each with !r or !s and a format
// specification. Attributes and items of what is written are not read.
func Fields(format string, list []any, named func(name string) (any, bool)) (string, error) {
	var b strings.Builder
	next := 0
	byNumber := false
	for format != "" {
		at := strings.IndexAny(format, "{}")
		if at < 0 {
			b.WriteString(format)
			break
		}

		b.WriteString(format[:at])

		if strings.HasPrefix(format[at:], "{{") || strings.HasPrefix(format[at:], "}}") {
			b.WriteByte(format[at])
			format = format[at+2:]
			continue
		}

		end := strings.IndexByte(format, '}')
		if format[at] == '}' || end < at {
			return "", fmt.Errorf("%w: a single %q in %.40q", ErrFormat, format[at], format)
		}

		place := format[at+1 : end]
		format = format[end+1:]

		name, spec, _ := strings.Cut(place, ":")
		name, conversion, _ := strings.Cut(name, "!")
		_, err := strconv.Atoi(name)
		byNumber = byNumber || err == nil
		if name == "" {
			name = strconv.Itoa(next)
			next++
		}
		if byNumber && next > 0 {
			return "", fmt.Errorf("%w: places with and without numbers in one format", ErrFormat)
		}

		v, err := fieldValue(name, list, named)
		if err != nil {
			return "", err
		}

		text, err := convert(v, conversion, spec)
		if err != nil {
			return "", err
		}

		b.WriteString(text)
	}

	return b.String(), nil
}

func fieldValue(name string, list []any, named func(name string) (any, bool)) (any, error) {
	if n, err := strconv.Atoi(name); err == nil {
		if n < 0 || n >= len(list) {
			return nil, fmt.Errorf("%w: place %d of %d values", ErrFormat, n, len(list))
		}
		return list[n], nil
	}

	if v, ok := named(name); ok {
		return v, nil
	}

	return nil, fmt.Errorf("%w: no value for %q", ErrFormat, name)
}

func convert(v any, conversion, spec string) (string, error) {
	switch conversion {
	case "":
	case "s":
		v = Str(v)
	case "r":
		v = Repr(v)
	default:
		return "", fmt.Errorf("%w: conversion %q; known: r, s", ErrFormat, conversion)
	}

	return Format(v, spec)
}

// Format is format(v, spec).
func Format(v any, text string) (string, error) {
	if text == "" {
		return Str(v), nil
	}

	s, err := readSpec(text)
	if err != nil {
		return "", err
	}

	if t, ok := v.(string); ok {
		if s.verb != 0 && s.verb != 's' || s.align == '=' && !s.zero || s.sign != 0 || s.alternate || s.group != 0 {
			return "", fmt.Errorf("%w: %q of a str", ErrFormat, text)
		}
		if s.align == 0 || s.zero {
			s.align = '<'
		}

		return s.pad("", cutRunes(t, s.precision)), nil
	}

	if _, isBool := v.(bool); isBool {
		n, _ := Int(v)
		v = int64(n)
	}

	if s.align == 0 {
		s.align = '>'
	}

	_, isInt := v.(int64)
	f, isNumber := Number(v)
	switch {
	case !isNumber:
	case isInt && s.precision >= 0 && (s.verb == 0 || strings.IndexByte("dxXob", s.verb) >= 0):
		return "", fmt.Errorf("%w: %q of an int, which has no precision", ErrFormat, text)
	case s.group == ',' && s.verb != 0 && strings.IndexByte("xXob", s.verb) >= 0:
		return "", fmt.Errorf("%w: %q: commas stand between decimal digits only", ErrFormat, text)
	case isInt && s.verb == 0:
		s.verb = 'd'
		return s.number(v)
	case isInt && strings.IndexByte("dxXob", s.verb) >= 0:
		return s.number(v)
	case s.verb == '%':
		s.verb, s.unit = 'f', "%"
		return s.number(f * 100)
	case s.verb == 0:
		return s.plainFloat(f)
	case strings.IndexByte("eEfFgG", s.verb) >= 0:
		return s.number(f)
	}

	return "", fmt.Errorf("%w: %q of a %s", ErrFormat, text, Kind(v))
}

// plainFloat writes a float without a type: as str does, or as g with at least one decimal.
func (s spec) plainFloat(f float64) (string, error) {
	text := reprFloat(f)
	if s.precision >= 0 {
		text = shortFloat(f, max(s.precision, 1))
	}

	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	} else if s.sign != 0 {
		sign = string(s.sign)
	}

	return s.pad(sign, s.grouped(sign, text)), nil
}

// shortFloat writes a float with so many digits as g does, but with a decimal at least, which one of the digits is for.
func shortFloat(f float64, digits int) string {
	text := strconv.FormatFloat(f, 'e', digits-1, 64)
	mantissa, exponent, finite := strings.Cut(text, "e")
	if !finite {
		return reprFloat(f)
	}

	if n, err := strconv.Atoi(exponent); err == nil && (n < -4 || n >= digits-1) {
		if strings.Contains(mantissa, ".") {
			mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
		}
		return mantissa + "e" + exponent
	}

	if text = strconv.FormatFloat(f, 'g', digits, 64); !strings.Contains(text, ".") {
		text += ".0"
	}

	return text
}

// readSpec reads [[fill]align][sign][#][0][width][,][.precision][type].
func readSpec(text string) (spec, error) {
	s := spec{fill: ' ', precision: -1}
	rest := text
	filled := false
	if r, n := utf8.DecodeRuneInString(rest); len(rest) > n && strings.IndexByte("<>^=", rest[n]) >= 0 {
		s.fill, s.align, rest = r, rest[n], rest[n+1:]
		filled = true
	} else if rest != "" && strings.IndexByte("<>^=", rest[0]) >= 0 {
		s.align, rest = rest[0], rest[1:]
	}

	take := func(set string) byte {
		if rest == "" || strings.IndexByte(set, rest[0]) < 0 {
			return 0
		}
		c := rest[0]
		rest = rest[1:]
		return c
	}

	if c := take("+- "); c != '-' {
		s.sign = c
	}

	s.alternate = take("#") != 0
	if take("0") != 0 && !filled {
		s.fill = '0'
		if s.align == 0 {
			s.align, s.zero = '=', true
		}
	}

	var err error
	if s.width, rest, err = digitsOf(rest); err != nil {
		return s, err
	}

	s.group = take(",_")

	if take(".") != 0 {
		if rest == "" || rest[0] < '0' || rest[0] > '9' {
			return s, fmt.Errorf("%w: %q has no precision", ErrFormat, text)
		}
		if s.precision, rest, err = digitsOf(rest); err != nil {
			return s, err
		}
	}

	s.verb = take("bdeEfFgGosxX%")
	if rest != "" {
		return s, fmt.Errorf("%w: %q", ErrFormat, text)
	}

	return s, nil
}
