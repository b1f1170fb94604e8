package chars

import (
	"unicode"
	"unicode/utf8"
)

// breakClass is what matters of a character for grapheme clusters (Unicode Standard Annex 29).
type breakClass uint8

const (
	breakOther breakClass = iota
	breakCR
	breakLF
	breakControl
	breakExtend
	breakJoiner
	breakPrepend
	breakSpacing
	breakRegional
	breakHangulL
	breakHangulV
	breakHangulT
	breakHangulLV
	breakHangulLVT
)

// ClusterLen returns the length in bytes of the first grapheme cluster of s, which is not empty.
func ClusterLen(s string) int {
	r, i := utf8.DecodeRuneInString(s)
	last := breakOf(r)
	regional := last == breakRegional // an odd number of regional indicators so far
	emoji := isPictograph(r)          // a pictograph, and marks behind it
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		class := breakOf(r)
		picture := isPictograph(r)
		if !joinsCluster(last, class) && !(class == breakRegional && regional) &&
			!(picture && emoji && last == breakJoiner) {
			return i
		}

		regional = class == breakRegional && !regional
		if class != breakExtend && class != breakJoiner {
			emoji = picture
		}

		last = class
		i += n
	}

	return i
}

// joinsCluster is rules GB3 to GB9b: whether there is no break between two classes.
func joinsCluster(a, b breakClass) bool {
	switch {
	case a == breakCR:
		return b == breakLF
	case a == breakLF || a == breakControl || b == breakCR || b == breakLF || b == breakControl:
		return false
	case b == breakExtend || b == breakJoiner || b == breakSpacing || a == breakPrepend:
		return true
	case a == breakHangulL:
		return b == breakHangulL || b == breakHangulV || b == breakHangulLV || b == breakHangulLVT
	case a == breakHangulLV || a == breakHangulV:
		return b == breakHangulV || b == breakHangulT
	case a == breakHangulLVT || a == breakHangulT:
		return b == breakHangulT
	}

	return false
}

func breakOf(r rune) breakClass {
	switch {
	case r == '\r':
		return breakCR
	case r == '\n':
		return breakLF
	case r < 0x7F:
		if r < ' ' {
			return breakControl
		}
		return breakOther
	case r == 0x200D:
		return breakJoiner
	case r >= 0x1100 && r <= 0x11FF || r >= 0xA960 && r <= 0xD7FB:
		return hangulBreak(r)
	case r >= 0x1F1E6 && r <= 0x1F1FF:
		return breakRegional
	case r == 0x200C || r >= 0x1F3FB && r <= 0x1F3FF || r >= 0xE0020 && r <= 0xE007F:
		return breakExtend
	case unicode.Is(unicode.Prepended_Concatenation_Mark, r):
		return breakPrepend
	}

	return breakByCategory(r)
}

func breakByCategory(r rune) breakClass {
	switch class := Of(r); {
	case class&(Mn|Me) != 0 || unicode.Is(unicode.Other_Grapheme_Extend, r):
		return breakExtend
	case class == Mc || r == 0xE33 || r == 0xEB3:
		if unicode.Is(notSpacing, r) {
			return breakOther
		}
		return breakSpacing
	case class&(Controls|Cf|Zl|Zp) != 0:
		return breakControl
	}

	if unicode.Is(prependLetters, r) {
		return breakPrepend
	}

	return breakOther
}

func hangulBreak(r rune) breakClass {
	switch {
	case r >= 0x1100 && r <= 0x115F || r >= 0xA960 && r <= 0xA97C:
		return breakHangulL
	case r >= 0x1160 && r <= 0x11A7 || r >= 0xD7B0 && r <= 0xD7C6:
		return breakHangulV
	case r >= 0x11A8 && r <= 0x11FF || r >= 0xD7CB:
		return breakHangulT
	case r >= 0xAC00 && r <= 0xD7A3:
		if (r-0xAC00)%28 == 0 {
			return breakHangulLV
		}
		return breakHangulLVT
	}

	return breakByCategory(r)
}

// isPictograph approximates Extended_Pictographic: symbols from U+2000 on, and ©, ®. The clusters that it decides are
// longer than any sequence of a character map.
func isPictograph(r rune) bool {
	return r == 0xA9 || r == 0xAE || r >= 0x203C && Of(r)&So != 0
}
