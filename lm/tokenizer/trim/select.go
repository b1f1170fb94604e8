package trim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

var (
	// ErrNone: no token of the text is frequent enough.
	ErrNone = failure.Misuse("no token is as frequent as that", "lower --vocab-min-count")
	// ErrSize: a vocabulary of that size cannot hold what has to stay.
	ErrSize = failure.Misuse("too small a vocabulary", "raise --vocab-size")
	// ErrNothing: the text needs all tokens that the model has rows for.
	ErrNothing = failure.Misuse("nothing to take out of the vocabulary",
		"--vocab-min-count 2 or --vocab-size N keeps fewer tokens")
	// ErrRows: the tokenizer has more tokens than the model has rows for.
	ErrRows = failure.New("a tokenizer that belongs to another model", "")
)

// Options of [Vocabulary.Select]. The zero value keeps every token of the text.
type Options struct {
	MinCount int64 // a token is kept that the text has this many times; 0 means 1
	// Size is how many tokens are kept at all. Where the text needs more, its rarest go; where it needs fewer, further
	// ones stay. 0: as many as are needed, rounded up to Multiple.
	Size     int
	Multiple int // 0 means 64
	Rows     int // of the model's token table; 0 means one for each token
}

// Selection says which tokens stay. They keep their order.
type Selection struct {
	Old []int32 // the old id of each new one, ascending
	New []int32 // the new id of each old one, -1 for one that goes

	Before int // tokens of the tokenizer as it is
	Rows   int // of the model's token table as it is
	// How the tokens that stay came in: by the text, by the rules (added tokens, named ones, the alphabet), as parts of
	// others, and to fill up the size.
	Needed, Ruled, Parts, Filled int
	Cut                          int // tokens of the text that Size had no room for
}

// Map gives ids their new values; false where some token goes.
func (s *Selection) Map(ids []int32) (out []int32, whole bool) {
	out = make([]int32, len(ids))
	whole = true
	for i, id := range ids {
		if out[i] = s.id(id); out[i] < 0 {
			whole = false
		}
	}
	return out, whole
}

// id is the new id of an old one, -1 if it has none.
func (s *Selection) id(old int32) int32 {
	if old < 0 || int(old) >= len(s.New) {
		return -1
	}
	return s.New[old]
}

// Select chooses the tokens that stay; counts[id] is how often the text has a token. The errors wrap [ErrNone],
// [ErrSize], [ErrNothing] or [ErrRows].
func (v *Vocabulary) Select(counts []int64, o Options) (*Selection, error) {
	o.MinCount, o.Multiple = max(o.MinCount, 1), cmp.Or(o.Multiple, 64)
	o.Rows = cmp.Or(o.Rows, v.tok.VocabSize())
	if o.Rows < v.tok.VocabSize() {
		return nil, fmt.Errorf("%s: %w: it has %d ids, the model's token table %d rows", v.path, ErrRows,
			v.tok.VocabSize(), o.Rows)
	}

	c := &choice{v: v, counts: counts, rows: o.Rows, kept: make([]bool, o.Rows), by: v.mergesByResult()}
	s := &Selection{Before: v.Tokens(), Rows: o.Rows}

	s.Ruled = c.rules()
	s.Parts = c.n - s.Ruled
	order := c.byFrequency()
	needed := order[:0:0]
	for _, id := range order {
		if c.count(id) >= o.MinCount {
			needed = append(needed, id)
		}
	}

	switch {
	case len(needed) == 0:
		return nil, fmt.Errorf("%w: %d times", ErrNone, o.MinCount)
	case o.Size > 0 && o.Size < c.n:
		return nil, fmt.Errorf("%w: %d tokens asked for, but %d have to stay whatever the text needs (added "+
			"tokens, the alphabet, and their parts)", ErrSize, o.Size, c.n)
	}

	limit := o.Rows
	if o.Size > 0 {
		limit = min(o.Size, o.Rows)
	}
	for _, id := range needed {
		before := c.n
		switch c.add(id, limit) {
		case known:
		case added1:
			s.Needed++
			s.Parts += c.n - before - 1
		case noRoom:
			s.Cut++
		}
	}

	target := limit
	if o.Size == 0 {
		target = min((c.n+o.Multiple-1)/o.Multiple*o.Multiple, o.Rows)
	}
	before := c.n
	c.fill(order, target)
	s.Filled = c.n - before

	if c.n >= o.Rows {
		return nil, fmt.Errorf("%w: %d of its %d tokens stay", ErrNothing, c.n, o.Rows)
	}

	c.number(s)
	return s, nil
}

// choice is a set of tokens that grows.
type choice struct {
	v      *Vocabulary
	counts []int64
	rows   int
	kept   []bool // by id
	n      int    // how many
	by     [][]int32
	stack  []int32
}

func (c *choice) count(id int32) int64 {
	if int(id) >= len(c.counts) {
		return 0
	}
	return c.counts[id]
}

