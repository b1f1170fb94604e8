package corpus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// CutOptions says how to lay windows over a text.
type CutOptions struct {
	Convention Mode // Window (the default) or Rolling
	SeqLen     int  // tokens of a window; 0 means 2048
	Stride     int  // Rolling: tokens that a window after the first predicts; 0 means SeqLen-1, as many as fit
	Limit      int  // windows at most, those at the beginning; 0: all

	VocabSize int    // ids outside are refused; 0: unknown, the tokenizer's own size counts where there is a tokenizer
	Tensor    string // of a .safetensors file; empty: eval_ids, else input_ids, else calib_ids
	// AnyLength makes one window of what has two tokens or more, but fewer than SeqLen, with Window: for a length that
	// nobody has asked for.
	AnyLength bool
}

func (o *CutOptions) setDefaults(tok Tokenizer) error {
	if o.Convention == "" {
		o.Convention = Window
	}
	if o.SeqLen == 0 {
		o.SeqLen = 2048
	}
	if o.VocabSize == 0 && tok != nil {
		o.VocabSize = tok.VocabSize()
	}

	switch {
	case o.Convention != Window && o.Convention != Rolling:
		return fmt.Errorf("%w: convention %q; known: %s, %s", ErrOptions, o.Convention, Window, Rolling)
	case o.SeqLen < 2:
		return fmt.Errorf("%w: windows of %d tokens; nothing is predicted below 2", ErrOptions, o.SeqLen)
	case o.Limit < 0 || o.VocabSize < 0:
		return fmt.Errorf("%w: limit %d, vocabulary %d; none may be negative", ErrOptions, o.Limit, o.VocabSize)
	case o.Convention == Window && o.Stride != 0 && o.Stride != o.SeqLen:
		return fmt.Errorf("%w: stride %d with the %s convention, whose windows do not overlap; use %s", ErrOptions,
			o.Stride, Window, Rolling)
	case o.Convention == Rolling && (o.Stride < 0 || o.Stride >= o.SeqLen):
		return fmt.Errorf("%w: stride %d; want 1 to %d, one less than the window", ErrOptions, o.Stride, o.SeqLen-1)
	}

	if o.Stride == 0 {
		o.Stride = o.SeqLen - 1
	}

	return nil
}

// Cut lays windows over a file for a perplexity.
//
// Convention Window is the one that papers on pruning report: the text (of records: with two line ends between two) is
// tokenized once, with the tokenizer's own special tokens, and cut into windows of SeqLen that do not overlap; what is
// left at the end is dropped and counted. Every window predicts SeqLen-1 tokens. The perplexity is exp of the mean over
// windows of the mean loss.
//
// Convention Rolling is the one of the evaluation harnesses: every record, or the whole of a plain text, is
// tokenized without special tokens, one BOS is put before it (EOS where the tokenizer has no BOS; with neither,
// the first token is not predicted), and every token is predicted exactly once, from at least SeqLen-Stride and
// at most SeqLen-1 tokens before it as far as there are so many. Labels mark what each window predicts.
// Documents without a token are left out and counted in Blank.
//
// Token ids get no BOS. With Window a row of at most SeqLen tokens is a window as it is, and a longer one is cut; with
// Rolling every row counts as a document.
//
// The errors wrap ErrShort where no window fits, and else the errors of this package.
func Cut(ctx context.Context, path string, tok Tokenizer, o CutOptions) (Windows, error) {
	if err := o.setDefaults(tok); err != nil {
		return Windows{}, err
	}

	s, err := openSource(path)
	if err != nil {
		return Windows{}, err
	}
	defer s.close()

	w := Windows{Source: path, Mode: o.Convention, Docs: 1}
	if err := w.cut(ctx, s, tok, o); err != nil {
		return Windows{}, err
	}
	if len(w.IDs) == 0 && o.AnyLength && o.Convention == Window && w.Tokens > 1 {
		o.SeqLen = int(w.Tokens)
		o.Stride = 0
		o.AnyLength = false
		return Cut(ctx, path, tok, o)
	}

	if w.Count = len(w.IDs); w.Count == 0 {
		return Windows{}, w.tooShort(o)
	}
	for _, row := range w.IDs {
		w.SeqLen = max(w.SeqLen, len(row))
	}

	w.Hash = HashIDs(w.IDs)
	return w, nil
}

// cut takes the way that fits the file and the convention.
func (w *Windows) cut(ctx context.Context, s *source, tok Tokenizer, o CutOptions) error {
	switch {
	case s.format == formatTensors || s.format == formatArrays:
		return w.cutIDs(s, o)
	case tok == nil:
		return fmt.Errorf("%s: %w", w.Source, ErrNoTokenizer)
	case o.Convention == Rolling:
		return w.cutRolling(ctx, s, tok, o)
	default:
		return w.cutText(ctx, s, tok, o)
	}
}

