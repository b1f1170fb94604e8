package parquet

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strings"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Kinds of pages and encodings.
const (
	pageData       = 0
	pageIndex      = 1
	pageDictionary = 2
	pageDataV2     = 3

	plain           = 0
	plainDictionary = 2
	runLength       = 3
	dictionary      = 8
)

var encodingNames = map[int64]string{
	4: "bit-packed levels", 5: "delta integers", 6: "delta lengths", 7: "delta texts", 9: "byte streams",
}

// codec unpacks a page to a known size.
type codec func(packed []byte, size int) ([]byte, error)

var codecs = map[int64]codec{
	0: func(p []byte, _ int) ([]byte, error) { return p, nil },
	1: func(p []byte, size int) ([]byte, error) {
		if n, err := snappy.DecodedLen(p); err != nil || n != size {
			return nil, fmt.Errorf("%w: Snappy page", ErrFormat)
		}
		return snappy.Decode(nil, p)
	},
	2: func(p []byte, size int) ([]byte, error) {
		r, err := gzip.NewReader(bytes.NewReader(p))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(io.LimitReader(r, int64(size)+1))
	},
	6: func(p []byte, size int) ([]byte, error) {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(uint64(max(size, 1<<20))))
		if err != nil {
			return nil, err
		}
		defer d.Close()
		return d.DecodeAll(p, nil)
	},
}

// chunk is a column in a row group.
type chunk struct {
	leaf   *node
	unpack codec
	dict   []any
	out    []entry
	total  int64 // values to come
}

// column reads a column of a row group.
func (in *reader) column(leaf *node, meta fields) ([]entry, error) {
	c := &chunk{leaf: leaf, unpack: codecs[meta.int(4)], total: meta.int(5)}
	if c.total == 0 && c.unpack != nil {
		return nil, nil // a row group of no rows
	}

	start, size := meta.int(9), meta.int(7)
	if d, ok := meta[11].(int64); ok && d > 0 && d < start {
		start = d
	}

	switch {
	case c.unpack == nil:
		return nil, fmt.Errorf("%w: compression %d; known: none, Snappy, gzip, Zstandard", ErrUnsupported, meta.int(4))
	case start < 4 || size < 0 || size > maxPage*4 || start > in.size-size || c.total < 0 || c.total > maxValues ||
		meta.int(1) != leaf.kind:
		return nil, fmt.Errorf("%w: %d values in %d bytes at %d", ErrFormat, c.total, size, start)
	}

	raw := make([]byte, size)
	if _, err := in.r.ReadAt(raw, start); err != nil {
		return nil, err
	}

	for int64(len(c.out)) < c.total {
		n, err := c.page(raw)
		if err != nil {
			return nil, err
		}
		raw = raw[n:]
	}

	return c.out, nil
}

// page reads a page and says how many bytes it has.
func (c *chunk) page(raw []byte) (int, error) {
	head, n, err := parseThrift(raw)
	if err != nil {
		return 0, err
	}

	size, packed := head.int(2), head.int(3)
	if size < 0 || size > maxPage || packed < 0 || packed > int64(len(raw)-n) {
		return 0, fmt.Errorf("%w: page of %d bytes", ErrFormat, packed)
	}

	body := raw[n : n+int(packed)]
	switch head.int(1) {
	case pageIndex:
	case pageDictionary:
		if body, err = c.unpacked(body, int(size)); err == nil {
			c.dict, _, err = c.plain(body, head.sub(7).int(1))
		}
	case pageData:
		if body, err = c.unpacked(body, int(size)); err == nil {
			err = c.data(body, head.sub(5))
		}
	case pageDataV2:
		err = c.dataV2(body, int(size), head.sub(8))
	default:
		err = fmt.Errorf("%w: page of kind %d", ErrUnsupported, head.int(1))
	}

	return n + int(packed), err
}

func (c *chunk) unpacked(body []byte, size int) ([]byte, error) {
	out, err := c.unpack(body, size)
	if err == nil && len(out) != size {
		err = fmt.Errorf("%w: a page unpacks to %d bytes, not %d", ErrFormat, len(out), size)
	}
	return out, err
}

