package tokenizer

import "unicode"

// scriptSplit cuts where the script changes; white space goes with what it follows.
type scriptSplit struct{}

func (scriptSplit) split(_ *encoder, p piece, emit func(piece) error) error {
	from, last := -1, ""
	for i, r := range p.text {
		script := scriptOf(r)
		if script == "" {
			continue
		}
		if script != last {
			if from >= 0 {
				if err := emit(p.slice(from, i)); err != nil {
					return err
				}
			}
			from = i
		}
		last = script
	}
	if from < 0 {
		return nil
	}
	return emit(p.slice(from, len(p.text)))
}

// scriptOf names the script of a character; "" for a space, which belongs to any. The Japanese syllabaries count as
// Han, and inherited characters as common ones.
func scriptOf(r rune) string {
	switch {
	case r == ' ':
		return ""
	case r == 0x30FC:
		return "Han"
	case r < 0x80:
		if r|0x20 >= 'a' && r|0x20 <= 'z' {
			return "Latin"
		}
		return "Common"
	}
	for name, table := range unicode.Scripts {
		if unicode.Is(table, r) {
			switch name {
			case "Hiragana", "Katakana":
				return "Han"
			}
			return name
		}
	}
	return "Unknown"
}
