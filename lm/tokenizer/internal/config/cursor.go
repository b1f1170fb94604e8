package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Cursor reads JSON in place. Vocabularies and merge lists are most of a tokenizer file (hundreds of thousands of
// strings); reading them straight into their tables is several times faster than reflection.
type Cursor struct {
	s    string
	i    int
	base int // offset of s in the file, for messages
}

// Fail returns an error that names the place.
func (c *Cursor) Fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d", ErrSyntax, what, c.base+c.i)
}

func (c *Cursor) space() {
	for c.i < len(c.s) && (c.s[c.i] == ' ' || c.s[c.i] == '\n' || c.s[c.i] == '\t' || c.s[c.i] == '\r') {
		c.i++
	}
}

// Peek skips white space and returns the next byte, 0 at the end.
func (c *Cursor) Peek() byte {
	c.space()
	if c.i >= len(c.s) {
		return 0
	}
	return c.s[c.i]
}

func (c *Cursor) expect(b byte) error {
	if c.Peek() != b || c.i >= len(c.s) {
		return c.Fail("expected " + strconv.QuoteRune(rune(b)))
	}
	c.i++
	return nil
}

// End demands that nothing but white space is left.
func (c *Cursor) End() error {
	c.space()
	if c.i < len(c.s) {
		return c.Fail("unexpected data after the value")
	}
	return nil
}

// Object calls member for each key; member must read the value.
func (c *Cursor) Object(member func(key string) error) error {
	if err := c.expect('{'); err != nil {
		return err
	}

	if c.Peek() == '}' {
		c.i++
		return nil
	}

	for {
		c.space()
		key, err := c.String()
		if err != nil {
			return err
		}

		if err := c.expect(':'); err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if c.Peek() != ',' {
			return c.expect('}')
		}

		c.i++
	}
}

// Array calls item at the start of each element; item must read it.
func (c *Cursor) Array(item func() error) error {
	if err := c.expect('['); err != nil {
		return err
	}

	if c.Peek() == ']' {
		c.i++
		return nil
	}

	for {
		if err := item(); err != nil {
			return err
		}
		if c.Peek() != ',' {
			return c.expect(']')
		}

		c.i++
	}
}

// String reads a string. Without escapes the result shares the cursor's text.
func (c *Cursor) String() (string, error) {
	if c.Peek() != '"' {
		return "", c.Fail("expected a string")
	}

	start := c.i + 1
	for i := start; i < len(c.s); i++ {
		switch b := c.s[i]; {
		case b == '"':
			c.i = i + 1
			return c.s[start:i], nil
		case b == '\\':
			return c.escaped(start, i)
		case b < ' ':
			c.i = i
			return "", c.Fail("control character in a string")
		}
	}

	return "", c.Fail("unterminated string")
}

// escaped reads the rest of a string whose first escape is at i.
func (c *Cursor) escaped(start, i int) (string, error) {
	var b strings.Builder
	b.WriteString(c.s[start:i])

	for c.i = i; c.i < len(c.s); {
		switch ch := c.s[c.i]; {
		case ch == '"':
			c.i++
			return b.String(), nil
		case ch == '\\':
			r, err := c.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		case ch < ' ':
			return "", c.Fail("control character in a string")
		default:
			b.WriteByte(ch)
			c.i++
		}
	}

	return "", c.Fail("unterminated string")
}

func (c *Cursor) escape() (rune, error) {
	if c.i+1 >= len(c.s) {
		return 0, c.Fail("unterminated string")
	}

	c.i += 2
	switch e := c.s[c.i-1]; e {
	case '"', '\\', '/':
		return rune(e), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		return c.unicodeEscape()
	}

	return 0, c.Fail("unknown escape")
}