// data reads a page whose levels stand before the values, each with its length.
func (c *chunk) data(body []byte, head fields) error {
	n := head.int(1)
	reps, body, err := prefixed(body, n, c.leaf.rep)
	if err != nil {
		return err
	}

	defs, body, err := prefixed(body, n, c.leaf.def)
	if err != nil {
		return err
	}

	return c.values(body, head.int(2), reps, defs, n)
}

// prefixed reads levels behind their length.
func prefixed(body []byte, n int64, top int) (levels []uint8, rest []byte, err error) {
	if top == 0 {
		return nil, body, nil
	}
	if len(body) < 4 {
		return nil, nil, errShort
	}

	size := int64(binary.LittleEndian.Uint32(body))
	if size > int64(len(body)-4) {
		return nil, nil, errShort
	}

	levels, err = levelsOf(body[4:4+size], n, top)
	return levels, body[4+size:], err
}

// dataV2 reads a page of the second form: levels are never compressed, and have their lengths in the head.
func (c *chunk) dataV2(body []byte, size int, head fields) error {
	n := head.int(1)
	defBytes := head.int(5)
	repBytes := head.int(6)
	if defBytes < 0 || repBytes < 0 || defBytes+repBytes > int64(len(body)) || int64(size) < defBytes+repBytes {
		return errShort
	}

	reps, err := levelsOf(body[:repBytes], n, c.leaf.rep)
	if err != nil {
		return err
	}

	defs, err := levelsOf(body[repBytes:repBytes+defBytes], n, c.leaf.def)
	if err != nil {
		return err
	}

	body = body[repBytes+defBytes:]
	if is, ok := head[7].(bool); !ok || is {
		if body, err = c.unpacked(body, size-int(defBytes+repBytes)); err != nil {
			return err
		}
	}

	return c.values(body, head.int(4), reps, defs, n)
}

// levelsOf reads n levels of at most top.
func levelsOf(b []byte, n int64, top int) ([]uint8, error) {
	if top == 0 {
		return nil, nil
	}
	if n < 0 || n > maxValues {
		return nil, errShort
	}

	out := make([]uint8, 0, min(n, 1<<20))
	err := hybrid(b, bits.Len(uint(top)), n, func(v uint32) { out = append(out, uint8(v)) })

	for _, l := range out {
		if int(l) > top {
			return nil, fmt.Errorf("%w: level %d of %d", ErrFormat, l, top)
		}
	}

	return out, err
}

// hybrid reads n numbers of a width in bits: runs of one number and packed groups of eight.
func hybrid(b []byte, width int, n int64, each func(v uint32)) error {
	if width > 32 {
		return fmt.Errorf("%w: numbers of %d bits", ErrFormat, width)
	}

	for n > 0 {
		head, k := binary.Uvarint(b)
		if k <= 0 {
			return errShort
		}

		b = b[k:]
		count := int64(head >> 1)
		if head&1 == 0 {
			size := (width + 7) / 8
			if len(b) < size || count == 0 {
				return errShort
			}

			v := uint32(0)
			for i := range size {
				v |= uint32(b[i]) << (8 * i)
			}

			b = b[size:]
			for range min(count, n) {
				each(v)
			}

			n -= min(count, n)
			continue
		}

		size := count * int64(width)
		if count == 0 || count > maxValues || size > int64(len(b)) {
			return errShort
		}

		unpack(b[:size], width, min(8*count, n), each)
		n -= min(8*count, n)
		b = b[size:]
	}

	return nil
}

// unpack reads numbers that follow each other bit by bit.
func unpack(b []byte, width int, n int64, each func(v uint32)) {
	acc, have := uint64(0), 0
	for range n {
		for have < width {
			acc |= uint64(b[0]) << have
			b, have = b[1:], have+8
		}
		each(uint32(acc & (1<<width - 1)))
		acc, have = acc>>width, have-width
	}
}

