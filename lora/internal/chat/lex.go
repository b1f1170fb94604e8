package chat

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// token is a piece of an expression or statement.
type token struct {
	kind tokenKind
	text string
	at   int // byte in the template
}

type tokenKind uint8

const (
	tEnd tokenKind = iota
	tName
	tString
	tNumber
	tOp
)

// piece is literal text, an expression {{ … }} or a statement {% … %}.
type piece struct {
	kind   byte // 't', 'e' or 's'
	text   string
	tokens []token
	at     int
}

// cut splits a template. A newline after a statement is removed, and blanks before one on its line, as the transformers library
// asks of Jinja (trim_blocks, lstrip_blocks); a minus sign removes all white space on its side.
func cut(src string) ([]piece, error) {
	var list []piece
	rest, at := src, 0
	trim, fresh := false, true
	text := func(s string, statement, minus bool) {
		if trim {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if minus {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		} else if statement {
			if line := strings.LastIndexByte(s, '\n'); line >= 0 || fresh {
				if strings.Trim(s[line+1:], " \t") == "" {
					s = s[:line+1]
				}
			}
		}
		if s != "" {
			list = append(list, piece{kind: 't', text: s})
		}
	}
	for {
		i := nextTag(rest)
		if i < 0 {
			text(rest, false, false)
			return list, nil
		}
		open := rest[i+1]
		body := rest[i+2:]
		minus := strings.HasPrefix(body, "-")
		body = strings.TrimPrefix(strings.TrimPrefix(body, "-"), "+")
		text(rest[:i], open != '{', minus)
		start := at + len(rest) - len(body)
		end, err := tagEnd(body, open)
		if err != nil {
			return nil, fmt.Errorf("byte %d: %w", at+i, err)
		}
		inner := body[:end]
		after := body[end+2:]
		trim = strings.HasSuffix(inner, "-")
		inner = strings.TrimSuffix(inner, "-")
		if open != '#' {
			tokens, err := lex(inner, start)
			if err != nil {
				return nil, err
			}
			list = append(list, piece{kind: map[byte]byte{'{': 'e', '%': 's'}[open], tokens: tokens, at: start})
		}
		fresh = false
		if open != '{' && !trim && strings.HasPrefix(after, "\n") {
			after, fresh = after[1:], true
		}
		at += len(rest) - len(after)
		rest = after
	}
}

// nextTag finds the start of the next tag, -1 if there is none.
func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// tagEnd finds where a tag closes; closing signs inside texts do not count.
func tagEnd(s string, open byte) (int, error) {
	closing := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[open]
	depth := 0
	for i := 0; i < len(s); i++ {
		if strings.HasPrefix(s[i:], closing) && depth == 0 {
			return i, nil
		}
		if open == '#' {
			continue
		}
		switch c := s[i]; c {
		case '\'', '"':
			for i++; i < len(s) && s[i] != c; i++ {
				if s[i] == '\\' {
					i++
				}
			}
		case '{':
			depth++
		case '}':
			depth = max(depth-1, 0)
		}
	}
	return 0, fmt.Errorf("a tag is not closed by %s", closing)
}

// lex splits the inside of a tag.
func lex(s string, at int) ([]token, error) {
	var list []token
	for i := 0; i < len(s); {
		c, width := utf8.DecodeRuneInString(s[i:])
		start := i
		switch {
		case unicode.IsSpace(c):
			i += width
			continue
		case c == '\'' || c == '"':
			text, n, err := quoted(s[i:])
			if err != nil {
				return nil, fmt.Errorf("byte %d: %w", at+i, err)
			}
			i += n
			list = append(list, token{tString, text, at + start})
			continue
		case unicode.IsLetter(c) || c == '_':
			for i < len(s) && (s[i] == '_' || s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'z' || s[i] >= 'A' && s[i] <= 'Z') {
				i++
			}
			if i == start {
				return nil, fmt.Errorf("byte %d: unexpected %q", at+i, c)
			}
			list = append(list, token{tName, s[start:i], at + start})
			continue
		case c >= '0' && c <= '9':
			for i < len(s) && s[i] >= '0' && s[i] <= '9' {
				i++
			}
			list = append(list, token{tNumber, s[start:i], at + start})
			continue
		}
		op := ""
		for _, o := range []string{"==", "!=", "<=", ">=", "//", "**"} {
			if strings.HasPrefix(s[i:], o) {
				op = o
			}
		}
		if op == "" && strings.ContainsRune("+-*/%~<>=()[]{},.:|", c) {
			op = string(c)
		}
		if op == "" {
			return nil, fmt.Errorf("byte %d: unexpected %q", at+i, c)
		}
		i += len(op)
		list = append(list, token{tOp, op, at + start})
	}
	return append(list, token{tEnd, "", at + len(s)}), nil
}

// quoted reads a text in quotes and says how long it is in the template.
func quoted(s string) (string, int, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case s[0]:
			return b.String(), i + 1, nil
		case '\\':
			i++
			if i == len(s) {
				break
			}
			if r, ok := map[byte]byte{'n': '\n', 't': '\t', 'r': '\r'}[s[i]]; ok {
				b.WriteByte(r)
			} else if strings.IndexByte(`\'"`, s[i]) >= 0 {
				b.WriteByte(s[i])
			} else {
				b.WriteString(s[i-1 : i+1])
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return "", 0, fmt.Errorf("a text in quotes does not end")
}
