package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// pieceSize is how much text is tokenized at a time.
const pieceSize = 16 << 20

// feed gives the next part of a text; io.EOF ends it.
type feed func() ([]byte, error)

// textSource is a long text that is tokenized piece by piece.
type textSource struct {
	path  string
	open  func() (feed, error) // starts from the beginning
	tok   Tokenizer
	vocab int
	piece int // bytes; pieceSize but for tests
}

// plainText reads a text file.
func (s *source) plainText() (feed, error) {
	r, err := s.reader()
	if err != nil {
		return nil, err
	}

	buf, at := make([]byte, 1<<18), int64(0)
	return func() ([]byte, error) {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			at += int64(n)
			return buf[:n], nil
		}
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s: byte %d: %w", s.path, at, err)
		}
		return nil, err
	}, nil
}

// joinedRecords reads the records of a file as one text with sep between them. count, if not nil, receives the
// number of records and of blank lines at the end.
func (s *source) joinedRecords(sep string, docs, blank *int) (feed, error) {
	r, err := s.reader()
	if err != nil {
		return nil, err
	}

	lines := &lineReader{r: r, path: s.path}
	var buf []byte
	*docs, *blank = 0, 0

	return func() ([]byte, error) {
		doc, err := lines.text(s.render)
		if err != nil {
			*blank = lines.skip
			return nil, err
		}

		buf = buf[:0]
		if *docs > 0 {
			buf = append(buf, sep...)
		}

		*docs++
		return append(buf, doc...), nil
	}, nil
}

// each tokenizes the text and calls yield with the ids of one piece after the other. yield may return errStop.
func (t *textSource) each(yield func(ids []int32) error) error {
	if t.tok == nil {
		return fmt.Errorf("%s: %w", t.path, ErrNoTokenizer)
	}

	next, err := t.open()
	if err != nil {
		return err
	}

	p := pieces{next: next, path: t.path, size: t.piece}
	err = t.tokenize(&p, yield)
	if errors.Is(err, errStop) {
		return nil
	}

	return err
}

// errStop ends each early without a failure.
var errStop = errors.New("enough")

func (t *textSource) tokenize(p *pieces, yield func(ids []int32) error) error {
	first, err := p.piece()
	if err != nil {
		return err
	}

	if p.ended {
		ids, err := t.encode(first, tokenizer.EncodeOptions{})
		if err != nil {
			return err
		}
		return yield(ids)
	}

	// In pieces, but as one text: what the tokenizer puts before and after a text comes once, at its ends.
	before, after, err := affixes(t.tok)
	if err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}

	for part := first; ; {
		ids, err := t.encode(part, tokenizer.EncodeOptions{NoSpecial: true})
		if err != nil {
			return err
		}

		ids, before = append(before, ids...), nil
		if p.ended {
			ids = append(ids, after...)
		}
		if err := yield(ids); err != nil || p.ended {
			return err
		}
		if part, err = p.piece(); err != nil {
			return err
		}
	}
}

func (t *textSource) encode(part []byte, o tokenizer.EncodeOptions) ([]int32, error) {
	return encode(t.path, t.tok, t.vocab, string(part), o)
}

// encode tokenizes and checks the ids against the vocabulary of the model.
func encode(path string, tok Tokenizer, vocab int, s string, o tokenizer.EncodeOptions) ([]int32, error) {
	ids, err := tok.Encode(s, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	for _, id := range ids {
		if id < 0 || (vocab > 0 && int(id) >= vocab) {
			return nil, fmt.Errorf("%s: %w: the tokenizer gives id %d, the model's vocabulary has %d; the tokenizer "+
				"belongs to another model",
				path, ErrVocabulary, id, vocab)
		}
	}

	return ids, nil
}

// affixes finds what the tokenizer puts before and after a text.
func affixes(tok Tokenizer) (before, after []int32, err error) {
	full, err := tok.Encode("a", tokenizer.EncodeOptions{})
	if err != nil {
		return nil, nil, err
	}

	bare, err := tok.Encode("a", tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		return nil, nil, err
	}

	for i := 0; i+len(bare) <= len(full); i++ {
		if equal(full[i:i+len(bare)], bare) {
			return full[:i:i], full[i+len(bare):], nil
		}
	}

	return nil, nil, fmt.Errorf("%w: the tokenizer changes a text when it adds special tokens, so that a long one "+
		"cannot be taken in pieces", ErrOptions)
}

func equal(a, b []int32) bool {
	for i := range b {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// pieces cuts a text where tokenizers do not look across, into parts of about size bytes.
type pieces struct {
	next  feed
	path  string
	size  int
	rest  []byte // read and not yet given
	at    int64  // place of rest in the text
	eof   bool
	ended bool // the last piece has been given
}

// piece gives the next part of the text, good until the next call.
func (p *pieces) piece() ([]byte, error) {
	for !p.eof && len(p.rest) <= p.size+utf8.UTFMax {
		part, err := p.next()
		switch {
		case errors.Is(err, io.EOF):
			p.eof = true
		case err != nil:
			return nil, err
		}

		p.rest = append(p.rest, part...)
	}

	cut := len(p.rest)
	if !p.eof {
		cut = boundary(p.rest)
	}

	out := bytes.Clone(p.rest[:cut])
	if !utf8.Valid(out) {
		return nil, fmt.Errorf("%s: byte %d: %w", p.path, p.at+int64(invalidAt(out)), ErrUTF8)
	}

	p.rest = append(p.rest[:0], p.rest[cut:]...)
	p.at += int64(cut)
	p.ended = p.eof

	return out, nil
}

// boundary is the best place to cut a text that goes on: the last line end (else space) of the second half that
// something other than white space follows, else the last whole character. s has more than utf8.UTFMax bytes.
func boundary(s []byte) int {
	if i := lastBreak(s, '\n'); i > 0 {
		return i
	}
	if i := lastBreak(s, ' '); i > 0 {
		return i
	}

	i := len(s) - 1
	for i > len(s)-utf8.UTFMax && !utf8.RuneStart(s[i]) {
		i--
	}

	return i
}

// lastBreak finds the last c in the second half of s with something other than white space behind it. A line
// end belongs to the text before it; a space to the word behind it, as most tokenizers have it.
func lastBreak(s []byte, c byte) int {
	for i := len(s) - utf8.UTFMax; i >= len(s)/2 && i > 0; i-- {
		if s[i] != c {
			continue
		}
		if r, _ := utf8.DecodeRune(s[i+1:]); unicode.IsSpace(r) {
			continue
		}
		if c == '\n' {
			return i + 1
		}

		return i
	}

	return 0
}
