package corpus

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// documents gives random access to the records of a file: it keeps where each line begins, not what it says.
type documents struct {
	render func(messages []Turn) (string, error)
	path   string
	file   io.ReaderAt
	lines  []docLine
	blank  int
	done   func()
}

type docLine struct {
	at     int64
	size   int32
	number int32 // line number, from 1
}

// openDocuments indexes the records. Compressed files are unpacked to a temporary file first.
func openDocuments(s *source) (*documents, error) {
	d := &documents{path: s.path, file: s.file, render: s.render, done: func() {}}
	r, err := s.reader()
	if err != nil {
		return nil, err
	}

	if s.packed {
		tmp, err := unpack(r)
		if err != nil {
			return nil, fmt.Errorf("%s: unpacking: %w", s.path, err)
		}

		d.file, d.done = tmp, func() { tmp.Close() }
		r = bufio.NewReaderSize(tmp, 1<<18)
		s.skipped = 0
	}

	if err := d.index(r, s.skipped); err != nil {
		d.done()
		return nil, err
	}

	return d, nil
}

// unpack copies r to a temporary file and goes back to its start.
func unpack(r io.Reader) (*File, error) {
	tmp, err := temporary()
	if err != nil {
		return nil, err
	}

	_, err = io.Copy(tmp, r)
	if err == nil {
		_, err = tmp.Seek(0, io.SeekStart)
	}
	if err != nil {
		tmp.Close()
		return nil, err
	}

	return tmp, nil
}

// index notes where the lines of r begin, the first at the given place of the file.
func (d *documents) index(r *bufio.Reader, start int64) error {
	lines := lineReader{r: r, path: d.path, at: start}
	for {
		_, at, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			return err
		}
		d.lines = append(d.lines, docLine{at: at, size: int32(lines.at - at), number: int32(lines.line)})
	}

	d.blank = lines.skip
	if len(d.lines) == 0 {
		return fmt.Errorf("%s: %w", d.path, ErrEmpty)
	}

	return nil
}

// text reads record i.
func (d *documents) text(i int) (string, error) {
	l := d.lines[i]
	buf := make([]byte, l.size)
	if _, err := d.file.ReadAt(buf, l.at); err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("%s: line %d: %w", d.path, l.number, err)
	}

	line := bytes.TrimSpace(buf)
	if len(line) == 0 {
		return "", fmt.Errorf("%s: line %d: %w: the file changed while it was read", d.path, l.number, ErrRecord)
	}

	text, err := renderedRecord(line, d.render)
	if err != nil {
		return "", fmt.Errorf("%s: line %d: %w", d.path, l.number, err)
	}

	return text, nil
}
