package tokenizer

import (
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// unknownPenalty is how far below the worst piece an unknown character scores.
const unknownPenalty = 10

// unigram segments a text into the pieces with the greatest sum of log-probabilities (Kudo 2018), by the Viterbi
// algorithm over bytes.
type unigram struct {
	ids          map[string]int32
	pieces       trie
	scores       []float64
	unk          int32 // -1: none
	unkScore     float64
	byteFallback bool
	bytes        [256]int32
}

// pathNode is the best way to reach a place of the text.
type pathNode struct {
	score float64
	start int32 // where the last piece begins; -1: not reached
	id    int32
}

func buildUnigram(t *Tokenizer, n *config.Node) (model, error) {
	m := &unigram{unk: int32(n.Integer("unk_id", -1, 0, maxText)), byteFallback: n.Flag("byte_fallback", false)}
	if err := m.readPieces(t, n); err != nil {
		return nil, err
	}
	if int(m.unk) >= len(m.scores) {
		return nil, fmt.Errorf("%w: unk_id %d in a vocabulary of %d", ErrTokenID, m.unk, len(m.scores))
	}
	for b := range m.bytes {
		m.bytes[b] = lookup(m.ids, byteToken(byte(b)))
	}

	return m, n.Err
}

// readPieces reads [["piece", score], …]; ids are positions. Of two equal pieces the later one counts.
func (m *unigram) readPieces(t *Tokenizer, n *config.Node) error {
	v := n.Fields["vocab"]
	if v.Absent() {
		return fmt.Errorf("%w: no field \"vocab\"", ErrSyntax)
	}

	v.Text = strings.Clone(v.Text)
	c := v.Cursor()
	t.ids = make(map[string]int32, min(strings.Count(v.Text, "["), len(v.Text)/6))
	least := math.Inf(1)
	err := c.Array(func() error {
		text, score, err := readPiece(c)
		if err != nil {
			return err
		}

		id := int32(len(m.scores))
		m.scores = append(m.scores, score)
		t.tokens = append(t.tokens, token{text, tokenModel})
		t.ids[text] = id
		if text != "" {
			m.pieces.insert(text, id)
		}

		least = min(least, score)
		return nil
	})
	if err == nil && len(m.scores) == 0 {
		err = fmt.Errorf("%w: empty", ErrVocab)
	}

	m.ids, m.unkScore = t.ids, least-unknownPenalty
	return err
}

func readPiece(c *config.Cursor) (text string, score float64, err error) {
	i := 0
	err = c.Array(func() (err error) {
		i++
		switch i {
		case 1:
			text, err = c.String()
		case 2:
			score, err = c.Float()
		default:
			err = c.Fail("a piece has a text and a score")
		}

		return err
	})
	if err == nil && i != 2 {
		err = c.Fail("a piece has a text and a score")
	}
	if err == nil && (math.IsNaN(score) || math.IsInf(score, 0)) {
		err = fmt.Errorf("%w: piece %q has the score %g", ErrVocab, text, score)
	}

	return text, score, err
}

func (m *unigram) tokenize(x *encoder, p prepare.Piece) error {
	if x.track {
		return m.segment(x, p)
	}

	slot, hit := x.cache.slot(p.Text)
	if hit {
		x.ids = append(x.ids, slot.ids[:slot.n]...)
		return nil
	}

	n := len(x.ids)
	if err := m.segment(x, p); err != nil {
		return err
	}

	slot.put(p.Text, x.ids[n:])
	return nil
}

func (m *unigram) segment(x *encoder, p prepare.Piece) error {
	if err := m.forward(x, p.Text); err != nil {
		return err
	}
	return m.emitPath(x, p)
}

// forward finds the best way to every place of the text.
func (m *unigram) forward(x *encoder, s string) error {
	x.best = x.best[:0]
	for range len(s) + 1 {
		x.best = append(x.best, pathNode{start: -1})
	}

	for i := 0; i < len(s); {
		size := chars.RuneLen(s, i)
		base := x.best[i].score
		single := false
		node := int32(0)
		for k := i; k < len(s); k++ {
			if node = m.pieces.child(node, s[k]); node == 0 {
				break
			}

			if v := m.pieces.values[node]; v != 0 {
				x.best[k+1].reach(base+m.scores[v-1], i, v-1)
				single = single || k+1 == i+size
			}
		}

		if !single {
			if m.unk < 0 {
				return fmt.Errorf("%w: %q at byte %d", ErrNoUnknown, s[i:i+size], i)
			}
			x.best[i+size].reach(base+m.unkScore, i, m.unk)
		}

		i += size
	}

	return nil
}

// reach keeps a way to a place if it is better than what is known.
func (n *pathNode) reach(score float64, start int, id int32) {
	if n.start < 0 || score > n.score {
		*n = pathNode{score, int32(start), id}
	}
}

// emitPath walks back along the best way and adds its tokens; runs of unknown characters are one token.
func (m *unigram) emitPath(x *encoder, p prepare.Piece) error {
	// The way is turned round in place: each node's id and start move to where its piece begins.
	end := int32(len(p.Text))
	id, start := x.best[end].id, x.best[end].start
	for end > 0 {
		before := x.best[start]
		x.best[start] = pathNode{start: end, id: id}
		end, id, start = start, before.id, before.start
	}

	for i := 0; i < len(p.Text); {
		n := x.best[i]
		end := int(n.start)
		if n.id != m.unk || m.unk < 0 {
			x.emit(n.id, p, i, end)
			i = end
			continue
		}

		for end < len(p.Text) && x.best[end].id == m.unk {
			end = int(x.best[end].start)
		}

		m.emitUnknown(x, p, i, end)
		i = end
	}

	return nil
}

// emitUnknown adds what stands for a stretch outside the vocabulary: its bytes, or the unknown token.
func (m *unigram) emitUnknown(x *encoder, p prepare.Piece, a, b int) {
	s := p.Text[a:b]
	if id, ok := m.ids[s]; ok {
		x.emit(id, p, a, b)
		return
	}

	whole := m.byteFallback
	for i := 0; i < len(s) && whole; i++ {
		whole = m.bytes[s[i]] >= 0
	}

	if !whole {
		x.emit(m.unk, p, a, b)
		return
	}

	for i := range len(s) {
		x.emit(m.bytes[s[i]], p, a, b)
	}
}
