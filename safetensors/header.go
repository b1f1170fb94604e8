package safetensors

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	prefixSize    = 8           // the length in front of the header
	maxHeaderSize = 100_000_000 // bytes; the format's limit
	metadataKey   = "__metadata__"
)

// header is a checked header: its tensors in the order of their data, which fills the rest
// of the file exactly.
type header struct {
	tensors  []Info
	byName   map[string]int
	metadata map[string]string
}

// headerSize reads the length in front of the header and checks it against the size of the
// file, so that the header may be read into memory.
func headerSize(prefix []byte, fileSize int64) (int64, error) {
	if len(prefix) < prefixSize {
		return 0, fault(ErrHeaderTooShort, 0, "%d bytes, the length alone takes %d", fileSize, prefixSize)
	}

	n := binary.LittleEndian.Uint64(prefix)
	switch {
	case n > maxHeaderSize:
		if e := foreign(prefix); e != nil {
			return 0, fault(e, 0, "")
		}
		return 0, fault(ErrHeaderTooLarge, 0, "%d bytes", n)
	case n < uint64(len("{}")):
		return 0, fault(ErrHeaderTooShort, 0, "a header of %d bytes", n)
	case int64(n) > fileSize-prefixSize:
		return 0, fault(ErrTruncated, fileSize, "the header ends at byte %d, the file at %d", prefixSize+n, fileSize)
	}

	return int64(n), nil
}

// foreignError is a file of another format, whose first bytes would say a header larger than there can be.
type foreignError struct{ what, hint string }

func (e *foreignError) Error() string { return "this is " + e.what + ", not safetensors" }
func (e *foreignError) Unwrap() error { return ErrHeaderTooLarge }
func (e *foreignError) Hint() string  { return e.hint }

// foreign recognises other formats by their first bytes; nil if they say nothing.
func foreign(prefix []byte) *foreignError {
	const convert = "convert it to safetensors first"
	for magic, e := range map[string]foreignError{
		"PK\x03\x04": {"a zip archive, such as a PyTorch checkpoint", convert},
		"\x80\x02":   {"a Python pickle", convert},
		"GGUF":       {"a GGUF file", "name the .gguf file itself"},
		"\x89HDF":    {"an HDF5 file", convert},
		"version ":   {"a Git LFS pointer", "git lfs pull in the clone fetches the file itself"},
	} {
		if strings.HasPrefix(string(prefix), magic) {
			return &e
		}
	}

	return nil
}

// parseHeader checks the JSON of a header and what it says about a file of fileSize bytes.
// It allocates in proportion to the text, never to the sizes that the text claims.
func parseHeader(text []byte, fileSize int64) (*header, error) {
	if at := invalidUTF8(text); at >= 0 {
		return nil, fault(ErrHeaderNotUTF8, int64(prefixSize+at), "byte %#02x", text[at])
	}
	if text[0] != '{' {
		return nil, fault(ErrHeaderStart, prefixSize, "byte %#02x", text[0])
	}

	h := &header{}
	s := &scanner{text: text, base: prefixSize}
	dataStart := int64(prefixSize + len(text))
	if err := s.object(func(key string) error { return h.member(s, key, dataStart) }); err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	if err := h.checkOffsets(dataStart, fileSize); err != nil {
		return nil, err
	}

	h.byName = make(map[string]int, len(h.tensors))
	for i := range h.tensors {
		h.byName[h.tensors[i].Name] = i
	}

	return h, nil
}

// invalidUTF8 gives the place of the first invalid byte, or -1.
func invalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}

	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}

	return -1
}

// member reads one value of the outermost object.
func (h *header) member(s *scanner, key string, dataStart int64) error {
	if key == metadataKey {
		m, err := metadata(s)
		h.metadata = m
		return err
	}

	s.peek()
	at := s.pos
	info, err := entry(s)
	if err == nil {
		info, err = checkEntry(info, s.base+int64(at), dataStart)
	}
	if err != nil {
		return locate(err, "", key)
	}

	info.Name = key
	h.tensors = append(h.tensors, info)
	return nil
}

// metadata reads the value of __metadata__: strings, or null for none.
func metadata(s *scanner) (map[string]string, error) {
	if s.literal("null") {
		return nil, nil
	}
	if s.peek() != '{' {
		return nil, s.fail(ErrMetadata, "an object is expected")
	}

	m := map[string]string{}
	err := s.object(func(key string) error {
		if s.peek() != '"' {
			return s.fail(ErrMetadata, "the value of %q is not a string", clip(key))
		}
		value, err := s.str()
		m[key] = value
		return err
	})

	return m, err
}

// entry reads the value of a tensor: dtype, shape and data_offsets, each once, and whatever
// else may stand there. Offset and Size hold the two data_offsets for checkEntry.
func entry(s *scanner) (Info, error) {
	var info Info
	var hasDType, hasShape, hasOffsets bool
	if s.peek() != '{' {
		return info, s.fail(ErrEntry, "an object is expected")
	}

	start := s.pos
	err := s.object(func(key string) (err error) {
		switch key {
		case "dtype":
			hasDType = true
			info.DType, err = dtypeValue(s)
		case "shape":
			hasShape = true
			info.Shape, err = shapeValue(s)
		case "data_offsets":
			hasOffsets = true
			info.Offset, info.Size, err = offsetsValue(s)
		default:
			err = s.skip(2)
		}

		return err
	})
	if err != nil {
		return info, err
	}

	if !hasDType || !hasShape || !hasOffsets {
		s.pos = start
		return info, s.fail(ErrEntry, "dtype, shape and data_offsets are all required")
	}

	return info, nil
}

func dtypeValue(s *scanner) (DType, error) {
	if s.peek() != '"' {
		return 0, s.fail(ErrEntry, "dtype is not a string")
	}

	at := s.pos
	name, err := s.str()
	if err != nil {
		return 0, err
	}

	d, err := ParseDType(name)
	if err != nil {
		s.pos = at
		return 0, s.fail(err, "")
	}

	return d, nil
}

func shapeValue(s *scanner) ([]int64, error) {
	if s.peek() != '[' {
		return nil, s.fail(ErrEntry, "shape is not an array")
	}

	shape := make([]int64, 0, 4)
	err := s.array(func() error {
		dim, err := s.whole(ErrEntry, ErrShapeOverflow)
		shape = append(shape, dim)
		return err
	})
	return shape, err
}

func offsetsValue(s *scanner) (begin, end int64, err error) {
	if s.peek() != '[' {
		return 0, 0, s.fail(ErrEntry, "data_offsets is not an array")
	}

	var pair [2]int64
	n := 0
	start := s.pos
	err = s.array(func() error {
		v, err := s.whole(ErrEntry, ErrOffsets)
		if n < len(pair) {
			pair[n] = v
		}
		n++
		return err
	})
	if err == nil && n != len(pair) {
		s.pos = start
		err = s.fail(ErrEntry, "data_offsets has %d numbers, not 2", n)
	}

	return pair[0], pair[1], err
}

// checkEntry checks one tensor on its own and turns its data_offsets into the place in the
// file and the size.
func checkEntry(info Info, at, dataStart int64) (Info, error) {
	begin, end := info.Offset, info.Size
	if begin > end {
		return info, fault(ErrOffsets, at, "begin %d lies behind end %d", begin, end)
	}

	size, err := info.DType.ByteSize(info.Shape)
	if err != nil {
		return info, fault(err, at, "")
	}

	if size != end-begin {
		return info, fault(ErrSizeMismatch, at, "%s %v takes %d bytes, data_offsets [%d,%d] hold %d",
			info.DType, clipShape(info.Shape), size, begin, end, end-begin)
	}
	if end > maxFileSize-dataStart {
		return info, fault(ErrOffsets, at, "end %d leaves the range of file sizes", end)
	}

	info.Offset, info.Size = dataStart+begin, size
	return info, nil
}

// checkOffsets sorts the tensors by place (equal places, which only tensors without bytes
// have, by place in the header) and checks that they fill the file without gap or overlap.
func (h *header) checkOffsets(dataStart, fileSize int64) error {
	slices.SortStableFunc(h.tensors, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size))
	})
	at, previous := dataStart, ""
	for _, t := range h.tensors {
		switch {
		case t.Offset < at:
			return locate(fault(ErrOverlap, t.Offset, "%q reaches to byte %d", clip(previous), at), "", t.Name)
		case t.Offset > at:
			return locate(fault(ErrHole, at, "no tensor covers the %d bytes before it", t.Offset-at), "", t.Name)
		}

		at, previous = t.Offset+t.Size, t.Name
		if at > fileSize {
			err := fmt.Errorf("%w (%w)", ErrTruncated, ErrOffsets)
			return locate(fault(err, fileSize, "the tensor ends at byte %d, the file at %d", at, fileSize), "", t.Name)
		}
	}

	if at < fileSize {
		return fault(ErrTrailing, at, "%d bytes belong to no tensor", fileSize-at)
	}

	return nil
}
