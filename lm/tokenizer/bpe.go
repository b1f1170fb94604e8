package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// shortWord is the number of symbols up to which merging by repeated scans beats the heap.
const shortWord = 40

// bpe is byte-pair encoding: a word starts as its characters (or bytes) and the adjacent pair with the lowest rank is
// merged, the leftmost first among equals, until no pair of the table is left (Sennrich, Haddow, Birch 2016).
type bpe struct {
	ids          map[string]int32
	merges       pairTable
	bytes        [256]int32 // id of each byte, for raw and for byteFallback
	raw          bool       // words are bytes, not the characters that stand for them
	ascii        [128]int32 // id of each ASCII character; -1: none
	prefix       string     // before every symbol of a word but the first
	suffix       string     // after the last symbol
	unk          int32      // -1: no unknown token
	unkName      string
	fuseUnk      bool
	byteFallback bool
	takeWhole    bool // ignore_merges: a word that is a token stays whole
	longest      int  // bytes of the longest token
	cut          cutter
}

// symbol is a part of a word during merging. rank and merged belong to the pair of this symbol and the next one.
type symbol struct {
	id, rank, merged int32
	start, end       int32 // bytes of the word
	prev, next       int32 // used with the heap only
}

const noRank = math.MaxInt32

func buildBPE(t *Tokenizer, n *config.Node) (model, error) {
	if err := t.readVocab(n); err != nil {
		return nil, err
	}
	if err := refuseDropout(n); err != nil {
		return nil, err
	}

	m := &bpe{
		ids: t.ids, unk: -1, unkName: n.Text("unk_token", ""), fuseUnk: n.Flag("fuse_unk", false),
		byteFallback: n.Flag("byte_fallback", false),
		prefix:       n.Text("continuing_subword_prefix", ""), suffix: n.Text("end_of_word_suffix", ""),
	}

	if id, ok := t.ids[m.unkName]; ok && n.Has("unk_token") {
		m.unk = id
	}

	m.takeWhole = n.Flag("ignore_merges", false)
	for text := range t.ids {
		m.longest = max(m.longest, len(text))
	}

	m.fillSingles()
	pairs, err := readMerges(n.Fields["merges"])
	if err != nil {
		return nil, err
	}

	if err := m.addMerges(pairs); err != nil {
		return nil, err
	}
	if !m.takeWhole {
		m.cut = m.newCutter(pairs)
	}

	return m, n.Err
}

func refuseDropout(n *config.Node) error {
	v := n.Fields["dropout"]
	if v.Absent() {
		return nil
	}
	p, err := v.Cursor().Float()
	if err == nil && p != 0 {
		err = fmt.Errorf("%w: dropout %g: encoding would be random", ErrUnsupported, p)
	}
	return err
}

// fillSingles looks up the tokens of single characters and of single bytes ("<0x0A>").
func (m *bpe) fillSingles() {
	for i := range m.ascii {
		m.ascii[i] = lookup(m.ids, string(rune(i)))
	}
	for b := range m.bytes {
		m.bytes[b] = lookup(m.ids, byteToken(byte(b)))
	}
}

func lookup(ids map[string]int32, s string) int32 {
	if id, ok := ids[s]; ok {
		return id
	}
	return -1
}

// byteToken is how byte fallback writes a byte.
func byteToken(b byte) string { return fmt.Sprintf("<0x%02X>", b) }

// readMerges reads the merge list: strings "a b" or pairs ["a", "b"].
func readMerges(v config.Value) ([][2]string, error) {
	if v.Absent() {
		return nil, nil
	}

	v.Text = strings.Clone(v.Text)
	c := v.Cursor()
	pairs := make([][2]string, 0, min(strings.Count(v.Text, ","), len(v.Text)/6))
	err := c.Array(func() error {
		pair, err := readMerge(c, len(pairs))
		pairs = append(pairs, pair)
		return err
	})

	return pairs, err
}

func readMerge(c *config.Cursor, rank int) (pair [2]string, err error) {
	if c.Peek() == '"' {
		s, err := c.String()
		if err != nil {
			return pair, err
		}

		l, r, ok := strings.Cut(s, " ")
		if !ok || strings.Contains(r, " ") {
			return pair, fmt.Errorf("%w: number %d is %q, not two tokens with a space between", ErrMerge, rank, s)
		}

		return [2]string{l, r}, nil
	}

	n := 0
	err = c.Array(func() (err error) {
		if n == 2 {
			return fmt.Errorf("%w: number %d has more than two tokens", ErrMerge, rank)
		}
		pair[n], err = c.String()
		n++
		return err
	})
	if err == nil && n != 2 {
		err = fmt.Errorf("%w: number %d has %d tokens, not two", ErrMerge, rank, n)
	}

	return pair, err
}

// addMerges enters the pairs with their position as rank. Of two equal pairs the later one counts.
func (m *bpe) addMerges(pairs [][2]string) error {
	m.merges = newPairTable(len(pairs))
	var buf []byte
	for rank, p := range pairs {
		l, ok := m.ids[p[0]]
		if !ok {
			return fmt.Errorf("%w: number %d: %q is not in the vocabulary", ErrMerge, rank, p[0])
		}

		r, ok := m.ids[p[1]]
		if !ok {
			return fmt.Errorf("%w: number %d: %q is not in the vocabulary", ErrMerge, rank, p[1])
		}

		if len(p[1]) < len(m.prefix) {
			return fmt.Errorf("%w: number %d: %q is shorter than the prefix %q", ErrMerge, rank, p[1], m.prefix)
		}

		buf = append(append(buf[:0], p[0]...), p[1][len(m.prefix):]...)
		id, ok := m.ids[string(buf)]
		if !ok {
			return fmt.Errorf("%w: number %d: the result %q is not in the vocabulary", ErrMerge, rank, buf)
		}

		m.merges.set(l, r, int32(rank), id)
	}

	return nil
}

