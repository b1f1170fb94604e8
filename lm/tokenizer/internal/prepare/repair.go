package prepare

import "unicode/utf8"

// Repair replaces each invalid sequence by U+FFFD.
func Repair(p Piece, track bool) Piece {
	e := edit(p, track)
	from := 0
	for i := 0; i < len(p.Text); {
		r, n := utf8.DecodeRuneInString(p.Text[i:])
		if r == utf8.RuneError && n == 1 {
			n = invalidLen(p.Text[i:])
			e.keep(from, i)
			e.put("\uFFFD", i, i+n)
			from = i + n
		}

		i += n
	}

	e.keep(from, len(p.Text))
	return e.piece()
}

// invalidLen returns the length of the invalid sequence at the start of s: the longest prefix of a well-formed
// character that is there, at least 1 (the practice recommended by the Unicode standard, §3.9).
func invalidLen(s string) int {
	low := byte(0x80)
	high := byte(0xBF)
	n := 0
	switch b := s[0]; {
	case b >= 0xC2 && b <= 0xDF:
		n = 1
	case b >= 0xE0 && b <= 0xEF:
		n = 2
		if b == 0xE0 {
			low = 0xA0
		} else if b == 0xED {
			high = 0x9F
		}
	case b >= 0xF0 && b <= 0xF4:
		n = 3
		if b == 0xF0 {
			low = 0x90
		} else if b == 0xF4 {
			high = 0x8F
		}
	}

	i := 1
	for ; i <= n && i < len(s) && s[i] >= low && s[i] <= high; i++ {
		low, high = 0x80, 0xBF
	}

	return i
}
