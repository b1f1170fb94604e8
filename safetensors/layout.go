package safetensors

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Order says in which order tensors are laid out in a new file.
type Order uint8

// The orders. All are deterministic: the same tensors give the same bytes.
const (
	OrderGiven   Order = iota // as the caller lists them (the default); nothing is said about alignment
	OrderAligned              // larger elements first, otherwise as listed; every tensor is aligned to its element
	// the reference implementation's: by dtype, last constant first, then by name; aligned as well
	OrderHF
)

// layout is a new file worked out: all bytes before the data, and the place of each tensor.
type layout struct {
	head    []byte // length, header, padding
	tensors []Info // in the order of their data
	size    int64  // of the whole file
}

// plan lays out a file. The errors wrap ErrReservedName, ErrDuplicateKey, ErrHeaderNotUTF8,
// ErrHeaderTooLarge, ErrOffsets, or those of DType.ByteSize.
func plan(tensors []Info, metadata map[string]string, order Order) (*layout, error) {
	placed := make([]Info, len(tensors))
	for i, t := range tensors {
		placed[i] = Info{Name: t.Name, DType: t.DType, Shape: append([]int64{}, t.Shape...)}
	}
	if err := checkNames(placed, metadata); err != nil {
		return nil, err
	}

	sortBy(placed, order)
	end, err := place(placed)
	if err != nil {
		return nil, err
	}

	head := appendHeader(make([]byte, prefixSize), placed, metadata)
	n := len(head) - prefixSize
	if n > maxHeaderSize {
		return nil, fault(ErrHeaderTooLarge, -1, "%d bytes for %d tensors", n, len(tensors))
	}

	binary.LittleEndian.PutUint64(head, uint64(n))
	start := int64(len(head))
	if end > maxFileSize-start {
		return nil, fault(ErrOffsets, -1, "%d bytes of data leave the range of file sizes", end)
	}
	for i := range placed {
		placed[i].Offset += start
	}

	return &layout{head: head, tensors: placed, size: start + end}, nil
}

// mismatch is the error for n bytes where a tensor takes another number of them.
func (l *layout) mismatch(name string, n int) error {
	i := slices.IndexFunc(l.tensors, func(t Info) bool { return t.Name == name })
	t := &l.tensors[i]
	return fault(ErrSizeMismatch, -1, "%s %v takes %d bytes, given %d", t.DType, clipShape(t.Shape), t.Size, n)
}

// checkNames refuses names that a header cannot hold.
func checkNames(tensors []Info, metadata map[string]string) error {
	seen := make(map[string]struct{}, len(tensors))
	for _, t := range tensors {
		if t.Name == metadataKey {
			return locate(fault(ErrReservedName, -1, "the format keeps it for metadata"), "", t.Name)
		}
		if !utf8.ValidString(t.Name) {
			return locate(fault(ErrHeaderNotUTF8, -1, "the name is not valid"), "", t.Name)
		}
		if _, twice := seen[t.Name]; twice {
			return locate(fault(ErrDuplicateKey, -1, "listed twice"), "", t.Name)
		}

		seen[t.Name] = struct{}{}
	}

	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return fault(ErrHeaderNotUTF8, -1, "metadata %q", clip(key))
		}
	}

	return nil
}

func sortBy(tensors []Info, order Order) {
	switch order {
	case OrderAligned:
		slices.SortStableFunc(tensors, func(a, b Info) int { return cmp.Compare(b.DType.Align(), a.DType.Align()) })
	case OrderHF:
		slices.SortFunc(tensors, func(a, b Info) int {
			return cmp.Or(cmp.Compare(b.DType, a.DType), cmp.Compare(a.Name, b.Name))
		})
	}
}

// place gives each tensor its size and its offset from the start of the data, and gives the end.
func place(tensors []Info) (end int64, err error) {
	for i := range tensors {
		t := &tensors[i]
		t.Offset = end
		if t.Size, err = t.DType.ByteSize(t.Shape); err != nil {
			return 0, locate(err, "", t.Name)
		}
		if end += t.Size; end < 0 || end > maxFileSize {
			return 0, locate(fault(ErrOffsets, -1, "the data leaves the range of file sizes"), "", t.Name)
		}
	}

	return end, nil
}

// appendHeader writes the JSON in the form of the reference implementation: metadata first (its
// keys sorted), no white space, spaces at the end up to a multiple of 8 bytes.
func appendHeader(b []byte, tensors []Info, metadata map[string]string) []byte {
	separator := byte('{')
	if len(metadata) > 0 {
		b = appendMetadata(append(b, separator), metadata)
		separator = ','
	}

	for i := range tensors {
		b = appendEntry(append(b, separator), &tensors[i])
		separator = ','
	}

	if separator == '{' {
		b = append(b, separator)
	}

	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}

	return b
}

func appendMetadata(b []byte, metadata map[string]string) []byte {
	b = append(appendString(b, metadataKey), ':')
	separator := byte('{')
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		b = append(appendString(append(b, separator), key), ':')
		b = appendString(b, metadata[key])
		separator = ','
	}
	return append(b, '}')
}

func appendEntry(b []byte, t *Info) []byte {
	b = appendString(b, t.Name)
	b = fmt.Appendf(b, `:{"dtype":"%s","shape":[`, t.DType)
	for i, dim := range t.Shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, dim, 10)
	}
	return fmt.Appendf(b, `],"data_offsets":[%d,%d]}`, t.Offset, t.Offset+t.Size)
}

// appendString writes a JSON string with no more escapes than JSON asks for.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\t':
			b = append(b, `\t`...)
		case '\n':
			b = append(b, `\n`...)
		case '\f':
			b = append(b, `\f`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			if c < ' ' {
				b = fmt.Appendf(b, `\u%04x`, c)
				continue
			}
			b = append(b, c)
		}
	}

	return append(b, '"')
}
