package corpus

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Text is what [Texts] reads at a time.
type Text struct {
	Text   string
	Record bool   // one record; otherwise a plain text, or a part of a long one
	Turns  []Turn // the messages of a record that has such, which Text renders plainly
}

// Turn is a message of a conversation.
type Turn struct{ Role, Content string }

// Texts reads a file of records or of plain text, one record or up to 16 MiB of text at a time. The errors are those
// of this package, of the context, and of use, which ends the reading.
func Texts(ctx context.Context, path string, use func(t Text) error) error {
	s, err := openSource(path)
	if err != nil {
		return err
	}
	defer s.close()

	switch s.format {
	case formatText:
		err = s.eachPart(ctx, use)
	case formatRecords:
		err = s.eachRecord(ctx, use)
	default:
		err = fmt.Errorf("%s: %w: it holds token ids, and text is needed", path, ErrOptions)
	}
	return err
}

// eachPart gives plain text in the pieces in which it is tokenized.
func (s *source) eachPart(ctx context.Context, use func(t Text) error) error {
	next, err := s.plainText()
	if err != nil {
		return err
	}

	p := pieces{next: next, path: s.path, size: pieceSize}
	for !p.ended {
		part, err := p.piece()
		if err != nil {
			return err
		}
		if err := use(Text{Text: string(part)}); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// eachRecord gives the records of a file.
func (s *source) eachRecord(ctx context.Context, use func(t Text) error) error {
	r, err := s.reader()
	if err != nil {
		return err
	}

	lines := &lineReader{r: r, path: s.path}
	for {
		line, _, err := lines.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}

		t := Text{Record: true}
		if t.Text, err = parseRecord(line); err == nil {
			t.Turns, err = turnsOf(line)
		}
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", s.path, lines.line, err)
		}

		if err := use(t); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// turnsOf gives the messages of a record whose text they are; nil for another one.
func turnsOf(line []byte) ([]Turn, error) {
	if line[0] != '{' {
		return nil, nil
	}

	var r record
	if err := decode(line, &r); err != nil {
		return nil, err
	}
	if r.Text != nil || r.Prompt != nil && r.Completion != nil {
		return nil, nil
	}
	return r.turns()
}
