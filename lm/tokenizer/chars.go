package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// charSet is a set of general categories, one bit each.
type charSet uint32

// General categories of Unicode. Control characters that are white space get a bit of their own, so that white space
// is a union of bits too.
const (
	catCn charSet = 1 << iota
	catLu
	catLl
	catLt
	catLm
	catLo
	catMn
	catMc
	catMe
	catNd
	catNl
	catNo
	catPc
	catPd
	catPs
	catPe
	catPi
	catPf
	catPo
	catSm
	catSc
	catSk
	catSo
	catZs
	catZl
	catZp
	catCc
	catCf
	catCo
	catCs
	catSpaceControl // \t \n \v \f \r U+0085, which are Cc

	setL     = catLu | catLl | catLt | catLm | catLo
	setM     = catMn | catMc | catMe
	setN     = catNd | catNl | catNo
	setP     = catPc | catPd | catPs | catPe | catPi | catPf | catPo
	setS     = catSm | catSc | catSk | catSo
	setZ     = catZs | catZl | catZp
	setCc    = catCc | catSpaceControl
	setC     = setCc | catCf | catCo | catCs | catCn
	setSpace = setZ | catSpaceControl
)

// categories lists the general categories by their names in patterns.
func categories() map[string]charSet {
	return map[string]charSet{
		"L": setL, "Lu": catLu, "Ll": catLl, "Lt": catLt, "Lm": catLm, "Lo": catLo,
		"M": setM, "Mn": catMn, "Mc": catMc, "Me": catMe,
		"N": setN, "Nd": catNd, "Nl": catNl, "No": catNo,
		"P": setP, "Pc": catPc, "Pd": catPd, "Ps": catPs, "Pe": catPe, "Pi": catPi, "Pf": catPf, "Po": catPo,
		"S": setS, "Sm": catSm, "Sc": catSc, "Sk": catSk, "So": catSo,
		"Z": setZ, "Zs": catZs, "Zl": catZl, "Zp": catZp,
		"C": setC, "Cc": setCc, "Cf": catCf, "Co": catCo, "Cs": catCs, "Cn": catCn,
	}
}

// tableSize covers the basic and the first supplementary plane; beyond them lie ideographs and little else.
const tableSize = 0x20000

// categoryTable holds the bit number of each character's category.
var categoryTable = sync.OnceValue(func() *[tableSize]uint8 {
	t := new([tableSize]uint8)
	for name, set := range categories() {
		if len(name) == 2 && set&(set-1) == 0 && set != catCn {
			fillTable(t, unicode.Categories[name], bitOf(set))
		}
	}
	fillTable(t, unicode.Cc, bitOf(catCc))
	for _, r := range "\t\n\v\f\r\u0085" {
		t[r] = bitOf(catSpaceControl)
	}
	return t
})

func bitOf(set charSet) uint8 {
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

// classOf returns the bit of a character's general category.
func classOf(r rune) charSet {
	if uint32(r) < tableSize {
		return 1 << categoryTable()[r]
	}
	for _, c := range [...]struct {
		table *unicode.RangeTable
		set   charSet
	}{{unicode.Lo, catLo}, {unicode.Co, catCo}, {unicode.Mn, catMn}, {unicode.Cf, catCf}} {
		if unicode.Is(c.table, r) {
			return c.set
		}
	}
	return catCn
}

func isSpace(r rune) bool { return unicode.IsSpace(r) }

// isWord is \w as the regular expressions of Unicode (UTS #18) define it.
func isWord(r rune) bool { return isWordish(r) || r == '\u200C' || r == '\u200D' }

// isWordish is isWord without the two joiners.
func isWordish(r rune) bool {
	if r < utf8.RuneSelf {
		return r == '_' || r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z'
	}
	return classOf(r)&(setL|setM|catNd|catNl|catPc) != 0 || unicode.Is(unicode.Other_Alphabetic, r)
}
