package tokenizer

import (
	"fmt"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// wordPiece takes the longest token at the front of a word, then the longest continuation, and so on; a word that
// cannot be completed is unknown as a whole (Wu et al. 2016).
type wordPiece struct {
	tokens  trie
	inside  int32 // where continuations hang in the trie
	hasCont bool  // there are any
	maxLen  int   // characters of a word
	unk     int32
	unkName string
}

func buildWordPiece(t *Tokenizer, n *config.Node) (model, error) {
	if err := t.readVocab(n); err != nil {
		return nil, err
	}

	m := &wordPiece{unkName: n.Text("unk_token", "[UNK]")}
	m.maxLen = int(n.Integer("max_input_chars_per_word", 100, 0, maxText))
	m.unk = lookup(t.ids, m.unkName)

	for s, id := range t.ids {
		if s != "" {
			m.tokens.insert(s, id)
		}
	}

	if len(t.ids) > 0 {
		m.inside, m.hasCont = m.tokens.walk(0, n.Text("continuing_subword_prefix", "##"))
	}

	return m, n.Err
}

func (m *wordPiece) tokenize(x *encoder, p prepare.Piece) error {
	if x.track {
		return m.word(x, p)
	}

	slot, hit := x.cache.slot(p.Text)
	if hit {
		x.ids = append(x.ids, slot.ids[:slot.n]...)
		return nil
	}

	n := len(x.ids)
	if err := m.word(x, p); err != nil {
		return err
	}

	slot.put(p.Text, x.ids[n:])
	return nil
}

func (m *wordPiece) word(x *encoder, p prepare.Piece) error {
	ids, spans := len(x.ids), len(x.spans)
	if len(p.Text) > m.maxLen && utf8.RuneCountInString(p.Text) > m.maxLen {
		return m.unknown(x, p)
	}

	for i := 0; i < len(p.Text); {
		node := int32(0)
		if i > 0 {
			node = m.inside
		}

		id, n := m.tokens.longestFrom(node, p.Text[i:])
		if n == 0 || i > 0 && !m.hasCont {
			x.ids = x.ids[:ids]
			if x.track {
				x.spans = x.spans[:spans]
			}
			return m.unknown(x, p)
		}

		x.emit(id, p, i, i+n)
		i += n
	}

	return nil
}

func (m *wordPiece) unknown(x *encoder, p prepare.Piece) error {
	if m.unk < 0 {
		return fmt.Errorf("%w: the unknown token %q is not in the vocabulary", ErrNoUnknown, m.unkName)
	}
	x.emit(m.unk, p, 0, len(p.Text))
	return nil
}

// wordLevel looks whole words up.
type wordLevel struct {
	ids     map[string]int32
	unk     int32
	unkName string
}

func buildWordLevel(t *Tokenizer, n *config.Node) (model, error) {
	if err := t.readVocab(n); err != nil {
		return nil, err
	}
	name := n.Text("unk_token", "<unk>")
	return &wordLevel{t.ids, lookup(t.ids, name), name}, n.Err
}

func (m *wordLevel) tokenize(x *encoder, p prepare.Piece) error {
	id, ok := m.ids[p.Text]
	if !ok {
		id = m.unk
	}
	if id < 0 {
		return fmt.Errorf("%w: %q, and the unknown token %q is not in the vocabulary", ErrNoUnknown, p.Text, m.unkName)
	}
	x.emit(id, p, 0, len(p.Text))
	return nil
}
