package corpus

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/pyrandom"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// SampleOptions says which windows to sample.
type SampleOptions struct {
	Samples int    // windows to sample; 0 means 128
	SeqLen  int    // tokens of a window; 0 means 2048
	Seed    uint64 // of the sampling; the default, 0, is a seed like any other

	// Join takes the records of a JSONL file as one text, a space between two, instead of drawing documents: for files
	// whose records are shorter than a window. Plain text is always taken as one text.
	Join bool

	// Render writes the messages of a record as a text, as a chat template does; nil: a line "role: content" for each.
	Render func(messages []Turn) (string, error) `json:"-"`

	VocabSize int    // ids outside are refused; 0: unknown, the tokenizer's own size counts where there is a tokenizer
	Tensor    string // of a .safetensors file; empty: calib_ids, else input_ids
}

func (o *SampleOptions) setDefaults(tok Tokenizer) error {
	if o.Samples < 0 || o.SeqLen < 0 || o.VocabSize < 0 {
		return fmt.Errorf("%w: samples %d, seqlen %d, vocabulary %d; none may be negative", ErrOptions, o.Samples,
			o.SeqLen, o.VocabSize)
	}

	if o.Samples == 0 {
		o.Samples = 128
	}
	if o.SeqLen == 0 {
		o.SeqLen = 2048
	}

	if o.Samples > maxTokens/o.SeqLen { // a product might overflow
		return fmt.Errorf("%w: %d windows of %d tokens are more than %d tokens", ErrOptions, o.Samples, o.SeqLen,
			maxTokens)
	}

	if o.VocabSize == 0 && tok != nil {
		o.VocabSize = tok.VocabSize()
	}

	return nil
}

// Sample samples calibration windows from a file as the code published with SparseGPT and Wanda does, with
// Python's random module seeded with o.Seed.
//
// Records (JSONL): draw a record uniformly, with replacement, and tokenize it with the tokenizer's own special tokens;
// draw again unless it has more than SeqLen tokens; draw the start of the window uniformly from 0 … tokens-SeqLen-1.
//
// Plain text, and records with o.Join: tokenize the text once, with special tokens, and draw the start of every window
// uniformly from 0 … tokens-SeqLen-1.
//
// Token ids are taken as they are: every row is a window, and Samples, SeqLen and Seed play no part.
//
// The errors wrap ErrShort where no document, or the whole text, is long enough, and else the errors of this package.
func Sample(ctx context.Context, path string, tok Tokenizer, o SampleOptions) (Windows, error) {
	if err := o.setDefaults(tok); err != nil {
		return Windows{}, err
	}

	s, err := openSource(path)
	if err != nil {
		return Windows{}, err
	}
	defer s.close()

	s.render = o.Render
	switch {
	case s.format == formatTensors || s.format == formatArrays:
		return s.readIDs(o.VocabSize, tensorNames(o.Tensor, "calib_ids", "input_ids"))
	case tok == nil:
		return Windows{}, fmt.Errorf("%s: %w", path, ErrNoTokenizer)
	case s.format == formatRecords && !o.Join:
		return sampleDocuments(ctx, s, tok, o)
	}

	return sampleJoined(ctx, s, tok, o)
}

func tensorNames(name string, otherwise ...string) []string {
	if name != "" {
		return []string{name}
	}
	return otherwise
}

// sampleDocuments samples a document for every window.
func sampleDocuments(ctx context.Context, s *source, tok Tokenizer, o SampleOptions) (Windows, error) {
	docs, err := openDocuments(s)
	if err != nil {
		return Windows{}, err
	}
	defer docs.done()

	d := drawer{ctx: ctx, docs: docs, tok: tok, o: o, random: pyrandom.NewRandom(o.Seed), short: map[int]int{}}
	w := Windows{
		Count: o.Samples, SeqLen: o.SeqLen, Source: s.path, Mode: Documents, Seed: o.Seed,
		Docs: len(docs.lines), Blank: docs.blank,
	}

	for range o.Samples {
		ids, err := d.long()
		if err != nil {
			return Windows{}, err
		}
		start := d.random.RandInt(0, len(ids)-o.SeqLen-1)
		w.IDs = append(w.IDs, slices.Clone(ids[start:start+o.SeqLen]))
	}

	w.Redrawn = d.redrawn
	w.Hash = HashIDs(w.IDs)
	return w, nil
}

// drawer samples documents.
type drawer struct {
	ctx     context.Context
	docs    *documents
	tok     Tokenizer
	o       SampleOptions
	random  *pyrandom.Random
	short   map[int]int // documents known to be too short, with their tokens
	redrawn int
}

