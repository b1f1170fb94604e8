package prepare

import (
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
)

// The split patterns that have scanners of their own. They are written in every tokenizer.json that uses them.
const (
	patternGPT2  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternQwen2 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternLlama = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// scanner returns the end of the match that begins at s[i]; its pattern matches at every place.
type scanner func(s string, i int) int

func scanners() map[string]scanner {
	return map[string]scanner{
		patternGPT2:  scanGPT2,
		patternQwen2: func(s string, i int) int { return scanLlama(s, i, 1) },
		patternLlama: func(s string, i int) int { return scanLlama(s, i, 3) },
	}
}

// Classes of characters in those patterns.
const (
	scanOther uint8 = iota
	scanLetter
	scanNumber
	scanSpace
	scanEnd // past the end of the text
)

// scanASCII is scanClass for ASCII.
var scanASCII = func() (t [utf8.RuneSelf]uint8) {
	for r := range t {
		switch c := rune(r); {
		case c|0x20 >= 'a' && c|0x20 <= 'z':
			t[r] = scanLetter
		case c >= '0' && c <= '9':
			t[r] = scanNumber
		case c == ' ' || c >= '\t' && c <= '\r':
			t[r] = scanSpace
		}
	}

	return t
}()

// scanClass returns the class and the length of the character at s[i].
func scanClass(s string, i int) (class uint8, size int) {
	if i >= len(s) {
		return scanEnd, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return scanASCII[b], 1
	}

	r, n := utf8.DecodeRuneInString(s[i:])
	switch set := chars.Of(r); {
	case set&chars.L != 0:
		return scanLetter, n
	case set&chars.N != 0:
		return scanNumber, n
	case set&chars.Space != 0:
		return scanSpace, n
	}

	return scanOther, n
}

// scanRun returns the end of the run of a class from s[i] on.
func scanRun(s string, i int, class uint8) int {
	for i < len(s) && s[i] < utf8.RuneSelf && scanASCII[s[i]] == class {
		i++
	}

	for {
		c, n := scanClass(s, i)
		if c != class {
			return i
		}
		i += n
	}
}

// contraction returns the length of 's, 't, 're, 've, 'm, 'll or 'd at s[i], 0 if there is none. With fold the case
// doesn't matter; ſ (U+017F) is then an s.
func contraction(s string, i int, fold bool) int {
	if s[i] != '\'' {
		return 0
	}

	var a, b byte
	if i+1 < len(s) {
		a = s[i+1]
	}
	if i+2 < len(s) {
		b = s[i+2]
	}
	if fold && a|0x20 >= 'a' && a|0x20 <= 'z' {
		a, b = a|0x20, b|0x20
	}

	switch {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	case fold && strings.HasPrefix(s[i+1:], "ſ"):
		return 3
	}

	return 0
}

// scanSpaces matches \s+(?!\S)|\s+: a run of white space, without its last character when text follows it and there is
// more than one.
func scanSpaces(s string, i int) int {
	end, last := i, i
	for {
		c, n := scanClass(s, end)
		if c != scanSpace {
			break
		}
		last = end
		end += n
	}

	if end < len(s) && last > i {
		return last
	}

	return end
}

func scanGPT2(s string, i int) int {
	if n := contraction(s, i, false); n > 0 {
		return i + n
	}

	class, n := scanClass(s, i)

	if s[i] == ' ' {
		if next, _ := scanClass(s, i+1); next != scanEnd && next != scanSpace {
			return scanRun(s, i+1, next)
		}
	}

	if class == scanSpace {
		return scanSpaces(s, i)
	}

	return scanRun(s, i+n, class)
}

// scanLlama matches the pattern of Llama 3 and, with runs of digits at most 1 long, that of Qwen2.
func scanLlama(s string, i, digits int) int {
	if n := contraction(s, i, true); n > 0 {
		return i + n
	}

	class, n := scanClass(s, i)
	if class == scanLetter {
		return scanRun(s, i+n, scanLetter)
	}
	if class == scanNumber {
		return scanDigits(s, i, digits)
	}

	if s[i] != '\r' && s[i] != '\n' {
		if next, _ := scanClass(s, i+n); next == scanLetter {
			return scanRun(s, i+n, scanLetter)
		}
	}

	j := i
	if s[i] == ' ' {
		j++
	}

	if next, _ := scanClass(s, j); next == scanOther {
		j = scanRun(s, j, scanOther)
		for j < len(s) && (s[j] == '\r' || s[j] == '\n') {
			j++
		}
		return j
	}

	return scanLines(s, i)
}

func scanDigits(s string, i, most int) int {
	for range most {
		class, n := scanClass(s, i)
		if class != scanNumber {
			break
		}
		i += n
	}
	return i
}

// scanLines matches \s*[\r\n]+|\s+(?!\S)|\s+ at white space.
func scanLines(s string, i int) int {
	end, newline := i, -1
	for {
		class, n := scanClass(s, end)
		if class != scanSpace {
			break
		}
		if s[end] == '\r' || s[end] == '\n' {
			newline = end + 1
		}

		end += n
	}

	if newline >= 0 {
		return newline
	}

	return scanSpaces(s, i)
}
