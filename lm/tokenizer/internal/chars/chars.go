// Package chars knows what tokenizers ask about characters: general categories, white space, parts of words,
// punctuation, scripts and grapheme clusters.
package chars

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// Set is a set of general Categories, one bit each.
type Set uint32

// General Categories of Unicode. Control characters that are white space get a bit of their own, so that white space
// is a union of bits too.
const (
	Cn Set = 1 << iota
	Lu
	Ll
	Lt
	Lm
	Lo
	Mn
	Mc
	Me
	Nd
	Nl
	No
	Pc
	Pd
	Ps
	Pe
	Pi
	Pf
	Po
	Sm
	Sc
	Sk
	So
	Zs
	Zl
	Zp
	Cc
	Cf
	Co
	Cs
	SpaceControl // \t \n \v \f \r U+0085, which are Cc

	L        = Lu | Ll | Lt | Lm | Lo
	M        = Mn | Mc | Me
	N        = Nd | Nl | No
	P        = Pc | Pd | Ps | Pe | Pi | Pf | Po
	S        = Sm | Sc | Sk | So
	Z        = Zs | Zl | Zp
	Controls = Cc | SpaceControl
	C        = Controls | Cf | Co | Cs | Cn
	Space    = Z | SpaceControl
)

// Categories lists the general Categories by their names in patterns.
func Categories() map[string]Set {
	return map[string]Set{
		"L": L, "Lu": Lu, "Ll": Ll, "Lt": Lt, "Lm": Lm, "Lo": Lo,
		"M": M, "Mn": Mn, "Mc": Mc, "Me": Me,
		"N": N, "Nd": Nd, "Nl": Nl, "No": No,
		"P": P, "Pc": Pc, "Pd": Pd, "Ps": Ps, "Pe": Pe, "Pi": Pi, "Pf": Pf, "Po": Po,
		"S": S, "Sm": Sm, "Sc": Sc, "Sk": Sk, "So": So,
		"Z": Z, "Zs": Zs, "Zl": Zl, "Zp": Zp,
		"C": C, "Cc": Controls, "Cf": Cf, "Co": Co, "Cs": Cs, "Cn": Cn,
	}
}

// tableSize covers the basic and the first supplementary plane; beyond them lie ideographs and little else.
const tableSize = 0x20000

// categoryTable holds the bit number of each character's category.
var categoryTable = sync.OnceValue(func() *[tableSize]uint8 {
	t := new([tableSize]uint8)
	for name, set := range Categories() {
		if len(name) == 2 && set&(set-1) == 0 && set != Cn {
			fillTable(t, unicode.Categories[name], bitOf(set))
		}
	}

	fillTable(t, unicode.Cc, bitOf(Cc))
	for _, r := range "\t\n\v\f\r\u0085" {
		t[r] = bitOf(SpaceControl)
	}

	return t
})

func bitOf(set Set) uint8 {
	n := uint8(0)
	for ; set > 1; set >>= 1 {
		n++
	}
	return n
}

func fillTable(t *[tableSize]uint8, rt *unicode.RangeTable, bit uint8) {
	for _, r := range rt.R16 {
		for c := uint32(r.Lo); c <= uint32(r.Hi); c += uint32(r.Stride) {
			t[c] = bit
		}
	}

	for _, r := range rt.R32 {
		for c := r.Lo; c <= r.Hi && c < tableSize; c += r.Stride {
			t[c] = bit
		}
	}
}

// Of returns the bit of a character's general category.
func Of(r rune) Set {
	if uint32(r) < tableSize {
		return 1 << categoryTable()[r]
	}

	for _, c := range [...]struct {
		table *unicode.RangeTable
		set   Set
	}{{unicode.Lo, Lo}, {unicode.Co, Co}, {unicode.Mn, Mn}, {unicode.Cf, Cf}} {
		if unicode.Is(c.table, r) {
			return c.set
		}
	}

	return Cn
}

// IsSpace reports whether r is white space.
func IsSpace(r rune) bool { return unicode.IsSpace(r) }

// IsWord is \w as the regular expressions of Unicode (UTS #18) define it.
func IsWord(r rune) bool { return IsPlainWord(r) || r == '\u200C' || r == '\u200D' }

// IsPlainWord is IsWord without the two joiners.
func IsPlainWord(r rune) bool {
	if r < utf8.RuneSelf {
		return r == '_' || r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z'
	}
	return Of(r)&(L|M|Nd|Nl|Pc) != 0 || unicode.Is(unicode.Other_Alphabetic, r)
}

// IsPunctuation is true for ASCII punctuation and symbols and for the categories P* of an older Unicode.
func IsPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return r > ' ' && r < 0x7F && !(r >= '0' && r <= '9') && !(r|0x20 >= 'a' && r|0x20 <= 'z')
	}
	return Of(r)&P != 0 && !unicode.Is(latePunctuation, r) || r == 0x166D || r == 0x111C9
}

// RuneLen returns the length in bytes of the character at s[i].
func RuneLen(s string, i int) int {
	if s[i] < utf8.RuneSelf {
		return 1
	}
	_, n := utf8.DecodeRuneInString(s[i:])
	return n
}

// TrimRight returns the length of s without the white space at its end.
func TrimRight(s string) int {
	for len(s) > 0 {
		r, n := utf8.DecodeLastRuneInString(s)
		if !IsSpace(r) {
			break
		}
		s = s[:len(s)-n]
	}
	return len(s)
}

// TrimLeft returns s without the white space at its start.
func TrimLeft(s string) string {
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if !IsSpace(r) {
			break
		}
		s = s[n:]
	}
	return s
}
