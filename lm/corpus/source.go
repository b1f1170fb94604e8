package corpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// format is what a file holds.
type format int

const (
	formatText format = iota
	formatRecords
	formatArrays
	formatTensors
)

// maxUnpacked bounds what a compressed file may unpack to.
const maxUnpacked = 64 << 30

// source is an opened data file.
type source struct {
	path   string
	format format
	packed bool
	file   *File
	limit  int64 // of unpacked bytes

	render func(messages []Turn) (string, error) // of records; nil: plainly

	skipped int64 // bytes before the content that the last reader left out: a byte order mark
}

// openSource opens a file and finds out what it holds.
func openSource(path string) (*source, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}

	s := &source{path: path, file: f, limit: maxUnpacked}
	if err := s.detect(); err != nil {
		f.Close()
		return nil, err
	}

	return s, nil
}

func (s *source) close() { s.file.Close() }

// detect finds the format by the name and, for .json, by the first characters.
func (s *source) detect() error {
	stat, err := s.file.Stat()
	switch {
	case err != nil:
		return err
	case stat.IsDir():
		return fmt.Errorf("%s: %w: a folder; name one file", s.path, ErrOptions)
	case s.file.Records && stat.Size() == 0:
		return fmt.Errorf("%s: %w", s.path, ErrEmpty)
	case s.file.Records:
		s.format = formatRecords
		return nil
	case stat.Mode().IsRegular() && stat.Size() == 0:
		return fmt.Errorf("%s: %w", s.path, ErrEmpty)
	}

	name, packed := strings.CutSuffix(strings.ToLower(s.path), ".gz")
	s.packed = packed

	switch filepath.Ext(name) {
	case ".jsonl", ".ndjson":
		s.format = formatRecords
	case ".safetensors":
		s.format = formatTensors
	case ".json":
		return s.sniff()
	}

	return nil
}

// sniff distinguishes an array of arrays from records.
func (s *source) sniff() error {
	r, err := s.reader()
	if err != nil {
		return err
	}

	head, err := r.Peek(4096)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", s.path, err)
	}

	head = bytes.TrimSpace(head)
	switch {
	case len(head) == 0:
		return fmt.Errorf("%s: %w", s.path, ErrEmpty)
	case head[0] == '{' || head[0] == '"':
		s.format = formatRecords
		return nil
	case head[0] == '[' && bytes.HasPrefix(bytes.TrimSpace(head[1:]), []byte("[")):
		s.format = formatArrays
		return nil
	case head[0] == '[' && bytes.HasPrefix(bytes.TrimSpace(head[1:]), []byte("]")):
		return fmt.Errorf("%s: %w", s.path, ErrEmpty)
	case head[0] == '[':
		return fmt.Errorf("%s: %w: a flat array; token ids are an array of arrays, one for each sequence: [[1, 2, 3]]",
			s.path, ErrIDs)
	}

	return fmt.Errorf("%s: %w: neither an array of arrays of token ids nor records, one a line; name plain text .txt",
		s.path, ErrRecord)
}

// reader reads the content from its beginning, unpacked and without a byte order mark. One reader at a time.
func (s *source) reader() (*bufio.Reader, error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}

	var r io.Reader = s.file
	if s.packed {
		z, err := gzip.NewReader(bufio.NewReaderSize(s.file, 1<<18))
		if err != nil {
			return nil, fmt.Errorf("%s: gzip: %w", s.path, err)
		}
		r = &bounded{r: z, left: s.limit}
	}

	b := bufio.NewReaderSize(r, 1<<18)
	s.skipped = 0
	if head, err := b.Peek(3); err == nil && string(head) == "\ufeff" {
		n, _ := b.Discard(3)
		s.skipped = int64(n)
	}

	return b, nil
}

// bounded reads at most left bytes and calls more an error.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, fmt.Errorf("%w: unpacks to more than the limit", ErrTooLarge)
	}
	return n, err
}
