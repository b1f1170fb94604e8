package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds how deeply JSON values and components may nest.
const maxDepth = 64

// cursor reads JSON in place. Vocabularies and merge lists are most of a tokenizer file (hundreds of thousands of
// strings); reading them straight into their tables is several times faster than reflection.
type cursor struct {
	s    string
	i    int
	base int // offset of s in the file, for messages
}

func (c *cursor) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d", ErrSyntax, what, c.base+c.i)
}

func (c *cursor) space() {
	for c.i < len(c.s) && (c.s[c.i] == ' ' || c.s[c.i] == '\n' || c.s[c.i] == '\t' || c.s[c.i] == '\r') {
		c.i++
	}
}

// peek skips white space and returns the next byte, 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.i >= len(c.s) {
		return 0
	}
	return c.s[c.i]
}

func (c *cursor) expect(b byte) error {
	if c.peek() != b || c.i >= len(c.s) {
		return c.fail("expected " + strconv.QuoteRune(rune(b)))
	}
	c.i++
	return nil
}

// end demands that nothing but white space is left.
func (c *cursor) end() error {
	c.space()
	if c.i < len(c.s) {
		return c.fail("unexpected data after the value")
	}
	return nil
}

// object calls member for each key; member must read the value.
func (c *cursor) object(member func(key string) error) error {
	if err := c.expect('{'); err != nil {
		return err
	}
	if c.peek() == '}' {
		c.i++
		return nil
	}
	for {
		c.space()
		key, err := c.str()
		if err != nil {
			return err
		}
		if err := c.expect(':'); err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if c.peek() != ',' {
			return c.expect('}')
		}
		c.i++
	}
}

// array calls item at the start of each element; item must read it.
func (c *cursor) array(item func() error) error {
	if err := c.expect('['); err != nil {
		return err
	}
	if c.peek() == ']' {
		c.i++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if c.peek() != ',' {
			return c.expect(']')
		}
		c.i++
	}
}

// str reads a string. Without escapes the result shares the cursor's text.
func (c *cursor) str() (string, error) {
	if c.peek() != '"' {
		return "", c.fail("expected a string")
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
			return "", c.fail("control character in a string")
		}
	}
	return "", c.fail("unterminated string")
}

// escaped reads the rest of a string whose first escape is at i.
func (c *cursor) escaped(start, i int) (string, error) {
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
			return "", c.fail("control character in a string")
		default:
			b.WriteByte(ch)
			c.i++
		}
	}
	return "", c.fail("unterminated string")
}

func (c *cursor) escape() (rune, error) {
	if c.i+1 >= len(c.s) {
		return 0, c.fail("unterminated string")
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
	return 0, c.fail("unknown escape")
}

func (c *cursor) unicodeEscape() (rune, error) {
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
	return 0, c.fail("lone surrogate in a string")
}

func (c *cursor) hex4() (rune, error) {
	if c.i+4 > len(c.s) {
		return 0, c.fail("unterminated string")
	}
	v, err := strconv.ParseUint(c.s[c.i:c.i+4], 16, 16)
	if err != nil {
		return 0, c.fail("bad \\u escape")
	}
	c.i += 4
	return rune(v), nil
}

// integer reads a whole number; anything else, and anything beyond 18 digits, is an error.
func (c *cursor) integer() (int64, error) {
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
		return 0, c.fail("expected a whole number")
	}
	return v, nil
}

// float reads a number.
func (c *cursor) float() (float64, error) {
	c.space()
	start := c.i
	for c.i < len(c.s) && strings.IndexByte("+-.0123456789eE", c.s[c.i]) >= 0 {
		c.i++
	}
	v, err := strconv.ParseFloat(c.s[start:c.i], 64)
	if err != nil {
		c.i = start
		return 0, c.fail("expected a number")
	}
	return v, nil
}

// raw skips one value and returns its text and where it starts in the file.
func (c *cursor) raw() (value, error) {
	c.space()
	start := c.i
	if err := c.skip(0); err != nil {
		return value{}, err
	}
	return value{c.s[start:c.i], c.base + start}, nil
}

// value is the text of one JSON value and its offset in the file.
type value struct {
	text string
	base int
}

func (v value) cursor() *cursor { return &cursor{s: v.text, base: v.base} }

// absent reports whether the value is missing or null.
func (v value) absent() bool { return v.text == "" || v.text == "null" }

func (c *cursor) skip(depth int) error {
	if depth > maxDepth {
		return c.fail("values nested too deeply")
	}
	switch c.peek() {
	case '{':
		return c.object(func(string) error { return c.skip(depth + 1) })
	case '[':
		return c.array(func() error { return c.skip(depth + 1) })
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
		return c.fail("expected a value")
	default:
		if _, err := strconv.ParseFloat(word, 64); err != nil {
			c.i = start
			return c.fail("expected a value")
		}
		return nil
	}
}

// skipString passes over a string; what its escapes mean is checked when it is read.
func (c *cursor) skipString() error {
	for i := c.i + 1; i < len(c.s); i++ {
		switch b := c.s[i]; {
		case b == '"':
			c.i = i + 1
			return nil
		case b == '\\':
			i++
		case b < ' ':
			c.i = i
			return c.fail("control character in a string")
		}
	}
	return c.fail("unterminated string")
}

// newCursor checks that data is UTF-8 and starts reading it.
func newCursor(data string) (*cursor, error) {
	if !utf8.ValidString(data) {
		return nil, fmt.Errorf("%w: not valid UTF-8", ErrSyntax)
	}
	return &cursor{s: strings.TrimPrefix(data, "\ufeff")}, nil
}