// values reads the values of a page and joins them with their levels.
func (c *chunk) values(body []byte, encoding int64, reps, defs []uint8, n int64) error {
	if n < 0 || int64(len(c.out))+n > c.total {
		return fmt.Errorf("%w: more values than announced", ErrFormat)
	}

	there := n
	for _, d := range defs {
		if int(d) < c.leaf.def {
			there--
		}
	}

	vs, err := c.decode(body, encoding, there)
	if err != nil {
		return err
	}

	for i := range n {
		e := entry{def: uint8(c.leaf.def)}
		if reps != nil {
			e.rep = reps[i]
		}
		if defs != nil {
			e.def = defs[i]
		}
		if int(e.def) == c.leaf.def {
			e.v, vs = vs[0], vs[1:]
		}

		c.out = append(c.out, e)
	}

	return nil
}

func (c *chunk) decode(body []byte, encoding, n int64) ([]any, error) {
	switch encoding {
	case plain:
		vs, _, err := c.plain(body, n)
		return vs, err
	case plainDictionary, dictionary:
		return c.indexed(body, n)
	case runLength:
		if c.leaf.kind != typeBool || len(body) < 4 {
			break
		}
		vs := make([]any, 0, min(n, 1<<20))
		err := hybrid(body[4:], 1, n, func(v uint32) { vs = append(vs, v == 1) })
		return vs, err
	}

	name := encodingNames[encoding]
	return nil, fmt.Errorf("%w: encoding %d %s (HINT: write the file anew with dictionary or plain encoding)",
		ErrUnsupported, encoding, name)
}

// indexed reads places in the dictionary.
func (c *chunk) indexed(body []byte, n int64) ([]any, error) {
	if n == 0 {
		return nil, nil
	}
	if len(body) == 0 {
		return nil, errShort
	}

	vs, bad := make([]any, 0, min(n, 1<<20)), false
	err := hybrid(body[1:], int(body[0]), n, func(v uint32) {
		if int64(v) >= int64(len(c.dict)) {
			bad = true
			return
		}
		vs = append(vs, c.dict[v])
	})

	if bad {
		err = fmt.Errorf("%w: a place outside of the dictionary of %d", ErrFormat, len(c.dict))
	}

	return vs, err
}

// widths are the bytes of values of fixed size.
var widths = map[int64]int{typeInt32: 4, typeInt64: 8, typeInt96: 12, typeFloat: 4, typeDouble: 8}

// plain reads n values one after another.
func (c *chunk) plain(b []byte, n int64) (vs []any, rest []byte, err error) {
	if n < 0 || n > maxValues || c.leaf.kind != typeBool && n > int64(len(b)) && n > 0 {
		return nil, nil, errShort
	}

	vs = make([]any, 0, n)
	if c.leaf.kind == typeBool {
		if int64(len(b))*8 < n {
			return nil, nil, errShort
		}
		for i := range n {
			vs = append(vs, b[i/8]>>(i%8)&1 == 1)
		}

		return vs, nil, nil
	}

	for range n {
		var v any
		if v, b, err = c.next(b); err != nil {
			return nil, nil, err
		}
		vs = append(vs, v)
	}

	return vs, b, nil
}

// next reads a value.
func (c *chunk) next(b []byte) (any, []byte, error) {
	size := widths[c.leaf.kind]
	switch c.leaf.kind {
	case typeBytes:
		if len(b) < 4 {
			return nil, nil, errShort
		}
		size, b = int(binary.LittleEndian.Uint32(b)), b[4:]
	case typeFixed:
		size = int(c.leaf.length)
	}

	if size < 0 || size > len(b) {
		return nil, nil, errShort
	}

	p, rest := b[:size], b[size:]
	switch c.leaf.kind {
	case typeInt32:
		return int64(int32(binary.LittleEndian.Uint32(p))), rest, nil
	case typeInt64, typeInt96:
		return int64(binary.LittleEndian.Uint64(p)), rest, nil
	case typeFloat:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(p))), rest, nil
	case typeDouble:
		return math.Float64frombits(binary.LittleEndian.Uint64(p)), rest, nil
	case typeBytes, typeFixed:
		text := string(p)
		if c.leaf.text {
			if err := pyvalue.CheckUTF8(text); err != nil {
				return err, rest, nil // which row has it, and whether any has, shows later
			}
			return text, rest, nil
		}
		return strings.ToValidUTF8(text, "\ufffd"), rest, nil
	}

	return nil, nil, fmt.Errorf("%w: values of type %d", ErrUnsupported, c.leaf.kind)
}