func (c *Cursor) unicodeEscape() (rune, error) {
	r, err := c.hex4()
	if err != nil || r < 0xD800 || r > 0xDFFF {
		return r, err
	}

	if r < 0xDC00 && strings.HasPrefix(c.s[c.i:], `\u`) {
		c.i += 2
		low, err := c.hex4()
		if err != nil {
			return 0, err
		}

		if low >= 0xDC00 && low <= 0xDFFF {
			return (r-0xD800)<<10 + (low - 0xDC00) + 0x10000, nil
		}
	}

	return 0, c.Fail("lone surrogate in a string")
}

func (c *Cursor) hex4() (rune, error) {
	if c.i+4 > len(c.s) {
		return 0, c.Fail("unterminated string")
	}
	v, err := strconv.ParseUint(c.s[c.i:c.i+4], 16, 16)
	if err != nil {
		return 0, c.Fail("bad \\u escape")
	}
	c.i += 4
	return rune(v), nil
}

// Integer reads a whole number; anything else, and anything beyond 18 digits, is an error.
func (c *Cursor) Integer() (int64, error) {
	c.space()
	start := c.i
	if c.i < len(c.s) && c.s[c.i] == '-' {
		c.i++
	}
	for c.i < len(c.s) && c.s[c.i] >= '0' && c.s[c.i] <= '9' {
		c.i++
	}

	v, err := strconv.ParseInt(c.s[start:c.i], 10, 64)
	if err != nil {
		c.i = start
		return 0, c.Fail("expected a whole number")
	}

	return v, nil
}

// Float reads a number.
func (c *Cursor) Float() (float64, error) {
	c.space()
	start := c.i
	for c.i < len(c.s) && strings.IndexByte("+-.0123456789eE", c.s[c.i]) >= 0 {
		c.i++
	}

	v, err := strconv.ParseFloat(c.s[start:c.i], 64)
	if err != nil {
		c.i = start
		return 0, c.Fail("expected a number")
	}

	return v, nil
}

// Raw skips one value and returns its text and where it starts in the file.
func (c *Cursor) Raw() (Value, error) {
	c.space()
	start := c.i
	if err := c.skip(0); err != nil {
		return Value{}, err
	}
	return Value{c.s[start:c.i], c.base + start}, nil
}

// Value is the text of one JSON value and its offset in the file.
type Value struct {
	Text string
	base int
}

// Cursor reads the value.
func (v Value) Cursor() *Cursor { return &Cursor{s: v.Text, base: v.base} }

// Absent reports whether the value is missing or null.
func (v Value) Absent() bool { return v.Text == "" || v.Text == "null" }

func (c *Cursor) skip(depth int) error {
	if depth > MaxDepth {
		return c.Fail("values nested too deeply")
	}

	switch c.Peek() {
	case '{':
		return c.Object(func(string) error { return c.skip(depth + 1) })
	case '[':
		return c.Array(func() error { return c.skip(depth + 1) })
	case '"':
		return c.skipString()
	}

	start := c.i
	for c.i < len(c.s) && strings.IndexByte(",]} \n\r\t", c.s[c.i]) < 0 {
		c.i++
	}

	switch word := c.s[start:c.i]; word {
	case "true", "false", "null":
		return nil
	case "":
		return c.Fail("expected a value")
	default:
		if _, err := strconv.ParseFloat(word, 64); err != nil {
			c.i = start
			return c.Fail("expected a value")
		}
		return nil
	}
}

// skipString passes over a string; what its escapes mean is checked when it is read.
func (c *Cursor) skipString() error {
	for i := c.i + 1; i < len(c.s); i++ {
		switch b := c.s[i]; {
		case b == '"':
			c.i = i + 1
			return nil
		case b == '\\':
			i++
		case b < ' ':
			c.i = i
			return c.Fail("control character in a string")
		}
	}

	return c.Fail("unterminated string")
}

// NewCursor checks that data is UTF-8 and starts reading it.
func NewCursor(data string) (*Cursor, error) {
	if !utf8.ValidString(data) {
		return nil, fmt.Errorf("%w: not valid UTF-8", ErrSyntax)
	}
	return &Cursor{s: strings.TrimPrefix(data, "\ufeff")}, nil
}
