package safetensors

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of JSON values, as the reference implementation does.
const maxDepth = 128

// scanner walks over JSON text that is known to be valid UTF-8. It never looks back, and
// its errors carry offsets in the file, base being where the text starts there.
type scanner struct {
	text []byte
	pos  int
	base int64
}

// fail makes an error at the current position.
func (s *scanner) fail(err error, format string, args ...any) error {
	return fault(err, s.base+int64(s.pos), format, args...)
}

// peek skips white space and gives the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.pos < len(s.text); s.pos++ {
		switch s.text[s.pos] {
		case ' ', '\t', '\n', '\r':
		default:
			return s.text[s.pos]
		}
	}
	return 0
}

// expect consumes the byte c after white space.
func (s *scanner) expect(c byte) error {
	if got := s.peek(); got != c || s.pos == len(s.text) {
		return s.unexpected(string(rune(c)))
	}
	s.pos++
	return nil
}

// unexpected says what stands where something else was wanted.
func (s *scanner) unexpected(want string) error {
	if s.pos >= len(s.text) {
		return s.fail(ErrInvalidJSON, "ends where %s is expected", want)
	}
	r, _ := utf8.DecodeRune(s.text[s.pos:])
	return s.fail(ErrInvalidJSON, "%q where %s is expected", r, want)
}

// end checks that only white space is left.
func (s *scanner) end() error {
	s.peek()
	if s.pos < len(s.text) {
		return s.unexpected("the end")
	}
	return nil
}

// object walks over an object and calls member for each key, with the scanner before the
// value, which member must consume. Equal keys are refused.
func (s *scanner) object(member func(key string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}

	if s.peek() == '}' {
		s.pos++
		return nil
	}

	var seen keySet
	for {
		s.peek()
		at := s.pos
		key, err := s.str()
		if err != nil {
			return err
		}

		if !seen.add(key) {
			s.pos = at
			return s.fail(ErrDuplicateKey, "%q", clip(key))
		}

		if err := s.expect(':'); err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if more, err := s.more('}'); !more {
			return err
		}
	}
}

// array walks over an array and calls element before each value, which element must consume.
func (s *scanner) array(element func() error) error {
	if err := s.expect('['); err != nil {
		return err
	}

	if s.peek() == ']' {
		s.pos++
		return nil
	}

	for {
		if err := element(); err != nil {
			return err
		}
		if more, err := s.more(']'); !more {
			return err
		}
	}
}

// more consumes the comma before a further member, or the closing bracket.
func (s *scanner) more(closing byte) (bool, error) {
	switch c := s.peek(); {
	case c == ',':
		s.pos++
		return true, nil
	case c == closing && s.pos < len(s.text):
		s.pos++
		return false, nil
	default:
		return false, s.unexpected("',' or '" + string(rune(closing)) + "'")
	}
}

// str reads a string.
func (s *scanner) str() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}

	var decoded []byte // what precedes start; nil as long as there was no escape
	for start := s.pos; s.pos < len(s.text); {
		switch c := s.text[s.pos]; {
		case c == '"':
			raw := s.text[start:s.pos]
			s.pos++
			if decoded == nil {
				return intern(raw), nil
			}
			return string(append(decoded, raw...)), nil
		case c == '\\':
			decoded = append(decoded, s.text[start:s.pos]...)
			s.pos++
			r, err := s.escape()
			if err != nil {
				return "", err
			}

			decoded = utf8.AppendRune(decoded, r)
			start = s.pos
		case c < ' ':
			return "", s.fail(ErrInvalidJSON, "control character %#02x in a string", c)
		default:
			s.pos++
		}
	}

	return "", s.unexpected("the end of a string")
}

// intern makes a string of b, without allocating for the words that every entry has.
func intern(b []byte) string {
	for _, word := range [...]string{"dtype", "shape", "data_offsets", "BF16", "F16", "F32"} {
		if string(b) == word {
			return word
		}
	}
	return string(b)
}

