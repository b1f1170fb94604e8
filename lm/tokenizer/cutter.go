package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// spaceMark is the character that stands for a space in SentencePiece vocabularies.
const spaceMark = "▁"

// cutter finds places in front of a space mark where a text can be cut before merging without changing the result: no
// token that a merge makes contains the two characters around the cut, so no merge can ever cross it, and merges on
// the two sides don't see each other. It turns a whole text into words that the cache knows.
type cutter struct {
	on      bool
	blocked map[rune]bool // characters that some merged token has in front of a space mark
}

// newCutter decides by the merges. Symbols that are not the characters of the text (bytes, the unknown token) and
// symbols with a prefix or suffix void the argument, so their merges switch cutting off.
func (m *bpe) newCutter(pairs [][2]string) cutter {
	if lookup(m.ids, spaceMark) < 0 || m.prefix != "" || m.suffix != "" {
		return cutter{}
	}

	foreign := map[string]bool{m.unkName: true}
	if m.byteFallback {
		for b := range 256 {
			foreign[byteToken(byte(b))] = true
		}
	}

	c := cutter{true, map[rune]bool{}}
	for _, p := range pairs {
		if foreign[p[0]] || foreign[p[1]] {
			return cutter{}
		}
		c.block(p[0] + p[1])
	}

	return c
}

func (c *cutter) block(token string) {
	for i := 1; i < len(token); i++ {
		k := strings.Index(token[i:], spaceMark)
		if k < 0 {
			return
		}
		i += k
		r, _ := utf8.DecodeLastRuneInString(token[:i])
		c.blocked[r] = true
	}
}

// next returns the first cut after from, len(s) if there is none.
func (c *cutter) next(s string, from int) int {
	for i := from + 1; i < len(s); i++ {
		k := strings.Index(s[i:], spaceMark)
		if k < 0 {
			break
		}

		i += k
		if r, _ := utf8.DecodeLastRuneInString(s[from:i]); !c.blocked[r] {
			return i
		}
	}

	return len(s)
}
