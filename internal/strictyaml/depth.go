package strictyaml

import (
	"strings"

	"github.com/goccy/go-yaml/token"
)

// tooManySigns reports whether a text has more of the signs that open a level than a file may have words and signs:
// each costs the lexer some two hundred bytes, and a megabyte of them should cost nothing.
func tooManySigns(text string, most int) bool {
	n := 0
	for _, sign := range []string{"[", "{", ": ", "- ", "? "} {
		n += strings.Count(text, sign)
	}
	return n > most
}

// tooDeep gives the first word or sign at which lists and maps are within each other more than limit deep, nil if
// there is none. The YAML parser descends once per level, without a bound of its own, so this is asked before it runs.
//
// In blocks a level is open as long as what follows stands to the right of it, and its entries stand below each other.
// In brackets it is open until its end, however many entries it has: JSON on one line is as deep as the same document
// in blocks.
func tooDeep(tokens token.Tokens, limit int) *token.Token {
	var blocks []level
	var brackets []bracket
	pairs := 0 // brackets with an open pair

	for i, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets = append(brackets, bracket{list: t.Type == token.SequenceStartType})
		case token.SequenceEndType, token.MappingEndType:
			if n := len(brackets); n > 0 {
				if brackets[n-1].pair {
					pairs--
				}
				brackets = brackets[:n-1]
			}
		case token.CollectEntryType:
			if n := len(brackets); n > 0 && brackets[n-1].pair {
				brackets[n-1].pair = false
				pairs--
			}
		case token.MappingValueType, token.MappingKeyType, token.SequenceEntryType:
			if n := len(brackets); n > 0 {
				if top := &brackets[n-1]; top.list && !top.pair { // [a: b] is a list of a map
					top.pair = true
					pairs++
				}
				break
			}

			blocks = open(blocks, levelAt(tokens, i))
		}

		if len(blocks)+len(brackets)+pairs > limit {
			return t
		}
	}

	return nil
}

// bracket is an open list or map in brackets.
type bracket struct{ list, pair bool }

// level is an open list or map in blocks, and the column that its entries begin at.
type level struct {
	column int
	list   bool
}

// levelAt is the level that a sign belongs to: a map's begins where its key does.
func levelAt(tokens token.Tokens, i int) level {
	t := tokens[i]
	at := level{column: t.Position.Column, list: t.Type == token.SequenceEntryType}
	if t.Type != token.MappingValueType || i == 0 {
		return at
	}
	if key := tokens[i-1]; key.Position.Line == t.Position.Line {
		at.column = key.Position.Column
	}
	return at
}

// open closes the levels that an entry is not within, and opens its own unless it is open. A list may stand at the
// column of the key that it belongs to.
func open(levels []level, at level) []level {
	for n := len(levels); n > 0; n-- {
		top := levels[n-1]
		if top == at {
			return levels[:n]
		}
		if top.column < at.column || top.column == at.column && at.list {
			return append(levels[:n], at)
		}
	}

	return append(levels[:0], at)
}