// acceptBytes switches the model to words given as bytes. It refuses when a byte is not in the vocabulary and something
// has to take its place.
func (m *bpe) acceptBytes() bool {
	if m.prefix != "" || m.suffix != "" {
		return false
	}

	var ids [256]int32
	for b, r := range prepare.ByteRunes() {
		ids[b] = lookup(m.ids, string(r))
		if ids[b] < 0 && (m.unkName != "" || m.byteFallback) {
			return false
		}
	}

	m.raw = true
	m.bytes = ids
	m.cut = cutter{}

	return true
}

func (m *bpe) tokenize(x *encoder, p prepare.Piece) error {
	if !m.cut.on {
		return m.word(x, p)
	}

	from := 0
	for {
		i := m.cut.next(p.Text, from)
		if err := m.word(x, p.Slice(from, i)); err != nil || i == len(p.Text) {
			return err
		}
		from = i
	}
}

// word encodes one word, by the cache where it can.
func (m *bpe) word(x *encoder, p prepare.Piece) error {
	if x.track {
		return m.merge(x, p)
	}

	slot, hit := x.cache.slot(p.Text)
	if hit {
		x.ids = append(x.ids, slot.ids[:slot.n]...)
		return nil
	}

	n := len(x.ids)
	if err := m.merge(x, p); err != nil {
		return err
	}

	slot.put(p.Text, x.ids[n:])
	return nil
}

func (m *bpe) merge(x *encoder, p prepare.Piece) error {
	if m.takeWhole {
		if id, ok := m.wholeWord(x, p.Text); ok {
			x.emit(id, p, 0, len(p.Text))
			return nil
		}
	}

	if err := m.symbols(x, p.Text); err != nil {
		return err
	}

	if len(x.syms) <= shortWord {
		m.mergeShort(x)
	} else {
		m.mergeLong(x)
	}

	for i := range x.syms {
		if s := &x.syms[i]; s.id >= 0 {
			x.emit(s.id, p, int(s.start), int(s.end))
		}
	}

	return nil
}

// wholeWord looks a word up as it stands.
func (m *bpe) wholeWord(x *encoder, w string) (int32, bool) {
	if len(w) > m.longest {
		return 0, false
	}

	if !m.raw {
		id, ok := m.ids[w]
		return id, ok
	}

	x.buf = prepare.AppendMapped(x.buf[:0], w)
	id, ok := m.ids[string(x.buf)]
	return id, ok
}

// symbols splits a word into its first symbols.
func (m *bpe) symbols(x *encoder, w string) error {
	x.syms = slices.Grow(x.syms[:0], len(w))
	if m.raw {
		for i := range len(w) {
			if id := m.bytes[w[i]]; id >= 0 {
				x.syms = append(x.syms, symbol{id: id, start: int32(i), end: int32(i + 1)})
			}
		}
		return nil
	}

	return m.charSymbols(x, w)
}

// charSymbols splits a word into characters; those outside the vocabulary become bytes or the unknown token.
func (m *bpe) charSymbols(x *encoder, w string) error {
	pending := symbol{id: -1} // an unknown symbol that the next one may join
	for i := 0; i < len(w); {
		size := chars.RuneLen(w, i)
		s := symbol{id: m.char(w, i, i+size), start: int32(i), end: int32(i + size)}
		switch {
		case s.id >= 0:
			if pending.id >= 0 {
				x.syms = append(x.syms, pending)
				pending.id = -1
			}
			x.syms = append(x.syms, s)
		case m.byteFallback && m.appendBytes(x, w, i, i+size):
		case m.unk >= 0:
			s.id = m.unk
			if pending.id >= 0 && m.fuseUnk {
				pending.end = s.end
				break
			}

			if pending.id >= 0 {
				x.syms = append(x.syms, pending)
			}

			pending = s
		case m.unkName != "":
			return fmt.Errorf("%w: the unknown token %q is not in the vocabulary", ErrNoUnknown, m.unkName)
		}

		i += size
	}

	if pending.id >= 0 {
		x.syms = append(x.syms, pending)
	}

	return nil
}

// char returns the id of the character [a, b) of a word, -1 when it is not in the vocabulary.
func (m *bpe) char(w string, a, b int) int32 {
	if m.prefix != "" && a > 0 || m.suffix != "" && b == len(w) {
		return lookup(m.ids, m.affixed(w, a, b))
	}
	if w[a] < utf8.RuneSelf {
		return m.ascii[w[a]]
	}
	return lookup(m.ids, w[a:b])
}

func (m *bpe) affixed(w string, a, b int) string {
	s := w[a:b]
	if a > 0 {
		s = m.prefix + s
	}
	if b == len(w) {
		s += m.suffix
	}
	return s
}

// appendBytes adds the bytes of a character as symbols, if the vocabulary has every one of them.
func (m *bpe) appendBytes(x *encoder, w string, a, b int) bool {
	s := m.affixed(w, a, b)
	for i := range len(s) {
		if m.bytes[s[i]] < 0 {
			return false
		}
	}

	for i := range len(s) {
		at := int32(min(a+i, b-1))
		x.syms = append(x.syms, symbol{id: m.bytes[s[i]], start: at, end: at + 1})
	}

	return true
}
