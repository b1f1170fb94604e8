package jinja

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// piece is text or a tag.
type piece struct {
	open   string // "", "{{" or "{%"
	text   string // outside of tags
	tokens []token
	line   int
}

// first is the first word of a tag.
func (p piece) first() string {
	if len(p.tokens) == 0 {
		return ""
	}
	return p.tokens[0].text
}

// ends are what closes each tag.
var ends = map[string]string{"{{": "}}", "{%": "%}", "{#": "#}"}

// cutter splits a source into text and tags.
type cutter struct {
	src   string
	line  int
	fresh bool // the text begins a line
	strip bool // the tag before asked for no white space behind it
	o     Options
	out   []piece
}

// cut splits a source into text and tags, without the white space that tags and options take away.
func cut(src string, o Options) ([]piece, error) {
	c := &cutter{src: src, line: 1, fresh: true, o: o}
	for {
		start := nextTag(c.src)
		if start < 0 {
			c.text(c.src, "", "")
			return c.out, nil
		}

		plain, open := c.src[:start], c.src[start:start+2]
		line := c.line + strings.Count(plain, "\n")
		inside := c.src[start+2:]
		end, err := tagEnd(inside, open)
		if err != nil {
			return nil, at(line, err)
		}

		c.src, inside = inside[end+2:], inside[:end]
		sign := inside[:min(1, len(inside))]
		if sign == "-" || sign == "+" {
			inside = inside[1:]
		} else {
			sign = ""
		}

		c.text(plain, open, sign)
		c.line = line + strings.Count(inside, "\n")
		inside = c.after(inside, open)
		if open == "{#" {
			continue
		}

		if open == "{%" && strings.TrimSpace(inside) == "raw" {
			if err := c.raw(line); err != nil {
				return nil, err
			}
			continue
		}

		tokens, err := scan(inside)
		if err != nil {
			return nil, at(line, err)
		}

		c.out = append(c.out, piece{open: open, tokens: tokens, line: line})
	}
}

// text takes what stands before a tag (or the end of the source, open "").
func (c *cutter) text(s, open, sign string) {
	if c.strip {
		s = strings.TrimLeftFunc(s, pyvalue.IsSpace)
		c.strip = false
	}

	switch {
	case sign == "-":
		s = strings.TrimRightFunc(s, pyvalue.IsSpace)
	case sign == "" && c.o.LstripBlocks && (open == "{%" || open == "{#"):
		line := strings.LastIndexByte(s, '\n') + 1
		if (line > 0 || c.fresh) && strings.TrimFunc(s[line:], pyvalue.IsSpace) == "" {
			s = s[:line]
		}
	}

	if s != "" {
		c.out = append(c.out, piece{text: s})
	}
}

// after takes the sign at the end of a tag, and what it and the options take from the text behind.
func (c *cutter) after(inside, open string) string {
	c.fresh = false
	keep := false
	switch {
	case strings.HasSuffix(inside, "-"):
		c.strip, inside = true, inside[:len(inside)-1]
	case strings.HasSuffix(inside, "+") && open == "{%":
		keep, inside = true, inside[:len(inside)-1]
	}

	if open != "{{" && c.o.TrimBlocks && !keep && !c.strip && strings.HasPrefix(c.src, "\n") {
		c.src, c.fresh = c.src[1:], true
		c.line++
	}

	return inside
}

// endRaw matches the end of a raw block.
var endRaw = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*([-+]?)%\}`)

// raw takes the text of a raw block. Only a minus takes the white space behind its beginning.
func (c *cutter) raw(line int) error {
	if c.fresh { // the line end that trim_blocks took belongs to the text
		c.src = "\n" + c.src
		c.line--
	}

	m := endRaw.FindStringSubmatchIndex(c.src)
	if m == nil {
		return at(line, fmt.Errorf("%w: {%% raw %%} has no end", ErrSyntax))
	}

	body := c.src[:m[0]]
	sign, last := c.src[m[2]:m[3]], c.src[m[4]:m[5]]
	inside := c.src[m[0]:m[1]]
	c.src = c.src[m[1]:]
	c.fresh = false

	c.text(body, "{%", sign)
	c.line += strings.Count(body, "\n") + strings.Count(inside, "\n")
	c.after(last, "{%")

	return nil
}

func nextTag(src string) int {
	for i := 0; i+1 < len(src); i++ {
		if src[i] == '{' && strings.IndexByte("{%#", src[i+1]) >= 0 {
			return i
		}
	}
	return -1
}

// tagEnd finds the end of a tag, which may be written in a string inside of it too.
func tagEnd(inside, open string) (int, error) {
	end := ends[open]
	braces := 0
	for i := 0; i < len(inside); i++ {
		c := inside[i]
		switch {
		case braces == 0 && strings.HasPrefix(inside[i:], end):
			return i, nil
		case open == "{#":
		case c == '\'' || c == '"':
			n, _, err := pyvalue.Unquote(inside[i:])
			if err != nil {
				return 0, fmt.Errorf("%w: a string in %s%.40s has no end", ErrSyntax, open, inside)
			}
			i += n - 1
		case c == '{':
			braces++
		case c == '}':
			braces = max(0, braces-1)
		}
	}

	return 0, fmt.Errorf("%w: %s%.40s has no %s", ErrSyntax, open, inside, end)
}

// kind of a token.
type kind uint8

const (
	word kind = iota + 1
	number
	quoted
	symbol
	end
)

// token is a word, a number, a string or a symbol of an expression.
type token struct {
	kind kind
	text string // of a string, what it stands for
}

// symbols of two characters; all others have one.
var symbols = []string{"==", "!=", "<=", ">=", "//", "**"}

// scan splits an expression into tokens.
func scan(src string) ([]token, error) {
	var out []token
	for i := 0; i < len(src); {
		c := src[i]
		start := i
		switch {
		case strings.IndexByte(" \t\n\r", c) >= 0:
			i++
			continue
		case c == '\'' || c == '"':
			n, s, err := pyvalue.Unquote(src[i:])
			if err != nil {
				return nil, fmt.Errorf("%w: %.40s: %w", ErrSyntax, src[i:], err)
			}

			i += n
			out = append(out, token{quoted, s})
			continue
		case letter(c):
			for i < len(src) && (letter(src[i]) || digit(src[i])) {
				i++
			}
			out = append(out, token{word, src[start:i]})
			continue
		case digit(c):
			n := numberEnd(src[i:])
			if i > 0 && src[i-1] == '.' { // an index behind an index: x.0.1 is no decimal
				n = len(src[i:]) - len(strings.TrimLeft(src[i:], "0123456789_"))
			}

			i += n
			out = append(out, token{number, src[start:i]})
			continue
		}

		n := 1
		for _, s := range symbols {
			if strings.HasPrefix(src[i:], s) {
				n = 2
			}
		}

		if n == 1 && strings.IndexByte("()[]{}.,:|~+-*/%<>=", c) < 0 {
			return nil, fmt.Errorf("%w: %q in %.60q", ErrSyntax, c, src)
		}

		out = append(out, token{symbol, src[i : i+n]})
		i += n
	}

	return out, nil
}

// numbers matches Jinja's numbers at the start of a text.
var numbers = regexp.MustCompile(
	`^(0[xX](_?[0-9a-fA-F])+|0[oO](_?[0-7])+|0[bB](_?[01])+|[0-9](_?[0-9])*(\.[0-9](_?[0-9])*)?([eE][+-]?[0-9](_?[0-9])*)?)`)

func numberEnd(src string) int { return len(numbers.FindString(src)) }

func letter(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }
