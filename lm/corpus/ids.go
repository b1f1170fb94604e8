package corpus

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// maxTokens bounds the ids that are read from a file of token ids: 1 GiB of them in memory.
const maxTokens = 1 << 28

// readIDs reads the rows of a file of token ids and checks them against the vocabulary (0: not known, only the sign and
// 31 bits are checked). names are the tensors looked for in a .safetensors file, the first that is there is taken.
func (s *source) readIDs(vocab int, names []string) (Windows, error) {
	read := s.readArrays
	if s.format == formatTensors {
		read = func(r *bufio.Reader, vocab int) ([][]int32, error) { return readTensor(r, vocab, names) }
	}

	r, err := s.reader()
	if err != nil {
		return Windows{}, err
	}

	rows, err := read(r, vocab)
	if err != nil {
		return Windows{}, fmt.Errorf("%s: %w", s.path, err)
	}

	if len(rows) == 0 {
		return Windows{}, fmt.Errorf("%s: %w", s.path, ErrEmpty)
	}

	return New(rows, s.path), nil
}

// checkID narrows an id, or says why it cannot be one.
func checkID(id int64, row, col, vocab int) (int32, error) {
	limit := int64(vocab)
	if vocab <= 0 {
		limit = math.MaxInt32
	}
	if id < 0 || id >= limit {
		return 0, fmt.Errorf("row %d, column %d: %w: id %d, the vocabulary has %d", row, col, ErrVocabulary, id, limit)
	}
	return int32(id), nil
}

// readArrays reads a JSON array of arrays of ids.
func (s *source) readArrays(r *bufio.Reader, vocab int) ([][]int32, error) {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, fmt.Errorf("%w: not an array of arrays", ErrIDs)
	}

	var rows [][]int32
	left := maxTokens
	for d.More() {
		row, err := readArray(d, len(rows), vocab, &left)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}

	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("%w: row %d: %w", ErrIDs, len(rows), noEOF(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the array at byte %d", ErrIDs, d.InputOffset())
	}

	return rows, nil
}

// noEOF names the end of a file that came too early.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func readArray(d *json.Decoder, row, vocab int, left *int) ([]int32, error) {
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, fmt.Errorf("%w: row %d is not an array", ErrIDs, row)
	}

	var ids []int32
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: row %d: %w", ErrIDs, row, noEOF(err))
		}

		v, ok := t.(float64)
		if !ok || v != math.Trunc(v) || math.Abs(v) > 1<<52 {
			return nil, fmt.Errorf("%w: row %d, column %d: %v is not a token id", ErrIDs, row, len(ids), t)
		}

		id, err := checkID(int64(v), row, len(ids), vocab)
		if err != nil {
			return nil, err
		}

		*left--
		if *left < 0 {
			return nil, fmt.Errorf("%w: more than %d ids", ErrTooLarge, maxTokens)
		}

		ids = append(ids, id)
	}

	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("%w: row %d: %w", ErrIDs, row, noEOF(err))
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: row %d is empty", ErrIDs, row)
	}

	return ids, nil
}

// maxHeader bounds the header of a .safetensors file, as the format does.
const maxHeader = 100 << 20

// tensor is an entry of the header of a .safetensors file.
type tensor struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// readTensor reads one tensor of ids from a .safetensors file. It knows only what that takes: this package stands below
// the one for checkpoints.
func readTensor(r *bufio.Reader, vocab int, names []string) ([][]int32, error) {
	var size uint64
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
		return nil, fmt.Errorf("%w: no header: %w", ErrIDs, noEOF(err))
	}
	if size > maxHeader {
		return nil, fmt.Errorf("%w: a header of %d bytes", ErrIDs, size)
	}

	header := map[string]json.RawMessage{}
	text, err := io.ReadAll(io.LimitReader(r, int64(size)))
	switch {
	case err != nil:
		return nil, err
	case uint64(len(text)) != size:
		return nil, fmt.Errorf("%w: the header ends after %d of %d bytes", ErrIDs, len(text), size)
	}

	if err := json.Unmarshal(text, &header); err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrIDs, err)
	}

	name, t, err := choose(header, names)
	if err != nil {
		return nil, err
	}

	if _, err := io.CopyN(io.Discard, r, t.Offsets[0]); err != nil {
		return nil, fmt.Errorf("%w: tensor %q: %w", ErrIDs, name, noEOF(err))
	}

	rows, err := t.read(r, vocab)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", name, err)
	}

	return rows, nil
}

// choose finds the first of the names and checks its entry.
func choose(header map[string]json.RawMessage, names []string) (string, tensor, error) {
	for _, name := range names {
		raw, ok := header[name]
		if !ok {
			continue
		}

		var t tensor
		if err := json.Unmarshal(raw, &t); err != nil {
			return "", t, fmt.Errorf("%w: tensor %q: %w", ErrIDs, name, err)
		}

		return name, t, t.check(name)
	}

	delete(header, "__metadata__")
	there := slices.Sorted(maps.Keys(header))
	if len(there) > 8 {
		there = append(there[:8:8], "…")
	}

	return "", tensor{}, fmt.Errorf("%w: no tensor called %s; the file has %.400s",
		ErrIDs, strings.Join(names, " or "), strings.Join(there, ", "))
}

// check compares type, shape and place with each other before anything is allocated.
func (t tensor) check(name string) error {
	width := t.width()
	if width == 0 {
		return fmt.Errorf("%w: tensor %q: %s; want I64 or I32", ErrIDs, name, t.DType)
	}
	if len(t.Shape) == 1 {
		t.Shape = []int64{1, t.Shape[0]}
	}
	if len(t.Shape) != 2 || t.Shape[0] < 1 || t.Shape[1] < 1 {
		return fmt.Errorf("%w: tensor %q: shape %v; want [windows, tokens]", ErrIDs, name, t.Shape)
	}
	if t.Shape[0] > maxTokens || t.Shape[1] > maxTokens || t.Shape[0]*t.Shape[1] > maxTokens {
		return fmt.Errorf("%w: tensor %q: shape %v, more than %d ids", ErrTooLarge, name, t.Shape, maxTokens)
	}
	if want := t.Shape[0] * t.Shape[1] * width; t.Offsets[0] < 0 || t.Offsets[1] < t.Offsets[0] ||
		t.Offsets[1]-t.Offsets[0] != want {
		return fmt.Errorf("%w: tensor %q: data_offsets %v do not fit shape %v", ErrIDs, name, t.Offsets, t.Shape)
	}

	return nil
}

// width is the size of an id in bytes, 0 for a type that holds no ids.
func (t tensor) width() int64 {
	switch t.DType {
	case "I64":
		return 8
	case "I32":
		return 4
	}
	return 0
}

// read reads the ids row by row, so that a file shorter than it says costs no more memory than it has bytes.
func (t tensor) read(r io.Reader, vocab int) ([][]int32, error) {
	n, cols, width := int64(1), t.Shape[len(t.Shape)-1], t.width()
	if len(t.Shape) == 2 {
		n = t.Shape[0]
	}

	var rows [][]int32
	buf := make([]byte, min(cols, 1<<16)*width)
	for i := range n {
		var row []int32
		for int64(len(row)) < cols {
			part := buf[:min(int64(len(buf)), (cols-int64(len(row)))*width)]
			if _, err := io.ReadFull(r, part); err != nil {
				return nil, fmt.Errorf("%w: row %d, column %d: %w", ErrIDs, i, len(row), noEOF(err))
			}

			var err error
			if row, err = appendIDs(row, part, width, int(i), vocab); err != nil {
				return nil, err
			}
		}

		rows = append(rows, row)
	}

	return rows, nil
}

func appendIDs(row []int32, p []byte, width int64, i, vocab int) ([]int32, error) {
	for ; len(p) > 0; p = p[width:] {
		v := int64(int32(binary.LittleEndian.Uint32(p)))
		if width == 8 {
			v = int64(binary.LittleEndian.Uint64(p))
		}

		id, err := checkID(v, i, len(row), vocab)
		if err != nil {
			return nil, err
		}

		row = append(row, id)
	}

	return row, nil
}