func (w *Windows) tooShort(o CutOptions) error {
	if w.Tokens == 0 {
		return fmt.Errorf("%s: %w", w.Source, ErrEmpty)
	}
	need := 2
	if o.Convention == Window {
		need = o.SeqLen
	}
	return fmt.Errorf("%s: %w: %d tokens, need %d", w.Source, ErrShort, w.Tokens, need)
}

// full reports whether there are as many windows as asked for.
func (w *Windows) full(o CutOptions) bool { return o.Limit > 0 && len(w.IDs) >= o.Limit }

// cutText cuts one long text into windows that do not overlap.
func (w *Windows) cutText(ctx context.Context, s *source, tok Tokenizer, o CutOptions) error {
	var open []int32
	err := s.text(tok, o.VocabSize, "\n\n", w).each(func(ids []int32) error {
		w.Tokens += int64(len(ids))
		if w.Tokens > maxTokens {
			return fmt.Errorf("%s: %w: more than %d tokens; give a limit", s.path, ErrTooLarge, maxTokens)
		}
		open = w.chop(append(open, ids...), o)
		if w.full(o) {
			return errStop
		}
		return ctx.Err()
	})

	if !w.full(o) {
		w.Dropped = int64(len(open))
	}

	return err
}

// chop takes windows off the front of ids and gives what is left.
func (w *Windows) chop(ids []int32, o CutOptions) []int32 {
	for len(ids) >= o.SeqLen && !w.full(o) {
		w.IDs = append(w.IDs, ids[:o.SeqLen:o.SeqLen])
		ids = ids[o.SeqLen:]
	}
	return ids
}

// cutRolling rolls over every document.
func (w *Windows) cutRolling(ctx context.Context, s *source, tok Tokenizer, o CutOptions) error {
	if s.format != formatRecords {
		text, err := s.all(ctx)
		if err != nil {
			return err
		}
		return w.rollText(s.path, text, tok, o)
	}

	r, err := s.reader()
	if err != nil {
		return err
	}

	lines := &lineReader{r: r, path: s.path}
	for w.Docs = 0; !w.full(o); w.Docs++ {
		doc, err := lines.text(nil)
		if errors.Is(err, io.EOF) {
			break
		}

		if err == nil {
			err = w.rollText(fmt.Sprintf("%s: line %d", s.path, lines.line), doc, tok, o)
		}

		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}

	w.Blank += lines.skip
	return nil
}

// all reads a plain text that is rolled over as one document.
func (s *source) all(ctx context.Context) (string, error) {
	next, err := s.plainText()
	if err != nil {
		return "", err
	}

	var b strings.Builder
	p := pieces{next: next, path: s.path, size: pieceSize}
	for !p.ended {
		part, err := p.piece()
		if err = errors.Join(err, ctx.Err()); err != nil {
			return "", err
		}

		b.Write(part)

		if b.Len() > maxTokens {
			return "", fmt.Errorf("%s: %w: more than %d bytes in one document; use records, one a line", s.path,
				ErrTooLarge, maxTokens)
		}
	}

	return b.String(), nil
}

// rollText tokenizes a document and lays windows over it.
func (w *Windows) rollText(place, text string, tok Tokenizer, o CutOptions) error {
	ids, err := encode(place, tok, o.VocabSize, text, tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		return err
	}

	if len(ids) == 0 {
		w.Blank++
		return nil
	}

	if w.Tokens += int64(len(ids)); w.Tokens > maxTokens {
		return fmt.Errorf("%s: %w: more than %d tokens; give a limit", place, ErrTooLarge, maxTokens)
	}

	bos, ok := tok.BOS()
	if !ok {
		bos, ok = tok.EOS()
	}
	if ok {
		ids = append([]int32{bos}, ids...)
	}

	w.roll(ids, o)
	return nil
}

// roll lays windows over a document whose first token is context only.
func (w *Windows) roll(ids []int32, o CutOptions) {
	for done := 1; done < len(ids) && !w.full(o); {
		step := o.Stride
		if done == 1 {
			step = o.SeqLen - 1
		}

		end := min(done+step, len(ids))
		start := max(0, end-o.SeqLen)
		labels := append([]int32(nil), ids[start:end]...)
		for i := range done - start {
			labels[i] = Ignore
		}

		w.IDs = append(w.IDs, ids[start:end:end])
		w.Labels = append(w.Labels, labels)
		done = end
	}
}

// cutIDs takes rows of token ids.
func (w *Windows) cutIDs(s *source, o CutOptions) error {
	read, err := s.readIDs(o.VocabSize, tensorNames(o.Tensor, "eval_ids", "input_ids", "calib_ids"))
	if err != nil {
		return err
	}

	w.Docs, w.Tokens = read.Docs, read.Tokens

	for _, row := range read.IDs {
		switch {
		case o.Convention == Rolling:
			w.roll(row, o)
		case len(row) < o.SeqLen && len(row) > 1 && !w.full(o):
			w.IDs = append(w.IDs, row)
		default:
			rest := w.chop(row, o)
			if !w.full(o) {
				w.Dropped += int64(len(rest))
			}
		}
	}

	return nil
}