// long samples until a document has more than SeqLen tokens, and gives them.
func (d *drawer) long() ([]int32, error) {
	for {
		i := d.random.RandInt(0, len(d.docs.lines)-1)
		if _, known := d.short[i]; !known {
			ids, err := d.tokens(i)
			if err != nil || len(ids) > d.o.SeqLen {
				return ids, err
			}
			d.short[i] = len(ids)
		}

		d.redrawn++
		if len(d.short) == len(d.docs.lines) {
			longest := 0
			for _, n := range d.short {
				longest = max(longest, n)
			}

			return nil, failure.Hinted(fmt.Errorf("%s: %w: none of the %d documents has more than %d tokens, the "+
				"longest has %d", d.docs.path, ErrShort, len(d.docs.lines), d.o.SeqLen, longest),
				"use a --seqlen below that, or --join the documents")
		}
	}
}

func (d *drawer) tokens(i int) ([]int32, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	doc, err := d.docs.text(i)
	if err != nil {
		return nil, err
	}
	place := fmt.Sprintf("%s: line %d", d.docs.path, d.docs.lines[i].number)
	return encode(place, d.tok, d.o.VocabSize, doc, tokenizer.EncodeOptions{})
}

// keepTokens is how many tokens of a text are kept between counting them and cutting windows; longer texts are
// tokenized twice.
const keepTokens = 1 << 26

// sampleJoined samples windows of the whole text.
func sampleJoined(ctx context.Context, s *source, tok Tokenizer, o SampleOptions) (Windows, error) {
	w := Windows{Count: o.Samples, SeqLen: o.SeqLen, Source: s.path, Mode: Joined, Seed: o.Seed, Docs: 1}
	t := s.text(tok, o.VocabSize, " ", &w)
	return w, w.draw(ctx, t, keepTokens)
}

// text is the content of the file as one text, records with sep between them.
func (s *source) text(tok Tokenizer, vocab int, sep string, w *Windows) *textSource {
	t := &textSource{path: s.path, open: s.plainText, tok: tok, vocab: vocab, piece: pieceSize}
	if s.format == formatRecords {
		t.open = func() (feed, error) { return s.joinedRecords(sep, &w.Docs, &w.Blank) }
	}
	return t
}

// draw counts the tokens of the text, samples w.Count windows of w.SeqLen and collects them, from memory if the
// text has at most keep tokens.
func (w *Windows) draw(ctx context.Context, t *textSource, keep int) error {
	// The windows are sampled from all of the text, so its length has to be known first. A text that does not fit into
	// memory is tokenised a second time, which is the same tokens.
	var all []int32
	err := t.each(func(ids []int32) error {
		w.Tokens += int64(len(ids))
		if w.Tokens <= int64(keep) {
			all = append(all, ids...)
		} else {
			all = nil
		}
		return ctx.Err()
	})

	switch {
	case err != nil:
		return err
	case w.Tokens == 0:
		return fmt.Errorf("%s: %w", t.path, ErrEmpty)
	case w.Tokens <= int64(w.SeqLen):
		return fmt.Errorf("%s: %w: %d tokens, a window of %d needs %d", t.path, ErrShort, w.Tokens, w.SeqLen,
			w.SeqLen+1)
	}

	random := pyrandom.NewRandom(w.Seed)
	starts := make([]int64, w.Count)
	for i := range starts {
		starts[i] = int64(random.RandInt(0, int(w.Tokens)-w.SeqLen-1))
	}

	c := newCollector(starts, w.SeqLen)
	if all != nil {
		err = c.take(all)
	} else {
		err = t.each(func(ids []int32) error { return errors.Join(c.take(ids), ctx.Err()) })
	}
	if err != nil && !errors.Is(err, errStop) {
		return err
	}

	w.IDs = c.windows
	w.Hash = HashIDs(w.IDs)
	return nil
}

// collector cuts windows out of a stream of tokens.
type collector struct {
	windows [][]int32
	starts  []int64
	order   []int // windows by their start
	seqlen  int
	at      int64 // tokens seen
}

func newCollector(starts []int64, seqlen int) *collector {
	c := &collector{
		windows: make([][]int32, len(starts)), starts: starts, order: make([]int, len(starts)),
		seqlen: seqlen,
	}
	for i := range starts {
		c.order[i] = i
		c.windows[i] = make([]int32, 0, seqlen)
	}
	slices.SortStableFunc(c.order, func(a, b int) int { return int(starts[a] - starts[b]) })
	return c
}

// take adds the next tokens of the stream; errStop when every window is full.
func (c *collector) take(ids []int32) error {
	end := c.at + int64(len(ids))
	open := c.order[:0:0]
	for i, k := range c.order {
		if c.starts[k] >= end { // the later ones begin later still
			open = append(open, c.order[i:]...)
			break
		}

		lo := max(c.starts[k], c.at)
		hi := min(c.starts[k]+int64(c.seqlen), end)
		c.windows[k] = append(c.windows[k], ids[lo-c.at:hi-c.at]...)
		if len(c.windows[k]) < c.seqlen {
			open = append(open, k)
		}
	}

	c.order, c.at = open, end
	if len(open) == 0 {
		return errStop
	}

	return nil
}
