package tokenizer

import (
	"fmt"
	"unicode/utf8"
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

func (t *Tokenizer) buildAdded(v value) error {
	t.added.ids = map[string]int32{}
	if v.absent() {
		return nil
	}
	wrap := &node{fields: map[string]value{"added_tokens": v}}
	list := wrap.list("added_tokens")
	if wrap.err != nil {
		return wrap.err
	}
	size := len(t.tokens) + len(list)
	for _, n := range list {
		if err := t.addToken(n, size); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tokenizer) addToken(n *node, size int) error {
	content := n.need("content")
	id := n.integer("id", -1, -1<<62, 1<<62)
	a := addedToken{
		special: n.flag("special", false), singleWord: n.flag("single_word", false),
		leftStrip: n.flag("lstrip", false), rightStrip: n.flag("rstrip", false),
	}
	normalized := n.flag("normalized", !a.special)
	if n.err != nil {
		return n.err
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
	p := piece{text: content, first: true}
	for _, norm := range t.norm {
		var err error
		if p, err = norm.normalize(p, false); err != nil {
			return err
		}
	}
	t.added.normalized.add(p.text, a)
	return nil
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
func (s *addedSet) split(x *encoder, p piece, rest func(piece) error) error {
	from := 0
	for i := 0; i < len(p.text) && len(s.tokens) > 0; {
		if !s.first[p.text[i]] {
			i++
			continue
		}
		k, n := s.trie.longest(p.text[i:])
		if n == 0 {
			i++
			continue
		}
		a := s.tokens[k]
		start, stop := i, i+n
		i = stop
		if a.special && x.opts.SpecialAsText || a.singleWord && !aloneAt(p.text, start, stop) {
			continue
		}
		if a.leftStrip && from < start {
			start = from + trimRightSpace(p.text[from:start])
		}
		if a.rightStrip {
			stop = max(stop, from) // up to from all is white space already taken
			stop = len(p.text) - len(trimLeftSpace(p.text[stop:]))
		}
		if from < start {
			if err := rest(p.slice(from, start)); err != nil {
				return err
			}
		}
		x.emit(a.id, p, start, stop)
		from = stop
	}
	if from < len(p.text) {
		return rest(p.slice(from, len(p.text)))
	}
	return nil
}

// aloneAt reports whether no part of a word touches s[a:b].
func aloneAt(s string, a, b int) bool {
	before, n := utf8.DecodeLastRuneInString(s[:a])
	after, m := utf8.DecodeRuneInString(s[b:])
	return (n == 0 || !isWord(before)) && (m == 0 || !isWord(after))
}

func trimRightSpace(s string) int {
	for len(s) > 0 {
		r, n := utf8.DecodeLastRuneInString(s)
		if !isSpace(r) {
			break
		}
		s = s[:len(s)-n]
	}
	return len(s)
}

func trimLeftSpace(s string) string {
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if !isSpace(r) {
			break
		}
		s = s[n:]
	}
	return s
}
