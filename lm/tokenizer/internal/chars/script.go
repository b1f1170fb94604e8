package chars

import (
	"sort"
	"sync"
	"unicode"
)

// scripts holds the number of each character's script; 0: none.
var scripts = sync.OnceValue(func() *[tableSize]uint8 {
	names := make([]string, 0, len(unicode.Scripts))
	for name := range unicode.Scripts {
		names = append(names, name)
	}

	sort.Strings(names)
	t := new([tableSize]uint8)
	for i, name := range names {
		fillTable(t, unicode.Scripts[name], uint8(i+4))
	}

	fillTable(t, unicode.Common, scriptCommon)
	fillTable(t, unicode.Inherited, scriptInherited)
	for _, name := range []string{"Hiragana", "Katakana"} {
		fillTable(t, unicode.Scripts[name], scriptHan)
	}

	fillTable(t, unicode.Scripts["Han"], scriptHan)
	t[0x30FC] = scriptHan
	t[' '] = 0

	return t
})

// Scripts with fixed numbers. scriptHan stands for Han and the Japanese syllabaries.
const (
	scriptHan = iota + 1
	scriptCommon
	scriptInherited
)

// Script numbers the script of a character; Han takes the Japanese syllabaries in. It is 0 for a space and for what has
// no script.
func Script(r rune) uint8 {
	switch {
	case uint32(r) < tableSize:
		return scripts()[r]
	case unicode.Is(unicode.Han, r):
		return scriptHan
	case unicode.Is(unicode.Inherited, r):
		return scriptInherited
	case unicode.Is(unicode.Common, r):
		return scriptCommon
	}

	return 0
}
