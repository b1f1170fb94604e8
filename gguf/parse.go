package gguf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

const (
	magic            = "GGUF"
	version          = 3 // of files that are written; 2 is read as well
	defaultAlignment = 32
	alignmentKey     = "general.alignment"
	quantVersionKey  = "general.quantization_version"
	quantVersion     = 2  // since the block layouts were last changed
	maxDims          = 4  // of ggml
	minPair          = 13 // bytes of a key-value pair: length of the key, kind, value
	minTensor        = 24 // bytes of a tensor's description: length of the name, dimensions, type, offset
	maxKey           = 1<<16 - 1
)

// header is what stands before the data.
type header struct {
	version   uint32
	metadata  Metadata
	alignment int64
	tensors   []Info // in the order of their data
	byName    map[string]int
	size      int64 // bytes before the data, padding included
}

// cursor reads forward through a file. Nothing is allocated before it is known to be there.
type cursor struct {
	data []byte
	pos  int64
}

func (c *cursor) left() int64 { return int64(len(c.data)) - c.pos }

// take returns the next n bytes; what names them for an error.
func (c *cursor) take(n uint64, what string) ([]byte, error) {
	if n > uint64(c.left()) {
		return nil, fault(ErrTruncated, c.pos, "%s of %d bytes, %d are left", what, n, c.left())
	}
	b := c.data[c.pos : c.pos+int64(n)]
	c.pos += int64(n)
	return b, nil
}

