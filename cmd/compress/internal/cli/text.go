package cli

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxLine is how many bytes of a line are shown, several screens of text: a name in a file may have any length.
const MaxLine = 8 << 10

// maxCell is the same for a cell of a table.
const maxCell = 1 << 10

// ShownLine makes text that may come from a stranger's file safe to show, as one line of at most [MaxLine] bytes:
// what a terminal would act on, not show, appears as \x1b and the like.
func ShownLine(text string) string {
	shown := shorten(text, MaxLine)
	if strings.ContainsFunc(shown, broken) {
		shown = strings.Join(strings.FieldsFunc(shown, broken), "; ")
	}
	return visible(shown)
}

func broken(r rune) bool { return r == '\n' || r == '\r' }

// Shown is Line for text of several lines, which stay, as tabs do. It is not shortened.
func Shown(text string) string { return visible(text) }

// shorten cuts a text after most bytes, says how many are missing, and keeps its end if that is a hint.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}

	hint := ""
	if i := strings.LastIndex(text, " (HINT: "); i >= 0 && len(text)-i <= most/2 {
		text, hint = text[:i], text[i:]
	}

	cut := most
	if len(text) <= most { // with its hint it is too long, so that the text gives way
		cut = most - len(hint)
	}

	for cut > 0 && !utf8.RuneStart(text[cut]) { // within a character
		cut--
	}

	return fmt.Sprintf("%s… (%d bytes more)%s", text[:cut], len(text)-cut, hint)
}

// visible replaces all that does not show as itself: control characters, what changes the direction of text or
// joins it invisibly, and bytes that are no UTF-8. Line breaks and tabs stay.
func visible(text string) string {
	clean := true
	for i, r := range text {
		if acts(r) || r == utf8.RuneError && isBroken(text[i:]) {
			clean = false
			break
		}
	}

	if clean {
		return text
	}

	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && isBroken(text[i:]):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case acts(r):
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
	}

	return b.String()
}

// ShownJSON gives a JSON text with the same values that is safe to show: encoding/json leaves characters as they are
// from U+007F on.
func ShownJSON(text []byte) []byte {
	if !bytes.ContainsFunc(text, acts) {
		return text
	}

	var out []byte
	for _, r := range string(text) {
		switch {
		case !acts(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}

	return out
}

// acts reports whether a terminal does something else with a character than to show it. Joiners within words
// and emojis stay.
func acts(r rune) bool {
	switch r {
	case '\n', '\t', '\u200c', '\u200d':
		return false
	case '\u2028', '\u2029': // line and paragraph separators
		return true
	}
	return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r)
}

// isBroken reports whether text begins with bytes that are no UTF-8, not with the character that stands for such.
func isBroken(text string) bool {
	_, size := utf8.DecodeRuneInString(text)
	return size <= 1
}

// SafeWriter is a writer for text that comes from a model or a file as a stream: it goes through out as [Shown] makes
// it. A character that is divided between two writes is shown by the second one.
func SafeWriter(out io.Writer) io.Writer { return &safe{out: out} }

type safe struct {
	out  io.Writer
	rest []byte // the beginning of a character
}

// Write implements [io.Writer].
func (s *safe) Write(p []byte) (int, error) {
	text := append(s.rest, p...)
	whole := len(text)
	for i := max(0, len(text)-utf8.UTFMax+1); i < len(text); i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			whole = i
			break
		}
	}

	s.rest = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(s.out, Shown(string(text[:whole]))); err != nil {
		return 0, err
	}

	return len(p), nil
}
