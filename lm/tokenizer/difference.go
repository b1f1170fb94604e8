package tokenizer

import "fmt"

// probe is a text whose cutting shows what a tokenizer does with words, spaces, digits, signs, lines and other scripts.
const probe = "The  first 12345 words weren't \"quoted\";\n\tThe next ones—naïve, Überraschung, 東京, привет—are: " +
	"f(x) = x**2 + 1.\n"

// Difference says in which way ids of the other tokenizer mean something else than those of this one, here and there
// in its words standing for the two; "" where every id stands for the same token and texts are cut alike. It looks at
// sizes, at every token, and at how a text is cut.
func (t *Tokenizer) Difference(other *Tokenizer) string {
	if t.hash == other.hash {
		return ""
	}

	differ := -1
	count := 0
	for id := range min(len(t.tokens), len(other.tokens)) {
		if t.tokens[id].text == other.tokens[id].text {
			continue
		}
		if count == 0 {
			differ = id
		}
		count++
	}

	sizes := ""
	if a, b := t.VocabSize(), other.VocabSize(); a != b {
		sizes = fmt.Sprintf("%d tokens here and %d there", a, b)
	}
	switch {
	case differ >= 0 && sizes != "":
		return fmt.Sprintf("%s; of the ids that both have %d are other tokens, such as %d: %q here and %q there", sizes,
			count, differ, t.tokens[differ].text, other.tokens[differ].text)
	case differ >= 0:
		return fmt.Sprintf("%d of %d ids are other tokens, such as %d: %q here and %q there", count, len(t.tokens),
			differ, t.tokens[differ].text, other.tokens[differ].text)
	case sizes != "":
		return sizes
	}

	here, err := t.Encode(probe, EncodeOptions{})
	if err != nil {
		return fmt.Sprintf("a text cannot be cut here: %v", err)
	}
	there, err := other.Encode(probe, EncodeOptions{})
	if err != nil {
		return fmt.Sprintf("a text cannot be cut there: %v", err)
	}
	for i := range max(len(here), len(there)) {
		if i >= len(here) || i >= len(there) || here[i] != there[i] {
			return fmt.Sprintf("the tokens are the same, but texts are cut otherwise: %d tokens here and %d there of "+
				"one text, from token %d on %q and %q", len(here), len(there), i,
				t.Decode(here[min(i, len(here)):min(i+3, len(here))], false),
				other.Decode(there[min(i, len(there)):min(i+3, len(there))], false))
		}
	}
	return ""
}
