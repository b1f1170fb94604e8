package template

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/value"
)

// piece is text or a tag.
type piece struct {
	open   string // "", "{{" or "{%"
	text   string // outside of tags
	tokens []token
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

// cut splits a source into text and tags, and strips white space beside tags with a minus.
func cut(src string) ([]piece, error) {
	var out []piece
	strip := false // the tag before asked for it
	for src != "" {
		at := nextTag(src)
		plain := src
		if at >= 0 {
			plain = src[:at]
		}
		if strip {
			plain = strings.TrimLeftFunc(plain, value.IsSpace)
			strip = false
		}
		if at < 0 {
			return appendText(out, plain), nil
		}
		open := src[at : at+2]
		inside := src[at+2:]
		end, err := tagEnd(inside, open)
		if err != nil {
			return nil, err
		}
		src = inside[end+2:]
		inside = inside[:end]
		if strings.HasPrefix(inside, "-") {
			plain, inside = strings.TrimRightFunc(plain, value.IsSpace), inside[1:]
		} else if strings.HasPrefix(inside, "+") {
			inside = inside[1:]
		}
		if strings.HasSuffix(inside, "-") {
			strip, inside = true, inside[:len(inside)-1]
		}
		out = appendText(out, plain)
		if open == "{#" {
			continue
		}
		tokens, err := scan(inside)
		if err != nil {
			return nil, err
		}
		out = append(out, piece{open: open, tokens: tokens})
	}
	return out, nil
}

func appendText(out []piece, s string) []piece {
	if s == "" {
		return out
	}
	return append(out, piece{text: s})
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
			n, _, err := value.Unquote(inside[i:])
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
			n, s, err := value.Unquote(src[i:])
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
			i += numberEnd(src[i:])
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
var numbers = regexp.MustCompile(`^(0[xX](_?[0-9a-fA-F])+|0[oO](_?[0-7])+|0[bB](_?[01])+|[0-9](_?[0-9])*(\.[0-9](_?[0-9])*)?([eE][+-]?[0-9](_?[0-9])*)?)`)

func numberEnd(src string) int { return len(numbers.FindString(src)) }

func letter(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }
