package filter

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// ErrPattern: a pattern that cannot be used.
var ErrPattern = errors.New("bad pattern")

// Pattern is a pattern of Python's re.
type Pattern struct {
	re     *regexp.Regexp
	behind string         // text that must stand before a match
	ahead  *regexp.Regexp // what must follow a match, at its beginning
	dollar bool           // the pattern ends with $, which also holds before a line end at the end
}

// Compile translates a pattern.
func Compile(source string) (*Pattern, error) {
	p := &Pattern{}
	rest := source
	if tail, ok := strings.CutPrefix(rest, "(?<="); ok {
		end := strings.IndexByte(tail, ')')
		if end < 0 || strings.ContainsAny(tail[:end], `\.[(*+?{|^$`) {
			return nil, fmt.Errorf("%w %q: a look-behind must be plain text", ErrPattern, source)
		}
		p.behind, rest = tail[:end], tail[end+1:]
	}

	if at := strings.LastIndex(rest, "(?="); at >= 0 && strings.HasSuffix(rest, ")") {
		inner := rest[at+3 : len(rest)-1]
		if strings.ContainsAny(inner, "(*+?{|^$)") {
			return nil, fmt.Errorf("%w %q: a look-ahead must be plain text or single characters", ErrPattern, source)
		}

		re, err := regexp.Compile("^(?:" + translate(inner) + ")")
		if err != nil {
			return nil, fmt.Errorf("%w %q: %w", ErrPattern, source, err)
		}

		p.ahead, rest = re, rest[:at]
	}

	if strings.Contains(rest, "(?<=") || strings.Contains(rest, "(?<!") || strings.Contains(rest, "(?=") ||
		strings.Contains(rest, "(?!") {
		return nil, fmt.Errorf("%w %q: look-around other than a look-behind at the beginning and a "+
			"look-ahead at the end", ErrPattern, source)
	}

	p.dollar = strings.HasSuffix(rest, "$") && !strings.HasSuffix(rest, `\$`)
	re, err := regexp.Compile(translate(rest))
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrPattern, source, err)
	}

	p.re = re
	return p, nil
}

// classes are what \s, \d and \w stand for in Python, outside and inside of brackets.
var classes = map[byte][2]string{
	's': {`[\s\x{1c}-\x{1f}\x{85}\p{Z}]`, `\s\x{1c}-\x{1f}\x{85}\p{Z}`},
	'S': {`[^\s\x{1c}-\x{1f}\x{85}\p{Z}]`, ""},
	'd': {`\p{Nd}`, `\p{Nd}`},
	'D': {`\P{Nd}`, `\P{Nd}`},
	'w': {`[\p{L}\p{N}_]`, `\p{L}\p{N}_`},
	'W': {`[^\p{L}\p{N}_]`, ""},
}

// translate writes a pattern in Go's syntax.
func translate(p string) string {
	var b strings.Builder
	inside := false
	for i := 0; i < len(p); i++ {
		c := p[i]
		switch {
		case c == '\\' && i+1 < len(p):
			i++
			class, ok := classes[p[i]]
			switch {
			case ok && !inside:
				b.WriteString(class[0])
			case ok && class[1] != "":
				b.WriteString(class[1])
			case p[i] == 'Z':
				b.WriteString(`\z`)
			case strings.IndexByte("\"'#%&,/:;<=>@_`~! ", p[i]) >= 0: // Python lets anything be escaped
				b.WriteByte(p[i])
			default:
				b.WriteByte('\\')
				b.WriteByte(p[i])
			}
		case c == '$' && !inside && i == len(p)-1:
			b.WriteString(`\z`) // FindAll and RemoveAll see to a last line end
		default:
			if c == '[' && !inside {
				inside = true
			} else if c == ']' {
				inside = false
			}
			b.WriteByte(c)
		}
	}

	return b.String()
}

// Groups is the number of groups.
func (p *Pattern) Groups() int { return p.re.NumSubexp() }

// FindAll gives, for every match, its groups, or the whole where there are none: re.findall.
func (p *Pattern) FindAll(s string) [][]string {
	out := p.findAll(s)
	if line, ok := strings.CutSuffix(s, "\n"); ok && p.dollar && len(out) == 0 {
		return p.findAll(line)
	}
	return out
}

func (p *Pattern) findAll(s string) [][]string {
	if p.behind == "" && p.ahead == nil {
		return pick(p.re.FindAllStringSubmatch(s, -1))
	}

	var out [][]string
	for at := 0; at <= len(s); {
		m, end := p.next(s, at)
		if m == nil {
			break
		}

		out = append(out, m)
		if end == at {
			end += max(1, len(firstRune(s[at:])))
		}

		at = end
	}

	return pick(out)
}

func firstRune(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return s[:n]
}

// pick leaves the whole match out where there are groups.
func pick(all [][]string) [][]string {
	for i, m := range all {
		if len(m) > 1 {
			all[i] = m[1:]
		}
	}
	return all
}

// next finds the first match from a place on whose surroundings fit, and where it ends. What a match leaves to
// the look-ahead is found by shortening the text that it may take, as backtracking would.
func (p *Pattern) next(s string, from int) (match []string, end int) {
	for start := from; start <= len(s); start++ {
		if p.behind != "" {
			at := strings.Index(s[max(0, start-len(p.behind)):], p.behind)
			if at < 0 {
				return nil, 0
			}
			start = max(start, max(0, start-len(p.behind))+at+len(p.behind))
		}

		if loc := p.fits(s, start); loc != nil {
			return submatches(s, loc), loc[1]
		}
	}

	return nil, 0
}

// fits matches at a place, the longest text first.
func (p *Pattern) fits(s string, start int) []int {
	if start > len(s) {
		return nil
	}

	for stop := len(s); stop >= start; stop-- {
		if p.ahead != nil && !p.ahead.MatchString(s[stop:]) {
			continue
		}

		loc := p.re.FindStringSubmatchIndex(s[start:stop])
		if loc == nil || loc[0] != 0 || p.ahead != nil && loc[1] != stop-start {
			if p.ahead == nil {
				return nil
			}
			continue
		}

		for i := range loc {
			if loc[i] >= 0 {
				loc[i] += start
			}
		}

		return loc
	}

	return nil
}

func submatches(s string, loc []int) []string {
	out := make([]string, len(loc)/2)
	for i := range out {
		if loc[2*i] >= 0 {
			out[i] = s[loc[2*i]:loc[2*i+1]]
		}
	}
	return out
}

// RemoveAll takes every match out: re.sub(pattern, "", s).
func (p *Pattern) RemoveAll(s string) string {
	out := p.removeAll(s)
	if line, ok := strings.CutSuffix(s, "\n"); ok && p.dollar && out == s {
		return p.removeAll(line) + "\n"
	}
	return out
}

func (p *Pattern) removeAll(s string) string {
	if p.behind == "" && p.ahead == nil {
		return p.re.ReplaceAllString(s, "")
	}

	var b strings.Builder
	at := 0
	for at <= len(s) {
		_, end := p.next(s, at)
		if end <= at {
			break
		}
		b.WriteString(s[at:end])
		at = end
	}

	return b.String() + s[min(at, len(s)):]
}
