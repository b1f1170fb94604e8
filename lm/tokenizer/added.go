package tokenizer

import (
	"fmt"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// maxAdded bounds the length of an added token in bytes: matching looks at most that far ahead at each position.
const maxAdded = 1 << 10

// addedVocab holds the tokens that are cut out of a text before the model sees it.
type addedVocab struct {
	ids        map[string]int32
	plain      addedSet // looked for in the text as given
	normalized addedSet // looked for in the normalized text
}

// addedToken is an added token and how it matches.
type addedToken struct {
	id                    int32
	special               bool
	singleWord            bool // only between characters that are not part of a word
	leftStrip, rightStrip bool // takes the white space on that side with it
}

func (t *Tokenizer) buildAdded(v config.Value) error {
	t.added.ids = map[string]int32{}
	if v.Absent() {
		return nil
	}

	wrap := &config.Node{Fields: map[string]config.Value{"added_tokens": v}}
	list := wrap.List("added_tokens")
	if wrap.Err != nil {
		return wrap.Err
	}

	size := len(t.tokens) + len(list)
	for _, n := range list {
		if err := t.addToken(n, size); err != nil {
			return err
		}
	}

	return nil
}

func (t *Tokenizer) addToken(n *config.Node, size int) error {
	content := n.Need("content")
	id := n.Integer("id", -1, -1<<62, 1<<62)
	a := addedToken{
		special: n.Flag("special", false), singleWord: n.Flag("single_word", false),
		leftStrip: n.Flag("lstrip", false), rightStrip: n.Flag("rstrip", false),
	}

	normalized := n.Flag("normalized", !a.special)
	if n.Err != nil {
		return n.Err
	}
	if content == "" {
		return nil
	}
	if len(content) > maxAdded {
		return fmt.Errorf("%w: added token of %d bytes, at most %d", ErrUnsupported, len(content), maxAdded)
	}
	if own, ok := t.ids[content]; ok && int64(own) != id {
		return fmt.Errorf("%w: %q has id %d in the vocabulary and %d in added_tokens", ErrTokenID, content, own, id)
	}

	kind := tokenAdded
	if a.special {
		kind = tokenSpecial
	}
	if err := t.setToken(id, content, kind, size); err != nil {
		return err
	}

	a.id = int32(id)
	t.added.ids[content] = a.id

	if !normalized {
		t.added.plain.add(content, a)
		return nil
	}

	p, err := t.normalize(prepare.Piece{Text: content, First: true}, false)
	if err != nil {
		return err
	}

	t.tokens[id].text = p.Text // a token is what it matches, and decodes to that
	t.added.normalized.add(p.Text, a)
	return nil
}

func (t *Tokenizer) normalize(p prepare.Piece, track bool) (prepare.Piece, error) {
	for _, n := range t.norm {
		var err error
		if p, err = n.Normalize(p, track); err != nil {
			return p, err
		}
	}
	return p, nil
}

// addedSet is a trie of added tokens. The zero value is empty.
type addedSet struct {
	first  [256]bool
	trie   trie
	tokens []addedToken // by the trie's values
}

func (s *addedSet) add(text string, a addedToken) {
	if text == "" {
		return
	}
	s.first[text[0]] = true
	s.trie.insert(text, int32(len(s.tokens)))
	s.tokens = append(s.tokens, a)
}

// split emits the tokens of the set that p holds and calls rest with each stretch between them. Among the tokens that
// match at the leftmost place the longest one counts; the search goes on behind it, also when its word test fails.
func (s *addedSet) split(x *encoder, p prepare.Piece, rest func(prepare.Piece) error) error {
	from := 0
	for i := 0; i < len(p.Text) && len(s.tokens) > 0; {
		if !s.first[p.Text[i]] {
			i++
			continue
		}

		k, n := s.trie.longest(p.Text[i:])
		if n == 0 {
			i++
			continue
		}

		a := s.tokens[k]
		start, stop := i, i+n
		i = stop
		if a.special && x.opts.SpecialAsText || a.singleWord && !aloneAt(p.Text, start, stop) {
			continue
		}
		if a.leftStrip && from < start {
			start = from + chars.TrimRight(p.Text[from:start])
		}

		if a.rightStrip {
			stop = max(stop, from) // up to from all is white space already taken
			stop = len(p.Text) - len(chars.TrimLeft(p.Text[stop:]))
		}

		if from < start {
			if err := rest(p.Slice(from, start)); err != nil {
				return err
			}
		}

		x.emit(a.id, p, start, stop)
		from = stop
	}

	if from < len(p.Text) {
		return rest(p.Slice(from, len(p.Text)))
	}

	return nil
}

// aloneAt reports whether no part of a word touches s[a:b].
func aloneAt(s string, a, b int) bool {
	before, n := utf8.DecodeLastRuneInString(s[:a])
	after, m := utf8.DecodeRuneInString(s[b:])
	return (n == 0 || !chars.IsWord(before)) && (m == 0 || !chars.IsWord(after))
}