func (c *cursor) uint32(what string) (uint32, error) {
	b, err := c.take(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (c *cursor) uint64(what string) (uint64, error) {
	b, err := c.take(8, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// count reads how many things follow, each of which takes so many bytes at least.
func (c *cursor) count(least int64, what string) (int, error) {
	at := c.pos
	n, err := c.uint64("the number of " + what)
	if err != nil {
		return 0, err
	}
	if n > uint64(c.left()/least) {
		return 0, fault(ErrTruncated, at, "%d %s do not fit into the %d bytes that are left", n, what, c.left())
	}
	return int(n), nil
}

// str reads a length and so many bytes, of which it returns a copy.
func (c *cursor) str(what string) (string, error) {
	n, err := c.uint64("the length of " + what)
	if err != nil {
		return "", err
	}
	b, err := c.take(n, what)
	return string(b), err
}

// parse reads the header of a whole file. The file may be mapped: nothing of the result points into it.
func parse(data []byte) (*header, error) {
	c := &cursor{data: data}
	h := &header{}
	if err := h.readVersion(c); err != nil {
		return nil, err
	}

	tensors, err := c.count(minTensor, "tensors")
	if err != nil {
		return nil, err
	}
	pairs, err := c.count(minPair, "key-value pairs")
	if err != nil {
		return nil, err
	}

	if err := h.readMetadata(c, pairs); err != nil {
		return nil, err
	}
	if err := h.readTensors(c, tensors); err != nil {
		return nil, err
	}

	return h, h.place(c.pos, int64(len(data)))
}

func (h *header) readVersion(c *cursor) error {
	if got, err := c.take(4, "the magic number"); err != nil || string(got) != magic {
		return fault(ErrMagic, 0, "it begins with %q, not %q", clip(string(c.data[:min(len(c.data), 4)])), magic)
	}

	v, err := c.uint32("the version")
	switch {
	case err != nil:
		return err
	case v&0xffff == 0 && v != 0:
		return fault(ErrBigEndian, 4, "the bytes of its version are in the other order")
	case v != 2 && v != 3:
		return fault(ErrVersion, 4, "%d (known: 2, 3)", v)
	}

	h.version = v
	return nil
}

func (h *header) readMetadata(c *cursor, n int) error {
	seen := map[string]bool{}
	for range n {
		at := c.pos
		key, err := c.str("a key")
		if err != nil {
			return err
		}

		if key == "" || len(key) > maxKey || !utf8.ValidString(key) {
			return fault(ErrKey, at, "%q: a key is text of 1 to %d bytes", clip(key), maxKey)
		}
		if seen[key] {
			return keyed(fault(ErrDuplicateKey, at, "a key may stand once"), key)
		}
		seen[key] = true

		v, err := c.value()
		if err != nil {
			return keyed(err, key)
		}
		h.metadata = append(h.metadata, Entry{key, v})
	}

	alignment, err := alignmentOf(h.metadata)
	h.alignment = alignment
	return err
}

// alignmentOf is the alignment that the metadata name.
func alignmentOf(m Metadata) (int64, error) {
	v, ok := m.Get(alignmentKey)
	if !ok {
		return defaultAlignment, nil
	}
	n, _ := v.Uint()
	if v.Kind() != Uint32 || n == 0 || n&(n-1) != 0 {
		return 0, fault(ErrAlignment, -1, "%s %v; it is a uint32 and a power of 2", v.Kind(), v)
	}
	return int64(n), nil
}

// keyed names the key that an error is about.
func keyed(err error, key string) error {
	if e, ok := err.(*Error); ok {
		e.Key = key
	}
	return err
}

// value reads a kind and a value of it.
func (c *cursor) value() (Value, error) {
	at := c.pos
	kind, err := c.uint32("the type of a value")
	if err != nil {
		return Value{}, err
	}

	if Kind(kind) == Array {
		return c.array()
	}
	if Kind(kind) >= numKinds {
		return Value{}, fault(ErrUnknownKind, at, "%d (known: 0 to %d)", kind, numKinds-1)
	}

	return c.scalar(Kind(kind))
}

func (c *cursor) scalar(kind Kind) (Value, error) {
	v := Value{kind: kind}
	if kind == String {
		var err error
		v.text, err = c.str("a string")
		return v, err
	}

	b, err := c.take(uint64(kinds[kind].size), "a "+kind.String())
	if err != nil {
		return v, err
	}
	v.word = word(string(b))
	if kind == Bool && v.word > 1 {
		return v, notBool(c.pos-1, v.word)
	}

	return v, nil
}

func notBool(at int64, got uint64) error { return fault(ErrValue, at, "a bool is 0 or 1, not %d", got) }

// array reads the items of an array as they are, after a walk over them that finds their end.
func (c *cursor) array() (Value, error) {
	at := c.pos
	elem, err := c.uint32("the type of an array's items")
	switch {
	case err != nil:
		return Value{}, err
	case Kind(elem) == Array:
		return Value{}, fault(ErrNestedArray, at, "nothing uses them, and llama.cpp refuses them too")
	case Kind(elem) >= numKinds:
		return Value{}, fault(ErrUnknownKind, at, "%d (known: 0 to %d)", elem, numKinds-1)
	}

	v := Value{kind: Array, elem: Kind(elem)}
	size := kinds[v.elem].size
	least := size
	if v.elem == String {
		least = 8 // its length
	}

	v.n, err = c.count(least, v.elem.String()+" items")
	if err != nil {
		return v, err
	}

	begin := c.pos
	if v.elem != String {
		c.pos += int64(v.n) * size
		v.text = string(c.data[begin:c.pos])
		return v, checkBools(v, begin)
	}

	for range v.n {
		n, err := c.uint64("the length of a string")
		if err != nil {
			return v, err
		}
		if _, err := c.take(n, "a string"); err != nil {
			return v, err
		}
	}
	v.text = string(c.data[begin:c.pos])

	return v, nil
}

func checkBools(v Value, begin int64) error {
	if v.elem != Bool {
		return nil
	}
	for i := range len(v.text) {
		if v.text[i] > 1 {
			return notBool(begin+int64(i), uint64(v.text[i]))
		}
	}
	return nil
}

func (h *header) readTensors(c *cursor, n int) error {
	h.byName = map[string]int{}
	for range n {
		at := c.pos
		name, err := c.str("the name of a tensor")
		if err != nil {
			return err
		}

		if name == "" || !utf8.ValidString(name) {
			return fault(ErrTensorName, at, "%q", clip(name))
		}
		if _, twice := h.byName[name]; twice {
			return locate(fault(ErrDuplicate, at, "a tensor may be described once"), "", name)
		}
		h.byName[name] = len(h.tensors)

		t, err := c.tensor(h.alignment)
		if err != nil {
			return locate(err, "", name)
		}
		t.Name = name
		h.tensors = append(h.tensors, t)
	}

	return nil
}

// tensor reads what follows a tensor's name. Its Offset still counts from the start of the data.
func (c *cursor) tensor(alignment int64) (t Info, err error) {
	at := c.pos
	dims, err := c.uint32("the number of dimensions")
	if err != nil {
		return t, err
	}
	if dims > maxDims {
		return t, fault(ErrDimensions, at, "%d; at most %d", dims, maxDims)
	}

	t.Shape = make([]int64, dims)
	for i := range t.Shape {
		n, err := c.uint64("a dimension")
		if err != nil {
			return t, err
		}
		if int64(n) < 0 {
			return t, fault(ErrShapeOverflow, c.pos-8, "a dimension of %d", n)
		}
		t.Shape[len(t.Shape)-1-i] = int64(n)
	}

	at = c.pos
	kind, err := c.uint32("the type of a tensor")
	if err != nil {
		return t, err
	}

	t.Type = Type(kind)
	if t.Size, err = t.Type.ByteSize(t.Shape); err != nil {
		return t, placed(err, at)
	}

	at = c.pos
	offset, err := c.uint64("the offset of a tensor")
	if err != nil {
		return t, err
	}
	if int64(offset) < 0 || int64(offset)%alignment != 0 {
		return t, fault(ErrOffset, at, "%d is no multiple of the alignment of %d, or too large", offset, alignment)
	}
	t.Offset = int64(offset)

	return t, nil
}

// placed gives an error of [Type.ByteSize] its place in the file.
func placed(err error, at int64) error {
	if e, ok := err.(*Error); ok {
		e.Offset = at
	}
	return err
}

// place turns the offsets into those of the file, once the header's end is known, and checks that the tensors lie
// within it beside each other.
func (h *header) place(end, size int64) error {
	h.size = align(end, h.alignment)
	for i := range h.tensors {
		t := &h.tensors[i]
		if free := size - h.size; t.Offset > free || t.Size > free-t.Offset {
			return locate(fault(ErrTruncated, -1, "the tensor takes %d bytes from %d on, the file has %d after its "+
				"header", t.Size, t.Offset, max(free, 0)), "", t.Name)
		}
		t.Offset += h.size
	}

	slices.SortStableFunc(h.tensors, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size))
	})
	for i := range h.tensors {
		t := &h.tensors[i]
		h.byName[t.Name] = i
		if i == 0 {
			continue
		}
		if before := &h.tensors[i-1]; before.Offset+before.Size > t.Offset {
			return locate(fault(ErrOverlap, t.Offset, "it begins within %q", clip(before.Name)), "", t.Name)
		}
	}

	return h.checkQuantVersion()
}

// align rounds up to a multiple of a power of two.
func align(n, to int64) int64 { return (n + to - 1) &^ (to - 1) }

// checkQuantVersion refuses blocks of a layout that is not the known one.
func (h *header) checkQuantVersion() error {
	v, ok := h.metadata.Get(quantVersionKey)
	if !ok || !slices.ContainsFunc(h.tensors, func(t Info) bool { return t.Type.Quantized() }) {
		return nil
	}
	if n, ok := v.Uint(); !ok || n != quantVersion {
		return keyed(fault(ErrQuantVersion, -1, "%s", fmt.Sprintf("%v (known: %d)", v, quantVersion)), quantVersionKey)
	}
	return nil
}