// escape reads what follows a backslash.
func (s *scanner) escape() (rune, error) {
	if s.pos == len(s.text) {
		return 0, s.unexpected("an escape")
	}

	c := s.text[s.pos]
	if c == 'u' {
		s.pos++
		return s.unicode()
	}

	from, to := `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	i := strings.IndexByte(from, c)
	if i < 0 {
		return 0, s.unexpected("an escape")
	}

	s.pos++
	return rune(to[i]), nil
}

// unicode reads the digits of a \u escape, and the second half of a surrogate pair.
func (s *scanner) unicode() (rune, error) {
	r, err := s.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}

	at := s.pos
	if strings.HasPrefix(string(s.text[at:min(at+2, len(s.text))]), `\u`) {
		s.pos += 2
		low, err := s.hex4()
		if err != nil {
			return 0, err
		}

		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, nil
		}
	}

	s.pos = at
	return 0, s.fail(ErrInvalidJSON, "half a surrogate pair")
}

func (s *scanner) hex4() (rune, error) {
	digits := s.text[s.pos:min(s.pos+4, len(s.text))]
	r, err := strconv.ParseUint(string(digits), 16, 16)
	if err != nil || len(digits) < 4 {
		return 0, s.fail(ErrInvalidJSON, "%q where four hexadecimal digits are expected", digits)
	}
	s.pos += 4
	return rune(r), nil
}

// whole reads a whole number from 0 to 2^63-1; a larger one gives the error tooLarge, any
// other value malformed.
func (s *scanner) whole(malformed, tooLarge error) (int64, error) {
	s.peek()
	literal := s.literalNumber()
	if len(literal) == 0 {
		return 0, s.fail(malformed, "a whole number is expected")
	}

	var n int64
	for _, c := range literal {
		digit := int64(c - '0')
		if c < '0' || c > '9' || literal[0] == '0' && len(literal) > 1 {
			return 0, s.fail(malformed, "%s where a whole number is expected", clip(string(literal)))
		}
		if n > (math.MaxInt64-digit)/10 {
			return 0, s.fail(tooLarge, "%s", clip(string(literal)))
		}

		n = n*10 + digit
	}

	s.pos += len(literal)
	return n, nil
}

// literalNumber gives the bytes from here on that can be part of a number.
func (s *scanner) literalNumber() []byte {
	end := s.pos
	for end < len(s.text) && strings.IndexByte("+-.0123456789eE", s.text[end]) >= 0 {
		end++
	}
	return s.text[s.pos:end]
}

// number consumes a number by JSON's grammar.
func (s *scanner) number() error {
	literal := s.literalNumber()
	if !json.Valid(literal) {
		return s.fail(ErrInvalidJSON, "%s is no number", clip(string(literal)))
	}
	s.pos += len(literal)
	return nil
}

// skip consumes any value, depth levels deep already.
func (s *scanner) skip(depth int) error {
	if depth >= maxDepth {
		return s.fail(ErrInvalidJSON, "nested more than %d levels deep", maxDepth)
	}

	switch c := s.peek(); {
	case c == '{':
		return s.object(func(string) error { return s.skip(depth + 1) })
	case c == '[':
		return s.array(func() error { return s.skip(depth + 1) })
	case c == '"':
		_, err := s.str()
		return err
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	}

	for _, word := range []string{"null", "true", "false"} {
		if s.literal(word) {
			return nil
		}
	}

	return s.unexpected("a value")
}

// literal consumes word after white space, if it stands there.
func (s *scanner) literal(word string) bool {
	s.peek()
	if !strings.HasPrefix(string(s.text[s.pos:min(s.pos+len(word), len(s.text))]), word) {
		return false
	}
	s.pos += len(word)
	return true
}

// keySet finds equal keys; a few are kept in a list, more in a map.
type keySet struct {
	few  [8]string
	n    int
	many map[string]struct{}
}

// add reports whether key is new.
func (k *keySet) add(key string) bool {
	if slices.Contains(k.few[:k.n], key) {
		return false
	}

	if k.n < len(k.few) {
		k.few[k.n] = key
		k.n++
		return true
	}

	if k.many == nil {
		k.many = map[string]struct{}{}
	}

	before := len(k.many)
	k.many[key] = struct{}{}
	return len(k.many) > before
}