// mergesByResult lists, for each id, the merges that yield it.
func (v *Vocabulary) mergesByResult() [][]int32 {
	by := make([][]int32, v.tok.VocabSize())
	for i, m := range v.merges {
		by[m.into] = append(by[m.into], int32(i))
	}
	return by
}

// outcome is what became of a token.
type outcome int

const (
	known  outcome = iota // it is kept already
	added1                // it is kept now, with its parts
	noRoom                // with its parts it does not fit
)

// add keeps a token with the parts of every merge that yields it or one of these, if all of them fit.
func (c *choice) add(id int32, limit int) outcome {
	if c.kept[id] {
		return known
	}

	c.stack = append(c.stack[:0], id)
	c.kept[id] = true
	for i := 0; i < len(c.stack); i++ {
		if int(c.stack[i]) >= len(c.by) {
			continue // a row without a token
		}
		for _, k := range c.by[c.stack[i]] {
			for _, part := range [...]int32{c.v.merges[k].left, c.v.merges[k].right} {
				if !c.kept[part] {
					c.kept[part] = true
					c.stack = append(c.stack, part)
				}
			}
		}
	}

	if c.n+len(c.stack) > limit {
		for _, x := range c.stack {
			c.kept[x] = false
		}
		return noRoom
	}

	c.n += len(c.stack)
	return added1
}

// rules keeps what stays whatever the text needs, and returns how many tokens that are without their parts.
func (c *choice) rules() int {
	ruled := map[int32]bool{}
	keep := func(id int32) {
		if id >= 0 && int(id) < c.rows {
			ruled[id] = true
			c.add(id, c.rows)
		}
	}

	for _, a := range c.v.added {
		keep(a.id)
	}
	for _, id := range c.v.named {
		keep(id)
	}
	for _, id := range c.v.alphabet() {
		keep(id)
	}

	return len(ruled)
}

// alphabet lists the tokens in which any text can be written, and the piece that an unknown character's score is
// derived from.
func (v *Vocabulary) alphabet() (ids []int32) {
	if v.byteLevel {
		for _, r := range prepare.ByteRunes() {
			if id, ok := v.plain[string(r)]; ok {
				ids = append(ids, id)
			}
		}
		return append(ids, v.lowest()...)
	}

	bytes := 0
	for b := range 256 {
		if id, ok := v.plain[fmt.Sprintf("<0x%02X>", b)]; ok {
			ids = append(ids, id)
			bytes++
		}
	}

	everyCharacter := bytes < 256 && !v.hasUnknown()
	for token, id := range v.plain {
		if r, one := v.character(token); one && (everyCharacter || r < utf8.RuneSelf || r == spaceMark) {
			ids = append(ids, id)
		}
	}

	return append(ids, v.lowest()...)
}

// spaceMark stands for a space in the vocabularies of SentencePiece.
const spaceMark = '▁'

// character reports whether a token is one character, apart from what marks the inside and the end of a word, and
// which.
func (v *Vocabulary) character(token string) (rune, bool) {
	var prefix, suffix string
	v.model.Decode("continuing_subword_prefix", &prefix)
	v.model.Decode("end_of_word_suffix", &suffix)

	if bare := strings.TrimSuffix(strings.TrimPrefix(token, prefix), suffix); bare != "" {
		token = bare
	}
	r, size := utf8.DecodeRuneInString(token)
	return r, size > 0 && size == len(token)
}

// hasUnknown reports whether a character outside the vocabulary becomes a token of its own.
func (v *Vocabulary) hasUnknown() bool {
	var unk string
	if v.model.Decode("unk_token", &unk) {
		_, ok := v.plain[unk]
		return ok
	}

	var id int32
	return v.model.Decode("unk_id", &id)
}

// lowest is the piece of Unigram with the lowest score: that of an unknown character lies below it.
func (v *Vocabulary) lowest() []int32 {
	if len(v.scores) == 0 {
		return nil
	}

	at, least := 0, math.Inf(1)
	for id, score := range v.scores {
		if v.live[id] && score < least {
			at, least = id, score
		}
	}
	return []int32{int32(at)}
}

// byFrequency lists the tokens, the most frequent first, equally frequent ones by id.
func (c *choice) byFrequency() (order []int32) {
	for id, live := range c.v.live {
		if live {
			order = append(order, int32(id))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(c.count(b), c.count(a)) })
	return order
}

// fill keeps more tokens, in an order, and then rows behind those of the tokens, up to a number of them.
func (c *choice) fill(order []int32, target int) {
	for _, id := range order {
		if c.n >= target {
			return
		}
		c.add(id, target)
	}

	for id := len(c.v.live); c.n < target && id < c.rows; id++ {
		c.add(int32(id), target)
	}
}

// number gives the tokens that are kept their new ids.
func (c *choice) number(s *Selection) {
	s.Old = make([]int32, 0, c.n)
	for id, kept := range c.kept {
		if kept {
			s.Old = append(s.Old, int32(id))
		}
	}

	s.New = make([]int32, c.rows)
	for i := range s.New {
		s.New[i] = -1
	}
	for i, id := range s.Old {
		s.New[id] = int32(i)
	}
}
